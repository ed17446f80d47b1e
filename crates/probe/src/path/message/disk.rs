//! What is said about disks.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::short;
use crate::disk::{Measured, Moved};
use crate::limits::{DISK_BYTES_MAX, DISK_PATH_BYTES_MAX, DISK_TIME_MAX};

/// A disk that is to be measured.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiskAsk {
    /// In an export; over ssh, of the user's own.
    #[prost(bytes = "bytes", tag = "1")]
    directory: Bytes,
    /// Of writing, and of reading.
    #[prost(uint32, tag = "2")]
    milliseconds: u32,
}

/// See [`Measured`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiskMessage {
    #[prost(uint64, tag = "1")]
    written: u64,
    #[prost(uint64, tag = "2")]
    write_ns: u64,
    #[prost(uint64, tag = "3")]
    read: u64,
    #[prost(uint64, tag = "4")]
    read_ns: u64,
    #[prost(bool, tag = "5")]
    direct: bool,
    /// Why there are no figures, if there are none.
    #[prost(string, tag = "6")]
    failed: String,
}

impl DiskAsk {
    pub(crate) fn new(directory: &[u8], time: Duration) -> Self {
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Self { directory: Bytes::copy_from_slice(directory), milliseconds }
    }

    /// The directory and the time; else what is wrong with them.
    pub(crate) fn wish(&self) -> Result<(Bytes, Duration), String> {
        let time = Duration::from_millis(self.milliseconds.into());
        if self.directory.len() > DISK_PATH_BYTES_MAX {
            return Err(format!("no path is longer than {DISK_PATH_BYTES_MAX} bytes"));
        }
        if time.is_zero() || time > DISK_TIME_MAX {
            return Err(format!("disks are written for {} s at the most", DISK_TIME_MAX.as_secs()));
        }
        Ok((self.directory.clone(), time))
    }
}

impl DiskMessage {
    pub(crate) fn of(outcome: Result<Measured, String>) -> Self {
        let Measured { write, read, direct } = match outcome {
            Ok(measured) => measured,
            Err(failed) => return Self { failed, ..Self::default() },
        };
        let ns = |moved: Moved| (moved.seconds * 1e9) as u64;
        Self {
            written: write.bytes,
            write_ns: ns(write),
            read: read.bytes,
            read_ns: ns(read),
            direct,
            failed: String::new(),
        }
    }

    /// What the disk did, or why it did not; `None` where it says what cannot be.
    pub(crate) fn outcome(self) -> Option<Result<Measured, String>> {
        if !self.failed.is_empty() {
            return Some(Err(short(&self.failed)));
        }
        let moved = |bytes, ns| {
            let is_sane = (1..=DISK_BYTES_MAX).contains(&bytes) && (1..=DISK_NS_MAX).contains(&ns);
            is_sane.then_some(Moved { bytes, seconds: ns as f64 * 1e-9 })
        };
        let (write, read) = (moved(self.written, self.write_ns)?, moved(self.read, self.read_ns)?);
        Some(Ok(Measured { write, read, direct: self.direct }))
    }
}

/// As long as nobody waits for a disk.
const DISK_NS_MAX: u64 = 3_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_asked_for_and_told_of_within_bounds() {
        let ask = |directory: &[u8], time| DiskAsk::new(directory, time).wish();
        let second = Duration::from_secs(1);
        assert_eq!(ask(b"data/\xff", second), Ok((Bytes::from_static(b"data/\xff"), second)));
        assert!(ask(&[b'x'; DISK_PATH_BYTES_MAX], DISK_TIME_MAX).is_ok());
        assert!(ask(&[b'x'; DISK_PATH_BYTES_MAX + 1], second).is_err());
        assert!(ask(b"data", Duration::ZERO).is_err() && ask(b"data", DISK_TIME_MAX + second).is_err());
        assert!(ask(b"data", Duration::MAX).is_err());

        let measured = Measured {
            write: Moved { bytes: 1 << 30, seconds: 1.5 },
            read: Moved { bytes: 1 << 29, seconds: 0.25 },
            direct: true,
        };
        assert_eq!(DiskMessage::of(Ok(measured)).outcome(), Some(Ok(measured)));
        let failed = DiskMessage::of(Err("it is\x1b[2J full".to_owned()));
        assert_eq!(failed.outcome(), Some(Err("it is[2J full".to_owned())));
        assert_eq!(DiskMessage::default().outcome(), None);
        for (bytes, seconds) in [(DISK_BYTES_MAX + 1, 1.0), (1, 0.0), (1, 1e9), (1, f64::NAN)] {
            let moved = Moved { bytes, seconds };
            assert_eq!(
                DiskMessage::of(Ok(Measured { read: moved, ..measured })).outcome(),
                None,
                "{moved:?}"
            );
        }
    }
}
