//! What TCP can reach by the book. Pure. Rates are bits of payload a second.

/// One window in each round-trip time: RFC 6349, 3.3.1.
#[must_use]
pub fn window_rate(window_bytes: f64, rtt_s: f64, streams: u32) -> f64 {
    window_bytes * 8.0 * f64::from(streams) / rtt_s.max(1e-9)
}

/// MSS / RTT x sqrt(3/2) / sqrt(p): Mathis, Semke, Mahdavi, Ott, The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997.
/// For Reno; CUBIC is above it on long paths, BBR does not follow it. `None` without loss.
#[must_use]
pub fn mathis_rate(mss_bytes: f64, rtt_s: f64, loss: f64, streams: u32) -> Option<f64> {
    let rate = mss_bytes * 8.0 / rtt_s.max(1e-9) * (1.5f64 / loss).sqrt() * f64::from(streams);
    (loss > 0.0 && rate.is_finite()).then_some(rate)
}

/// What is left for TCP's payload of a rate of the wire, in packets of the path's MTU (1500 where it is not known): headers of IPv4 and
/// TCP with times are 52 bytes, Ethernet's 38.
#[must_use]
pub fn payload_rate(wire: f64, mtu_bytes: Option<u32>) -> f64 {
    let mtu = f64::from(mtu_bytes.unwrap_or(1500).clamp(576, 9000));
    wire * (mtu - 52.0) / (mtu + 38.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_what_headers_leave() {
        assert!((payload_rate(1538.0, None) - 1448.0).abs() < 1e-9);
        assert!((payload_rate(9038.0, Some(9000)) - 8948.0).abs() < 1e-9);
    }

    #[test]
    fn rates_are_those_of_the_books() {
        // RFC 6349, 3.3.1: a window of 64 KiB over 25 ms is 20.97 Mbit/s.
        let window = window_rate(65_536.0, 0.025, 1);
        assert!((window - 20.97e6).abs() < 1e4, "{window}");
        let mathis = mathis_rate(1460.0, 0.1, 0.0001, 1).unwrap();
        assert!((mathis - 14.3e6).abs() < 1e5, "{mathis}");
        assert_eq!(mathis_rate(1460.0, 0.1, 0.0, 1), None);
        assert_eq!(mathis_rate(1460.0, 0.1, 0.01, 4), mathis_rate(1460.0, 0.1, 0.01, 1).map(|one| 4.0 * one));
    }
}
