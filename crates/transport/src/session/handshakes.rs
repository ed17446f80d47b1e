//! Connections whose peers have not been let in yet: how many there are, in all and from one source.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE_MAX};

/// Counts them.
#[derive(Clone, Debug, Default)]
pub(super) struct Handshakes {
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Unfinished {
    source: IpAddr,
    handshakes: Handshakes,
}

impl Handshakes {
    /// One more from this address; `None` when it, or everybody together, has too many.
    pub(super) fn begin(&self, from: IpAddr) -> Option<Unfinished> {
        let source = source(from);
        let mut counts = self.lock();
        if counts.all >= HANDSHAKES_MAX {
            return None;
        }
        let here = counts.by_source.entry(source).or_default();
        if *here >= HANDSHAKES_PER_SOURCE_MAX {
            return None;
        }
        *here += 1;
        counts.all += 1;
        Some(Unfinished { source, handshakes: self.clone() })
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut counts = self.handshakes.lock();
        counts.all -= 1;
        if let Some(here) = counts.by_source.get_mut(&self.source) {
            *here -= 1;
            if *here == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

/// Who is behind an address: a host has a whole /64 of IPv6.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (!0 << 64)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_source_leaves_room_for_others() {
        let handshakes = Handshakes::default();
        let held: Vec<_> = (0..HANDSHAKES_PER_SOURCE_MAX)
            .map(|i| handshakes.begin(address(&format!("2001:db8:0:1::{i:x}"))).unwrap())
            .collect();
        assert!(handshakes.begin(address("2001:db8:0:1:ffff::")).is_none());
        let others =
            ["2001:db8:0:2::", "192.0.2.1", "::ffff:192.0.2.1"].map(|a| handshakes.begin(address(a)));
        assert!(others.iter().all(Option::is_some));
        assert_eq!(handshakes.lock().by_source[&address("192.0.2.1")], 2);
        drop((held, others));
        assert!(handshakes.lock().by_source.is_empty());
        assert_eq!(handshakes.count(), 0);
    }

    #[test]
    fn all_together_are_bounded() {
        let handshakes = Handshakes::default();
        let held: Vec<_> =
            (0..2 * HANDSHAKES_MAX as u32).filter_map(|i| handshakes.begin(IpAddr::V4(i.into()))).collect();
        assert_eq!(held.len(), HANDSHAKES_MAX);
    }
}
