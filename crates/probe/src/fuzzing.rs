//! Openings for the fuzz targets in `fuzz/`: what reads bytes of peers, and is nobody else's business.

use bytes::Bytes;

use crate::iperf3::message::{Parameters, Results};
use crate::path::finding::Finding;
use crate::path::knock::Knock;
use crate::path::message::{Answer, Ask, DiskAsk, Open};
use crate::udp::Account;

/// Parameters of a client, written again.
#[must_use]
pub fn parameters(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(Parameters::from_bytes(bytes).ok()?.to_json().to_string().into_bytes())
}

/// Results of a test of so many streams, written again.
#[must_use]
pub fn results(bytes: &[u8], streams: usize) -> Option<Vec<u8>> {
    Some(Results::from_bytes(bytes, streams).ok()?.to_json().to_string().into_bytes())
}

/// Packets of a stream: known to have been sent, lost, bytes.
#[must_use]
pub fn packets<'a>(packets: impl Iterator<Item = &'a [u8]>, wide: bool) -> (u64, i64, u64) {
    let mut account = Account::default();
    packets.for_each(|packet| account.note(packet, wide, 1_000_000));
    let counts = account.counts();
    (counts.packets, counts.lost, counts.bytes)
}

/// A client's request about tests of a path, written again. What is wanted and can be had says the same once more.
#[must_use]
pub fn path_request(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut ask = Ask::from_bytes(Bytes::copy_from_slice(bytes))?;
    match &mut ask {
        Ask::Open(open) => {
            if let Ok(wish) = open.clone().wish() {
                *open = Open::of(&wish);
            }
        }
        Ask::Disk(disk) => {
            if let Ok((directory, time)) = disk.wish() {
                *disk = DiskAsk::new(&directory, time);
            }
        }
        _ => {}
    }
    Some(ask.into_bytes().to_vec())
}

/// A server's answer, written again, and how much of what it says of a test of so many flows is taken: words, settings, flows.
#[must_use]
pub fn path_answer(bytes: &[u8], flows: usize) -> Option<(Vec<u8>, usize)> {
    let answer = Answer::from_bytes(Bytes::copy_from_slice(bytes))?;
    let taken = match answer.clone() {
        Answer::Refused(_) | Answer::Disk(_) | Answer::Findings(_) | Answer::Clock(_) => 0,
        Answer::Facts(facts) => facts.host().settings.len(),
        Answer::Opened(opened) => opened.parts(flows).map_or(0, |(_, ports)| ports.len()),
        Answer::Seen(seen) => seen.seen(flows).map_or(0, |seen| seen.flows.len()),
    };
    Some((answer.into_bytes().to_vec(), taken))
}

/// Mbit/s that a server says of its disk, writing and reading; or how many letters it says instead.
#[must_use]
pub fn disk_answer(bytes: &[u8]) -> Option<Result<[f64; 2], usize>> {
    let Answer::Disk(disk) = Answer::from_bytes(Bytes::copy_from_slice(bytes))? else { return None };
    let outcome = disk.outcome()?;
    Some(outcome.map(|disk| [disk.write.mbps(), disk.read.mbps()]).map_err(|words| words.chars().count()))
}

/// How many findings of a server's about its host are taken, and letters of the longest part of one; control characters are not.
#[must_use]
pub fn findings_answer(bytes: &[u8]) -> Option<(usize, usize)> {
    let Answer::Findings(findings) = Answer::from_bytes(Bytes::copy_from_slice(bytes))? else { return None };
    let findings = findings.findings();
    let parts = findings.iter().flat_map(|finding| {
        let Finding { subject, what, why, todo, .. } = finding;
        [subject, what, why].into_iter().chain(todo)
    });
    let longest = parts.map(|part| {
        assert!(!part.contains(char::is_control));
        part.chars().count()
    });
    Some((findings.len(), longest.max().unwrap_or(0)))
}

/// A datagram by which a flow proves itself, written again.
#[must_use]
pub fn knock(bytes: &[u8]) -> Option<Vec<u8>> {
    Knock::decode(bytes).map(|knock| knock.encode().to_vec())
}
