//! What is in a directory: names, what they lead to, and leave to keep all that.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::fs::{FileType, OFlags, RawDir, RawDirEntry, SeekFrom};
use rustix::io::Errno;

use super::operations::Mounted;
use crate::lease::FileId;
use crate::limits::LISTING_BYTES;
use crate::message::{Grant, Listed, Listing, ReadDir};
use crate::name::Name;

/// What a directory holds under a name.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) name: Bytes,
    pub(super) kind: FileType,
    /// Where to go on after it.
    pub(super) next: u64,
}

impl Mounted {
    pub(super) fn read_dir(&self, ask: ReadDir, grants: &mut Vec<Grant>) -> Result<Listing, Errno> {
        let dir = match ask.unasked {
            // Only its owner may.
            true => self
                .open_dir(ask.node, OFlags::NOATIME)
                .or_else(|_| self.open_dir(ask.node, OFlags::empty()))?,
            false => self.open_dir(ask.node, OFlags::empty())?,
        };
        self.grant_node(ask.node, grants)?;
        let watched = self.watched_dir(ask.node)?;
        // Places in a directory are the file system's own, and may be any number of 63 bits.
        rustix::fs::seek(&dir, SeekFrom::Start(ask.from & i64::MAX as u64))?;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut entries = RawDir::new(&dir, &mut buffer);
        let found = std::iter::from_fn(|| {
            let found = |entry: RawDirEntry<'_>| Found {
                name: Bytes::copy_from_slice(entry.file_name().to_bytes()),
                kind: entry.file_type(),
                next: entry.next_entry_cookie(),
            };
            entries.next().map(|entry| entry.map(found))
        });
        self.list(ask, &dir, watched, found, grants)
    }

    /// A listing of what was found in a directory, as much as one message holds.
    pub(super) fn list(
        &self,
        ask: ReadDir,
        dir: &OwnedFd,
        watched: Option<FileId>,
        found: impl Iterator<Item = Result<Found, Errno>>,
        grants: &mut Vec<Grant>,
    ) -> Result<Listing, Errno> {
        let mut listing = Listing::default();
        let listed = self.list_into(ask, dir, watched, found, &mut listing, grants);
        if listed.is_err() {
            let told = listing.entries.iter().filter_map(|entry| entry.attr);
            told.for_each(|attr| self.untell(attr.node));
        }
        listed.map(|()| listing)
    }

    fn list_into(
        &self,
        ask: ReadDir,
        dir: &OwnedFd,
        watched: Option<FileId>,
        found: impl Iterator<Item = Result<Found, Errno>>,
        listing: &mut Listing,
        grants: &mut Vec<Grant>,
    ) -> Result<(), Errno> {
        let mut failure = None;
        let mut bytes = 0;
        for entry in found {
            let Found { name: raw, kind, next } = entry?;
            let mut unseen = 0;
            let attr = match Name::new(&raw) {
                // Its attributes are not asked for: they are another directory's.
                Err(_) if *raw == *b"." || *raw == *b".." => None,
                Err(_) => continue, // too long for a client
                Ok(name) => match self.named(dir, ask.node, watched, &name, grants) {
                    Ok(attr) => Some(attr),
                    Err(Errno::NOENT) => continue, // gone since
                    // One that cannot be looked at does not take the others with it.
                    Err(_) if ask.all_names && kind != FileType::Unknown => {
                        unseen = kind.as_raw_mode();
                        None
                    }
                    Err(error) => {
                        failure = Some(error);
                        continue;
                    }
                },
            };
            let listed = Listed { name: raw, attr, next, kind: unseen };
            bytes += prost::Message::encoded_len(&listed) + GRANT_BYTES;
            listing.entries.push(listed);
            if bytes > LISTING_BYTES {
                return Ok(());
            }
        }
        listing.at_end = true;
        let is_some = |entry: &Listed| entry.attr.is_some() || entry.kind != 0;
        let some = listing.entries.iter().any(is_some) || ask.from != 0;
        match failure {
            Some(error) if !some => Err(error),
            _ => Ok(()),
        }
    }
}

/// A grant as it travels, with what is said around it, at most.
const GRANT_BYTES: usize = 28;
