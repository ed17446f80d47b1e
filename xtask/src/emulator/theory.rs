//! What a link should make of traffic, by arithmetic alone.

/// What Ethernet adds to an IP packet on the wire (IEEE 802.3), as the emulator charges it.
const ETHERNET_BYTES: f64 = 38.0;
/// Of a host's interface.
const MTU_BYTES: f64 = 1500.0;
/// IPv4 20, UDP 8.
const UDP_HEADERS_BYTES: f64 = 28.0;

/// Payload of a full TCP segment: IPv4 takes 20 of the 1500 bytes, TCP with timestamps 32.
pub(super) const TCP_PAYLOAD_BYTES: f64 = 1448.0;

/// Payload of the largest UDP datagram that is one packet.
pub(super) const UDP_PAYLOAD_BYTES: f64 = MTU_BYTES - UDP_HEADERS_BYTES;

/// The share of the wire that is payload, in full TCP segments.
pub(super) fn tcp_share() -> f64 {
    TCP_PAYLOAD_BYTES / (MTU_BYTES + ETHERNET_BYTES)
}

/// The share of the wire that is payload, in full UDP datagrams.
pub(super) fn udp_share() -> f64 {
    UDP_PAYLOAD_BYTES / (MTU_BYTES + ETHERNET_BYTES)
}

/// Bits per second of TCP payload that one stream keeps up while it loses a share `loss` of its packets (M. Mathis,
/// J. Semke, J. Mahdavi, T. Ott: The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997).
///
/// The constant is sqrt(3/2), theirs for a receiver that acknowledges every packet: Linux's receivers delay
/// acknowledgements, but its senders count packets acknowledged and not acknowledgements (`tcp_cong_avoid_ai`), as RFC 3465
/// does, so the window grows by a packet a round trip all the same. CUBIC aims at the same mean window where it is
/// friendly to Reno (RFC 9438, section 4.3): for round trips below ~1.2 s x cube root of the loss, where its own curve grows
/// more slowly.
pub(super) fn mathis_bps(rtt_seconds: f64, loss: f64) -> f64 {
    TCP_PAYLOAD_BYTES * 8.0 / rtt_seconds * 1.5f64.sqrt() / loss.sqrt()
}

/// Bits per second of a stream that a window limits.
pub(super) fn window_bps(window_bytes: f64, rtt_seconds: f64) -> f64 {
    window_bytes * 8.0 / rtt_seconds
}

/// Where 99 % of all counts lie of what happens to each of `trials` with a chance of `share`, by the normal approximation:
/// good while both what happens and what does not are many.
pub(super) fn interval_99(trials: u64, share: f64) -> (f64, f64) {
    const QUANTILE: f64 = 2.5758;
    let trials = trials as f64;
    let half = QUANTILE * (trials * share * (1.0 - share)).sqrt();
    (trials * share - half, trials * share + half)
}

/// The value that a share of all are not above; `None` without any.
pub(super) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not {expected}");
    }

    #[test]
    fn a_gigabit_of_the_wire_carries_941_megabits_of_tcp() {
        assert_near(1e9 * tcp_share(), 941.48e6);
        assert_near(1e9 * udp_share(), 957.09e6);
    }

    #[test]
    fn mathis() {
        // 1448 bytes, 100 ms, 1 in 10,000: 122 packets a round trip.
        assert_near(mathis_bps(0.1, 1e-4), 14.187e6);
        assert_near(mathis_bps(0.001, 1e-4), 1.4187e9);
        assert_near(mathis_bps(0.1, 1e-2), 1.4187e6);
    }

    #[test]
    fn a_window_a_round_trip() {
        // UsadaFox: 46.87 MB in 200 ms are 234.35 MB/s.
        assert_near(window_bps(46.87e6, 0.2) / 8e6, 234.35);
    }

    #[test]
    fn counts_of_a_million() {
        let (low, high) = interval_99(1_000_000, 0.01);
        assert_near(low, 9743.7);
        assert_near(high, 10256.3);
        assert_eq!(interval_99(1000, 0.0), (0.0, 0.0));
    }

    #[test]
    fn quantiles() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.5), Some(50.0));
        assert_eq!(quantile(&hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&hundred, 1.0), Some(100.0));
        assert_eq!(quantile(&[7.0], 0.0), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
