//! Changes that are asked for once more, as the server before has died: what they have come to, or seem to.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::coherence::Change;
use super::nodes::stat_at;
use super::operations::{Mounted, OPEN_FLAGS, name};
use super::replies::Before;
use super::{Step, carry_out};
use crate::message::{
    Ask, Count, Create, Created, Grant, Loser, Node, Nothing, Open, Place, Rename, Reply, SESSION_OVER, Slot,
    Written,
};

/// Carries out a change that is to be carried out once; what becomes of it is kept.
pub(super) fn carry_out_once(mounted: &Mounted, ask: &Ask, slot: Slot, change: Option<Arc<Change>>) -> Step {
    let Some(mount) = mounted.mount else { return carry_out(mounted, ask, change) };
    let replies = &mounted.grace.replies;
    let before = replies.before(mount, slot);
    if let Before::Over(outcome) = before {
        return match outcome {
            Ok(said) => answer_again(mounted, ask, said, change),
            Err(errno) => Step::Done(Reply::failed(errno)),
        };
    }
    let begun = replies.change(mount, slot);
    let step = carry_out(mounted, ask, change.clone());
    let (Step::Done(reply) | Step::DoneWhen(reply, _)) = &step else { return step };
    let mut outcome = said(ask, reply);
    let seems_done = match outcome {
        Some(Err(errno)) if before == Before::Perhaps => mounted.seems_done(ask, errno),
        _ => None,
    };
    if let Some(said) = seems_done {
        outcome = Some(Ok(said));
    }
    if let Some(begun) = begun {
        match outcome {
            Some(outcome) => begun.end(outcome),
            None => begun.undo(),
        }
    }
    match seems_done {
        Some(said) => answer_again(mounted, ask, said, change),
        None => step,
    }
}

/// What there is to keep of a reply: the node that has been made or moved, or a count. `None`: it has not been carried out.
fn said(ask: &Ask, reply: &Reply) -> Option<Result<u64, Errno>> {
    if reply.error == SESSION_OVER.raw_os_error() {
        return None;
    }
    if reply.error != 0 {
        return Some(Err(Errno::from_raw_os_error(reply.error)));
    }
    let outcome = Bytes::clone(&reply.outcome);
    Some(Ok(match ask {
        Ask::Make(_) | Ask::Link(_) => Node::decode(outcome).ok()?.attr.node,
        Ask::Create(_) => Created::decode(outcome).ok()?.node.attr.node,
        Ask::Rename(_) => Loser::decode(outcome).ok()?.moved,
        Ask::CopyRange(_) => Count::decode(outcome).ok()?.count,
        // The name is there still, and the lease that hides it is not.
        Ask::Remove(_) if Loser::decode(outcome).ok()?.kept != 0 => return None,
        _ => 0,
    }))
}

/// The answer to a change that has been made.
fn answer_again(mounted: &Mounted, ask: &Ask, said: u64, change: Option<Arc<Change>>) -> Step {
    let mut grants = Vec::new();
    let some = &mut grants;
    let reply = match ask {
        Ask::Create(ask) => match mounted.create_again(ask, said, some) {
            Ok((created, change)) => return Step::DoneWhen(Reply::new(Ok(created), grants), change),
            Err(errno) => Reply::failed(errno),
        },
        Ask::Make(ask) => Reply::new(mounted.made((ask.parent, &ask.name), said, some), grants),
        Ask::Link(ask) => Reply::new(mounted.made((ask.parent, &ask.name), said, some), grants),
        Ask::Open(ask) => {
            let flags = OFlags::from_bits_retain(ask.flags).difference(OFlags::TRUNC).bits();
            Reply::new(mounted.open(Open { flags, ..*ask }, change, some), grants)
        }
        // What others have made of the name since is asked for when somebody looks.
        Ask::Remove(ask) => {
            Reply::new(Ok(Loser { dir: mounted.changed_dir(ask.parent), ..Loser::default() }), grants)
        }
        Ask::Rename(ask) => Reply::new(Ok(mounted.moved(ask, said)), grants),
        Ask::SetAttr(ask) => Reply::new(mounted.attr_of(ask.node, some), grants),
        Ask::CopyRange(_) => Reply::new(Ok(Count { count: said }), grants),
        Ask::Write(_) => Reply::new(Ok(Written::default()), grants),
        _ => Reply::new(Ok(Nothing {}), grants),
    };
    Step::Done(reply)
}

