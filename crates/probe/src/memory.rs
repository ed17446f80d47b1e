//! Memory that begins with a page: direct I/O takes nothing else, and copies between it and the kernel are faster on some
//! processors.

use std::ops::{Deref, DerefMut};

use longhaul_transport::limits::ALIGNMENT;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Some bytes of it.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Memory {
    /// Zeros.
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length }
    }

    /// What nothing on its way can make shorter.
    ///
    /// # Errors
    /// As `getrandom(2)`.
    pub(crate) fn random(length: usize) -> Result<Self, Errno> {
        let mut memory = Self::new(length);
        let mut rest = &mut memory[..];
        while !rest.is_empty() {
            let filled = getrandom(&mut *rest, GetRandomFlags::empty())?;
            rest = &mut rest[filled..];
        }
        Ok(memory)
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_with_a_page_and_is_as_long_as_was_asked_for() {
        for length in [0, 1, 100_000] {
            let memory = Memory::random(length).unwrap();
            assert_eq!((memory.as_ptr().align_offset(ALIGNMENT), memory.len()), (0, length));
        }
        assert_ne!(Memory::random(64).unwrap()[..], Memory::new(64)[..]);
    }
}
