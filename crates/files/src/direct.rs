//! How many bytes reach the disk: past the page cache where that is better, else through it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_transport::limits::ALIGNMENT;
use rustix::io::Errno;

use crate::Dir;
use crate::dir::is_on_local_disk;

/// Whether writes past the page cache are best here. They spare the memory, and most of the processor's part; but a
/// disk with heads needs the kernel to put writes in order, which come interleaved from many lanes.
#[derive(Debug)]
pub struct DirectWrites {
    best: AtomicBool,
    /// Decide by what is seen.
    by_sight: bool,
    bytes: AtomicU64,
    took_ns: AtomicU64,
}

/// Slower than so many nanoseconds a byte (30 MB/s for each thread), over [`SIGHT_BYTES`], is a disk that seeks: between
/// two writes of 1 MiB it moves its heads for 10 ms, while each of the other threads waits for it.
const SEEKING_NS_PER_BYTE: u64 = 32;

/// So many that a disk or a processor that is held up for a tenth of a second does not pass for a disk that seeks.
const SIGHT_BYTES: u64 = 128 << 20;

impl DirectWrites {
    /// They are, or are not.
    #[must_use]
    pub fn fixed(best: bool) -> Self {
        Self { by_sight: false, ..Self::if_local(best) }
    }

    /// They may be below `base`, as far as that shows.
    #[must_use]
    pub fn below(base: &Dir) -> Self {
        Self::if_local(is_on_local_disk(base))
    }

    fn if_local(best: bool) -> Self {
        Self {
            best: AtomicBool::new(best),
            by_sight: true,
            bytes: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
        }
    }

    /// Whether files should be opened for them.
    #[must_use]
    pub fn are_best(&self) -> bool {
        self.best.load(Ordering::Relaxed)
    }

    /// Writes all of `data`: what is aligned past the page cache where that is open, the rest through it.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_at(
        &self,
        buffered: impl AsFd,
        direct: Option<impl AsFd>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Errno> {
        let Some(direct) = direct.filter(|_| offset.is_multiple_of(ALIGNMENT as u64)) else {
            return write_all_at(buffered, data, offset);
        };
        let began = Instant::now();
        let (straight, rest) = data.split_at(data.len() / ALIGNMENT * ALIGNMENT);
        match write_all_at(direct, straight, offset) {
            // A file system that opens files so and then wants a larger alignment.
            Err(Errno::INVAL) => write_all_at(&buffered, straight, offset)?,
            written => written?,
        }
        write_all_at(buffered, rest, offset + straight.len() as u64)?;
        self.note(data.len(), began.elapsed());
        Ok(())
    }

    fn note(&self, bytes: usize, took: Duration) {
        if !self.by_sight {
            return;
        }
        let took = self.took_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed) + took.as_nanos() as u64;
        let bytes = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if bytes >= SIGHT_BYTES {
            if took / bytes > SEEKING_NS_PER_BYTE && self.best.swap(false, Ordering::Relaxed) {
                tracing::info!("the disk is slow past the page cache: writing through it");
            }
            self.bytes.store(0, Ordering::Relaxed);
            self.took_ns.store(0, Ordering::Relaxed);
        }
    }
}

/// As pwrite(2), all of it.
///
/// # Errors
/// As that.
pub fn write_all_at(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(&fd, data, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
