//! Sets of byte ranges. Pure.

use std::collections::BTreeMap;

/// Disjoint, non-adjacent ranges of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// `0..end`, or nothing when that is empty.
    #[must_use]
    pub fn up_to(end: u64) -> Self {
        let mut set = Self::default();
        set.insert(0, end);
        set
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }

    /// Whether all of `start..end` is in it.
    #[must_use]
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end
            || self.ranges.range(..=start).next_back().is_some_and(|(_, &range_end)| range_end >= end)
    }

    /// Whether something of `start..end` is in it.
    #[must_use]
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end && self.ranges.range(..end).next_back().is_some_and(|(_, &range_end)| range_end > start)
    }

    /// Adds `start..end`.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        // What it touches becomes part of it: first from the left, then everything that begins within.
        if let Some((&left, &left_end)) = self.ranges.range(..=start).next_back()
            && left_end >= start
        {
            start = left;
            end = end.max(left_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(&next);
            end = end.max(next_end);
        }
        self.ranges.insert(start, end);
    }

    /// Takes `start..end` out; says how many bytes were in.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let overlapping: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &range_end)| range_end > start)
            .map(|(&range_start, &range_end)| (range_start, range_end))
            .collect();
        let mut removed = 0;
        for (range_start, range_end) in overlapping {
            self.ranges.remove(&range_start);
            removed += range_end.min(end) - range_start.max(start);
            if range_start < start {
                self.ranges.insert(range_start, start);
            }
            if range_end > end {
                self.ranges.insert(end, range_end);
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut set = RangeSet::default();
        set.insert(0, 10);
        set.insert(20, 30);
        set.insert(10, 20);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(0, 30)]);
        assert_eq!(set.remove(5, 7), 2);
        assert_eq!(set.remove(0, 6), 5);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(7, 30)]);
        assert_eq!(set.remove(0, 100), 23);
        assert!(set.is_empty());
        set.insert(5, 5);
        assert!(set.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u64..200, 0u64..200), 0..60)) {
            let mut set = RangeSet::default();
            let mut bytes = [false; 400];
            for (add, start, len) in steps {
                let end = start + len;
                if add {
                    set.insert(start, end);
                } else {
                    let expected = bytes[start as usize..end as usize].iter().filter(|b| **b).count();
                    prop_assert_eq!(set.contains(start, end), expected == len as usize);
                    prop_assert_eq!(set.overlaps(start, end), expected > 0);
                    prop_assert_eq!(set.remove(start, end), expected as u64);
                }
                bytes[start as usize..end as usize].fill(add);
                let mut seen = [false; 400];
                let mut last_end = None;
                for (s, e) in set.iter() {
                    prop_assert!(s < e && last_end.is_none_or(|l| l < s));
                    last_end = Some(e);
                    seen[s as usize..e as usize].fill(true);
                }
                prop_assert_eq!(seen, bytes);
                prop_assert_eq!(set.bytes(), bytes.iter().filter(|b| **b).count() as u64);
            }
        }
    }
}
