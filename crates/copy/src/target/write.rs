//! How bytes of large files reach the disk: past the page cache where that is better, else through it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_files::Dir;
use longhaul_files::dir::is_on_local_disk;
use longhaul_transport::limits::ALIGNMENT;

use crate::options::Writing;

/// Whether writes past the page cache are best here. They spare the memory, and most of the processor's part; but a
/// disk with heads needs the kernel to put writes in order, which come interleaved from many lanes.
#[derive(Debug)]
pub(super) struct DirectWrites {
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
    pub(super) fn new(writing: Writing, base: &Dir) -> Self {
        let best = match writing {
            Writing::Auto => is_on_local_disk(base),
            Writing::Direct => true,
            Writing::Buffered => false,
        };
        Self {
            best: AtomicBool::new(best),
            by_sight: writing == Writing::Auto,
            bytes: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn are_best(&self) -> bool {
        self.best.load(Ordering::Relaxed)
    }

    /// Writes all of `data`: what is aligned past the page cache where that is open, the rest through it.
    pub(super) fn write_at(
        &self,
        buffered: &File,
        direct: Option<&File>,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let Some(direct) = direct.filter(|_| offset.is_multiple_of(ALIGNMENT as u64)) else {
            return buffered.write_all_at(data, offset);
        };
        let began = Instant::now();
        let (straight, rest) = data.split_at(data.len() / ALIGNMENT * ALIGNMENT);
        match direct.write_all_at(straight, offset) {
            // A file system that opens files so and then wants a larger alignment.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                buffered.write_all_at(straight, offset)?;
            }
            written => written?,
        }
        buffered.write_all_at(rest, offset + straight.len() as u64)?;
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

/// Begins writing a file's dirty pages to the disk, without waiting.
pub(super) fn start_write_back(file: &File) {
    let _ = sync_file_range::start(file); // the sync at the end does all in any case
}

mod sync_file_range {
    #![allow(unsafe_code)] // no safe wrapper for sync_file_range(2)

    use std::os::fd::AsRawFd;

    pub(super) fn start(file: &std::fs::File) -> std::io::Result<()> {
        // SAFETY: a plain system call on an open descriptor.
        let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}
