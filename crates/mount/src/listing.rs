//! Directories as the kernel reads them: in parts of its choosing, which are smaller than those that the server gives.

use std::collections::VecDeque;

use longhaul_files::{Listed, Remote};
use rustix::io::Errno;

use crate::forgotten::Forgotten;

/// An open directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Entries that the kernel has not taken yet.
    waiting: VecDeque<Listed>,
    /// The place of the first of them.
    at: u64,
    at_end: bool,
}

impl Listing {
    /// Gives the entries from `from` on to `take`, until that says that it has no room.
    pub(crate) async fn read(
        &mut self,
        remote: &Remote,
        forgotten: &Forgotten,
        file: u64,
        from: u64,
        mut take: impl FnMut(&Listed) -> bool,
    ) -> Result<(), Errno> {
        // Somewhere else, or from the beginning again: then things may have changed.
        if from != self.at || from == 0 {
            self.drop_waiting(forgotten);
            (self.at, self.at_end) = (from, false);
        }
        let mut taken = false;
        loop {
            while let Some(entry) = self.waiting.front() {
                if !take(entry) {
                    return Ok(());
                }
                taken = true;
                self.at = entry.next;
                self.waiting.pop_front();
            }
            // What there is goes first: the kernel asks again.
            if self.at_end || taken {
                return Ok(());
            }
            let (entries, at_end) = remote.read_dir(file, self.at).await?;
            (self.waiting, self.at_end) = (entries.into(), at_end);
        }
    }

    /// The kernel will not hear of these nodes.
    pub(crate) fn drop_waiting(&mut self, forgotten: &Forgotten) {
        for entry in self.waiting.drain(..) {
            if let Some(attr) = entry.attr {
                forgotten.add(attr.node, 1);
            }
        }
    }
}
