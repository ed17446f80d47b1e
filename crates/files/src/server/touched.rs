//! Which files an operation changes, shows, or uses bytes of: who knows more of these, or keeps something of them, is asked first.

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::nodes::{file_id, stat_at};
use super::operations::{Mounted, may_write, name};
use crate::lease::FileId;
use crate::message::Ask;
use crate::pages::Use;

/// See [`Mounted::touched`].
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) files: Vec<FileId>,
    pub(super) dirs: Vec<FileId>,
}

impl Mounted {
    /// Which files an operation will change, and in which directories it will change names; `None`: it changes
    /// nothing, or an open file that is being changed for as long as it is open.
    pub(super) fn touched(&self, ask: &Ask) -> Result<Option<Touched>, Errno> {
        let mut touched = Touched::default();
        match ask {
            Ask::SetAttr(ask) => touched.files.push(self.nodes.file(ask.node)?),
            Ask::SetXattr(ask) => touched.files.push(self.nodes.file(ask.node)?),
            Ask::RemoveXattr(ask) => touched.files.push(self.nodes.file(ask.node)?),
            Ask::Open(ask) => {
                let flags = OFlags::from_bits_retain(ask.flags);
                if !may_write(flags) && !flags.contains(OFlags::TRUNC) {
                    return Ok(None);
                }
                touched.files.push(self.nodes.file(ask.node)?);
            }
            Ask::Make(ask) => self.touch_name(ask.parent, &ask.name, &mut touched)?,
            Ask::Create(ask) => self.touch_name(ask.parent, &ask.name, &mut touched)?,
            Ask::Remove(ask) => self.touch_name(ask.parent, &ask.name, &mut touched)?,
            Ask::Link(ask) => {
                touched.files.push(self.nodes.file(ask.node)?);
                self.touch_name(ask.parent, &ask.name, &mut touched)?;
            }
            Ask::Rename(ask) => {
                self.touch_name(ask.parent, &ask.name, &mut touched)?;
                self.touch_name(ask.new_parent, &ask.new_name, &mut touched)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(touched))
    }

    /// Which files an operation shows, or copies from: another client may know more of them.
    pub(super) fn looked_at(&self, ask: &Ask) -> Vec<FileId> {
        let of_open = |file: u64| self.nodes.file(self.files.get(file)?.node);
        let found = match ask {
            Ask::GetAttr(ask) => self.nodes.file(ask.node),
            // It shows nothing.
            Ask::Open(ask) if ask.reclaims => return Vec::new(),
            Ask::Open(ask) => self.nodes.file(ask.node),
            Ask::Read(ask) => of_open(ask.file),
            Ask::Seek(ask) => of_open(ask.file),
            Ask::CopyRange(ask) => of_open(ask.from_file),
            Ask::ReadDir(ask) => self.nodes.file(ask.node),
            Ask::Lookup(ask) => {
                let named = self.nodes.fd(ask.parent).and_then(|dir| {
                    let stat = stat_at(&*dir, &name(&ask.name)?)?;
                    Ok(file_id(&stat))
                });
                return self.nodes.file(ask.parent).into_iter().chain(named).collect();
            }
            _ => return Vec::new(),
        };
        found.into_iter().collect() // what is wrong shows when it is carried out
    }

    /// Of which files an operation uses bytes, and how.
    pub(super) fn used_bytes(&self, ask: &Ask) -> [Option<(FileId, Use)>; 2] {
        let of = |node: u64, what| Some((self.nodes.file(node).ok()?, what));
        let of_open = |file: u64, what| {
            let file = self.files.get(file).ok()?;
            // What will be refused disturbs nobody.
            if what == Use::Look || file.is_written() { of(file.node, what) } else { None }
        };
        match ask {
            Ask::Read(ask) => [of_open(ask.file, Use::Look), None],
            Ask::Seek(ask) => [of_open(ask.file, Use::Look), None],
            Ask::CopyRange(ask) => [of_open(ask.from_file, Use::Look), of_open(ask.to_file, Use::Change)],
            Ask::Write(ask) => [of_open(ask.file, if ask.later { Use::Change } else { Use::Write }), None],
            Ask::Allocate(ask) => [of_open(ask.file, Use::Change), None],
            Ask::SetAttr(ask) if ask.size.is_some() && !self.read_only => [of(ask.node, Use::Change), None],
            Ask::Open(ask) if OFlags::from_bits_retain(ask.flags).contains(OFlags::TRUNC) => {
                [if self.read_only { None } else { of(ask.node, Use::Change) }, None]
            }
            // Small ones are shown.
            Ask::Open(ask) if !ask.reclaims => [of(ask.node, Use::Look), None],
            _ => [None, None],
        }
    }

    fn touch_name(&self, parent: u64, raw: &Bytes, touched: &mut Touched) -> Result<(), Errno> {
        let dir = self.nodes.file(parent)?;
        touched.files.push(dir);
        touched.dirs.push(dir);
        if let Ok(stat) = stat_at(&*self.nodes.fd(parent)?, &name(raw)?) {
            touched.files.push(file_id(&stat));
        }
        Ok(())
    }
}