impl Mounted {
    /// What a change has made, if its name leads there still.
    fn made(&self, (dir, raw): (u64, &Bytes), node: u64, grants: &mut Vec<Grant>) -> Result<Node, Errno> {
        let name = name(raw)?;
        let there = stat_at(&*self.nodes.fd(dir)?, &name).map_or(0, |there| self.nodes.number(&there));
        // It was made, and somebody has removed it since: the kernel looks again, and asks anew.
        if there != node {
            return Err(Errno::STALE);
        }
        Ok(Node { dir: self.changed_dir(dir), ..self.node(dir, &name, grants)? })
    }

    fn create_again(
        &self,
        ask: &Create,
        node: u64,
        grants: &mut Vec<Grant>,
    ) -> Result<(Created, Arc<Change>), Errno> {
        let there = stat_at(&*self.nodes.fd(ask.parent)?, &name(&ask.name)?);
        if there.map_or(0, |there| self.nodes.number(&there)) != node {
            return Err(Errno::STALE);
        }
        let flags = OFlags::from_bits_retain(ask.flags) & OPEN_FLAGS.difference(OFlags::TRUNC);
        self.create_with(ask, flags, grants)
    }

    /// The client has told of the node that it has moved where that was before, and it has not been found there.
    fn moved(&self, ask: &Rename, node: u64) -> Loser {
        let (parent, name) = (ask.new_parent, ask.new_name.clone());
        let is_lost = node != 0 && self.nodes.file(node).is_err();
        let is_found = is_lost && self.nodes.reclaim(&Place { node, parent, name, times: 1 });
        // As if there had been two names of it: nothing is said of the old one, which others may have made anew.
        let moved = if is_found { node } else { 0 };
        let (dir, new_dir) = (self.changed_dir(ask.parent), self.changed_dir(ask.new_parent));
        Loser { node: moved, moved, dir, new_dir, kept: 0 }
    }

    /// Whether a change that has just failed, and may have been made before, was: what is there is what it would have made. As above:
    /// what is to be said.
    fn seems_done(&self, ask: &Ask, errno: Errno) -> Option<u64> {
        let there = |dir: u64, raw: &Bytes| stat_at(&*self.nodes.fd(dir).ok()?, &name(raw).ok()?).ok();
        match (ask, errno) {
            (Ask::Make(ask), Errno::EXIST) => {
                let stat = there(ask.parent, &ask.name)?;
                let kind = FileType::from_raw_mode(stat.stx_mode.into());
                let is_it = kind == FileType::from_raw_mode(ask.mode)
                    && (kind != FileType::Symlink || self.leads_to(ask.parent, &ask.name, &ask.target));
                is_it.then(|| self.nodes.number(&stat))
            }
            (Ask::Create(ask), Errno::EXIST) => {
                let stat = there(ask.parent, &ask.name)?;
                let kind = FileType::from_raw_mode(stat.stx_mode.into());
                (kind == FileType::RegularFile && stat.stx_size == 0).then(|| self.nodes.number(&stat))
            }
            (Ask::Link(ask), Errno::EXIST) => {
                let node = self.nodes.number(&there(ask.parent, &ask.name)?);
                (node == ask.node).then_some(node)
            }
            // Whoever removes or moves a name has just looked it up.
            (Ask::Remove(_), Errno::NOENT) => Some(0),
            (Ask::Rename(ask), Errno::NOENT) => there(ask.new_parent, &ask.new_name).map(|_| 0),
            _ => None,
        }
    }

    fn leads_to(&self, dir: u64, raw: &Bytes, target: &[u8]) -> bool {
        let (Ok(dir), Ok(name)) = (self.nodes.fd(dir), name(raw)) else { return false };
        rustix::fs::readlinkat(&*dir, name.as_os_str(), Vec::new()).is_ok_and(|to| to.as_bytes() == target)
    }
}
