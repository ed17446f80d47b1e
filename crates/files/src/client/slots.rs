//! Numbers by which a server knows a change that it is asked for once more.

use std::sync::Mutex;

use super::lock;
use crate::limits::SLOTS_MAX;
use crate::message::Slot;

/// Those of a mount, in all its sessions. There are as many as it has ever had changes under way.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// And the sequence of the change that had it last. The one that was given back last is taken first, so that few are in use.
    free: Vec<Slot>,
    count: u32,
}

/// One that a change has; it is given back when nobody waits for the change any more.
#[derive(Debug)]
pub(super) struct TakenSlot<'a> {
    slots: &'a Slots,
    slot: Slot,
}

impl Slots {
    /// One for a change; `None`: there are too many under way.
    pub(super) fn take(&self) -> Option<TakenSlot<'_>> {
        let mut table = lock(&self.0);
        let last = match table.free.pop() {
            Some(slot) => slot,
            None if table.count < SLOTS_MAX => {
                table.count += 1;
                Slot { number: table.count - 1, ..Slot::default() }
            }
            None => return None,
        };
        Some(TakenSlot { slots: self, slot: Slot { sequence: last.sequence + 1, ..last } })
    }
}

impl TakenSlot<'_> {
    /// As it is asked for at first.
    pub(super) fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for TakenSlot<'_> {
    fn drop(&mut self) {
        lock(&self.slots.0).free.push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_under_way_are_told_apart_and_later_ones_from_those_before() {
        let slots = Slots::default();
        let (one, other) = (slots.take().unwrap(), slots.take().unwrap());
        assert_ne!(one.slot().number, other.slot().number);
        let (number, sequence) = (one.slot().number, one.slot().sequence);
        drop(one);
        let next = slots.take().unwrap();
        assert_eq!(next.slot(), Slot { number, sequence: sequence + 1, ..Slot::default() });
        let all: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all.len(), SLOTS_MAX as usize - 2);
        drop(other);
        assert!(slots.take().is_some());
    }
}
