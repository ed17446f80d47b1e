//! What is in the page cache.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Whether it is known that none of these bytes are in the page cache.
pub(crate) fn is_uncached(fd: impl AsFd, offset: u64, length: usize) -> bool {
    cached_pages(fd, offset, length as u64) == Some(0)
}

/// How many pages of these bytes are in the page cache; `None`: the kernel does not say (before Linux 6.5), or not to this user.
fn cached_pages(fd: impl AsFd, offset: u64, length: u64) -> Option<u64> {
    /// `struct cachestat_range`.
    #[repr(C)]
    struct Range {
        offset: u64,
        length: u64,
    }
    /// `struct cachestat`: pages that are there, dirty, being written, evicted, and evicted lately.
    #[repr(C)]
    #[derive(Default)]
    struct Pages([u64; 5]);

    let (range, mut pages) = (Range { offset, length }, Pages::default());
    // SAFETY: the kernel reads one structure, and writes the other, of the lengths that cachestat(2) has.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_fd().as_raw_fd(), &raw const range, &raw mut pages, 0) };
    (result == 0).then_some(pages.0[0])
}

/// The same on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::Dir;
    use crate::dir::is_on_local_disk;

    #[test]
    fn pages_that_have_been_read_are_there() {
        let mut file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        file.as_file().sync_all().unwrap();
        rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let before = cached_pages(file.as_file(), 0, 4096);
        assert_eq!(is_uncached(file.as_file(), 0, 4096), before == Some(0));
        file.reopen().unwrap().read_exact(&mut [0; 1]).unwrap();
        // File systems that lie over others have no pages themselves: they do not count as local disks.
        let pages = if is_on_local_disk(&Dir::open_path(".".as_ref()).unwrap()) { 1 } else { 0 };
        let after = cached_pages(file.as_file(), 0, 4096);
        assert!(after >= before.map(|_| pages), "{before:?} {after:?}");
        assert!(pages == 0 || !is_uncached(file.as_file(), 0, 4096));
    }
}
