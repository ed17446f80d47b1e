//! How bytes of large files reach the disk: past the page cache where that is better, else through it.

use std::fs::File;

use longhaul_files::Dir;
use longhaul_files::direct::DirectWrites;

use crate::options::Writing;

/// As a copy is asked to.
pub(super) fn direct_writes(writing: Writing, base: &Dir) -> DirectWrites {
    match writing {
        Writing::Auto => DirectWrites::below(base),
        Writing::Direct => DirectWrites::fixed(true),
        Writing::Buffered => DirectWrites::fixed(false),
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
