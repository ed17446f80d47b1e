//! Requests and replies of a copy, bundles, journals, ranges, patterns.

use longhaul_copy::Excludes;
use longhaul_copy::fuzzing::{self, BundledFile, OfferedEntry};
use longhaul_copy::limits::{LINK_TARGET_BYTES_MAX, OFFER_ENTRIES_MAX, RANGES_MAX};
use longhaul_files::Name;
use longhaul_files::limits::XATTRS_MAX;
use longhaul_transport::limits::FRAME_PAYLOAD_MAX;

use crate::script::Script;
use crate::{assert_stable, text};

/// Requests and replies of all kinds: what is asked for of a file lies within it.
pub fn copy_messages(data: &[u8]) {
    assert_stable(data, fuzzing::request);
    for kind in 0..4 {
        assert_stable(data, |bytes| fuzzing::replies(bytes)[kind].clone());
    }
    for size in [0, 1000, u64::MAX] {
        for part in fuzzing::wanted_parts(data, size).unwrap_or_default() {
            assert_ranges(&part, size);
        }
    }
}

/// An offer: every entry that passes can be acted on without a further look.
pub fn copy_offer(data: &[u8]) {
    let Some(entries) = fuzzing::offer(data) else { return };
    assert!(entries.len() <= OFFER_ENTRIES_MAX);
    entries.iter().for_each(assert_entry);
}

fn assert_entry(entry: &OfferedEntry) {
    assert!(entry.id != 0);
    match &entry.name {
        Some(name) => assert!(Name::new(name).is_ok()),
        None => assert!(entry.is_directory, "only directories may go without a name: {entry:?}"),
    }
    if let Some((size, ranges)) = &entry.file {
        assert_ranges(ranges, *size);
    }
    if let Some(target) = &entry.link_target {
        assert!(!target.is_empty() && target.len() <= LINK_TARGET_BYTES_MAX && !target.contains(&0));
    }
    assert!(entry.mode <= 0o7777 && entry.modified_ns < 1_000_000_000);
    assert!(entry.xattrs.len() <= XATTRS_MAX);
}

/// In order, disjoint, not empty, within a file that can be.
fn assert_ranges(ranges: &[(u64, u64)], size: u64) {
    assert!(size <= i64::MAX as u64 && ranges.len() <= RANGES_MAX);
    assert!(ranges.iter().all(|&(start, end)| start < end && end <= size));
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}

/// A bundle of small files: no more comes out than goes in, and the same comes out of what is made of it.
pub fn bundle(data: &[u8]) {
    let (files, damaged) = fuzzing::bundle(data);
    let bytes_of = |(_, content): &BundledFile| 16 + content.as_ref().map_or(0, Vec::len);
    assert!(files.iter().map(bytes_of).sum::<usize>() <= data.len());
    assert!(damaged || !files.is_empty() || data.is_empty());
    assert_eq!(fuzzing::bundle(&fuzzing::make_bundle(&files)), (files, false));
}

/// A journal, as found or as a crash leaves it: parts of frames, within the file, up to the first that is torn.
pub fn journal(data: &[u8]) {
    let mut script = Script::new(data);
    match script.u8() % 2 {
        0 => assert_journal(script.rest()),
        _ => {
            let size = script.u64();
            let harm = (script.u16(), script.u8());
            let mut parts = Vec::new();
            while !script.is_over() && parts.len() < 100 {
                parts.push((script.u64(), script.u32()));
            }
            let mut bytes = fuzzing::make_journal(size, &parts);
            let good = |part: &&(u64, u32)| {
                part.1 as usize <= FRAME_PAYLOAD_MAX
                    && part.0.checked_add(part.1.into()).is_some_and(|end| end <= size)
            };
            let whole: Vec<_> = parts.iter().take_while(good).copied().collect();
            assert_eq!(fuzzing::journal(&bytes).map(|read| read.parts), Some(whole.clone()));
            let at = usize::from(harm.0) % bytes.len();
            bytes[at] ^= harm.1;
            assert_journal(&bytes);
            let cut = fuzzing::journal(&bytes[..at]).map_or(Vec::new(), |read| read.parts);
            assert!(whole.starts_with(&cut), "a torn journal tells something new");
        }
    }
}

fn assert_journal(bytes: &[u8]) {
    let Some(read) = fuzzing::journal(bytes) else { return };
    assert!(read.again.len() <= bytes.len());
    assert_eq!(fuzzing::journal(&read.again), Some(read.clone()));
    for &(offset, length) in &read.parts {
        assert!(length as usize <= FRAME_PAYLOAD_MAX && offset + u64::from(length) <= read.size);
    }
    assert!(read.bytes <= read.size);
    assert!(read.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "ranges that touch are one");
}

/// A set of ranges, against the slow way: a mark for each cell between the 256 places that a byte can name.
pub fn ranges(data: &[u8]) {
    // Both ends of what there is, where sums overflow.
    let place = |byte: u8| if byte < 200 { u64::from(byte) } else { u64::MAX - u64::from(255 - byte) };
    let mut steps = Vec::new();
    let mut cells = [false; 255];
    let mut removed = Vec::new();
    for step in data.as_chunks::<3>().0.iter().take(500) {
        let (add, start, end) = (step[0] % 2 == 0, step[1], step[2]);
        steps.push((add, place(start), place(end)));
        let touched = if start < end { usize::from(start)..usize::from(end) } else { 0..0 };
        if !add {
            let bytes = touched.clone().filter(|&cell| cells[cell]);
            removed.push(bytes.map(|cell| place(cell as u8 + 1) - place(cell as u8)).sum());
        }
        cells[touched].fill(add);
    }
    let mut expected: Vec<(u64, u64)> = Vec::new();
    for cell in (0..255u8).filter(|&cell| cells[usize::from(cell)]) {
        match expected.last_mut() {
            Some(last) if last.1 == place(cell) => last.1 = place(cell + 1),
            _ => expected.push((place(cell), place(cell + 1))),
        }
    }
    let (set, taken) = fuzzing::range_steps(&steps);
    assert_eq!((&set, &taken), (&expected, &removed));
    let (sent, accepted) = fuzzing::sent_ranges(&set, i64::MAX as u64);
    assert_eq!(sent, set);
    assert_eq!(accepted, set.last().is_none_or(|last| last.1 <= i64::MAX as u64));
}

/// Patterns of a peer, one a line, the last line being a path to try: they are understood or refused, in bounded time
/// and memory.
pub fn excludes(data: &[u8]) {
    let (patterns, path) = match data.iter().rposition(|&b| b == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b"a/b.o"[..]),
    };
    let Some(patterns) = text(patterns) else { return };
    let patterns: Vec<&str> = patterns.split('\n').collect();
    let Ok(excludes) = Excludes::new(&patterns) else { return };
    let (as_file, as_dir) = (excludes.matches(path, false), excludes.matches(path, true));
    assert!(as_dir || !as_file, "what leaves out a file leaves out a directory of that name");
    let single = patterns.iter().map(|pattern| Excludes::new(&[pattern]));
    let single = single.map(|one| one.is_ok_and(|one| one.matches(path, true)));
    assert_eq!(single.fold(false, |any, one| any | one), as_dir, "one by one");
}
