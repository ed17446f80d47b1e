//! Openings for the fuzz targets in `fuzz/`: what reads bytes of peers, and is nobody else's business.

use crate::iperf3::message::{Parameters, Results};
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
