//! Bytes as a script: numbers and parts taken off the front, so that every input means something.

/// What is left of an input.
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Little-endian; zeros beyond the end.
    fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.number())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.number())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.number())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.number())
    }
}
