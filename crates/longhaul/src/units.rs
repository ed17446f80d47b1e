//! Quantities as people write them: `200ms`, `1Gbit`, `10G`, `64MiB`, `0.1%`, `1bdp`.

use std::time::Duration;

use longhaul_emulator::loss::Probability;
use longhaul_emulator::spec::QueueSpec;

/// Splits a number from its unit.
fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    // An `e` belongs to the number only before a digit or a sign: `1e-5`, but not `1eB`.
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let exponent = matches!(bytes[end], b'e' | b'E')
            && end > 0
            && bytes.get(end + 1).is_some_and(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+'));
        if exponent {
            end += 2;
        } else if bytes[end].is_ascii_digit() || bytes[end] == b'.' {
            end += 1;
        } else {
            break;
        }
    }
    let number: f64 = text[..end].parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    Ok((number, text[end..].trim()))
}

/// `300ms`, `1.5s`, `20us`, `2min`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" | "sec" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        "" if number == 0.0 => 0.0,
        _ => return Err(format!("`{text}` needs a unit of time: ns, us, ms, s, min or h, as in `200ms`")),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("`{text}` is too long"))
}

/// `1Gbit`, `10G`, `500Mbit/s`, `940Mbps`: bits per second, decimal prefixes. `125MB/s`: bytes per second.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let bad =
        || format!("`{text}` is not a rate; write `1Gbit`, `500M` (bits per second) or `125MB/s` (bytes)");
    let (prefix, rest) = match unit.chars().next() {
        Some('k' | 'K') => (1e3, &unit[1..]),
        Some('M') => (1e6, &unit[1..]),
        Some('G') => (1e9, &unit[1..]),
        Some('T') => (1e12, &unit[1..]),
        _ => (1.0, unit),
    };
    let bits = match rest {
        "" | "bit" | "bit/s" | "bps" | "b/s" => 1.0,
        "B/s" | "Bps" => 8.0,
        _ => return Err(bad()),
    };
    let rate = number * prefix * bits;
    if !(1.0..=1e15).contains(&rate) { Err(bad()) } else { Ok(rate as u64) }
}

/// `64k`, `1MiB`, `10GB`: bytes. Single letters and `KiB`, `MiB` … are powers of 1024, `kB`, `MB` … of 1000.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "k" | "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1024f64.powi(2),
        "G" | "GiB" => 1024f64.powi(3),
        "T" | "TiB" => 1024f64.powi(4),
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return Err(format!("`{text}` is not a size; write `1MiB`, `64k` or `10GB`")),
    };
    let bytes = number * factor;
    if bytes > 9e18 { Err(format!("`{text}` is too large")) } else { Ok(bytes as u64) }
}

/// `0.1%`, `1e-5`, `0.001`.
pub(crate) fn probability(text: &str) -> Result<Probability, String> {
    let (number, unit) = split(text)?;
    let p = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(format!("`{text}` is not a probability; write `0.1%` or `0.001`")),
    };
    Probability::try_from(p).map_err(|e| e.to_string())
}

/// `1bdp`, `0.5bdp`, `256KiB`.
pub(crate) fn queue(text: &str) -> Result<QueueSpec, String> {
    match split(text)? {
        (number, "bdp" | "BDP") if number > 0.0 => Ok(QueueSpec::Bdp(number)),
        _ => size(text).map(QueueSpec::Bytes),
    }
}

/// One value for both ways, or `NEAR_TO_FAR,FAR_TO_NEAR`.
pub(crate) fn each_way<T: Copy>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<[Option<T>; 2], String> {
    match text.split_once(',') {
        None => parse(text).map(|both| [Some(both); 2]),
        Some((forward, backward)) => Ok([Some(parse(forward)?), Some(parse(backward)?)]),
    }
}

/// `1.23 Gbit/s`.
pub(crate) fn show_rate(bits_per_second: f64) -> String {
    let (value, unit) = match bits_per_second {
        r if r >= 1e9 => (r / 1e9, "Gbit/s"),
        r if r >= 1e6 => (r / 1e6, "Mbit/s"),
        r if r >= 1e3 => (r / 1e3, "kbit/s"),
        r => (r, "bit/s"),
    };
    format!("{value:.*} {unit}", if value >= 100.0 { 0 } else { 2 })
}

/// `1.23 GiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    if power == 0 {
        return format!("{bytes} B");
    }
    format!("{:.2} {}", bytes as f64 / 1024f64.powi(power as i32), UNITS[power as usize])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_people_write() {
        assert_eq!(duration("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(duration("1.5 s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(rate("1Gbit"), Ok(1_000_000_000));
        assert_eq!(rate("10G"), Ok(10_000_000_000));
        assert_eq!(rate("940Mbps"), Ok(940_000_000));
        assert_eq!(rate("125MB/s"), Ok(1_000_000_000));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("10GB"), Ok(10_000_000_000));
        assert_eq!(probability("0.1%").map(Probability::get), Ok(0.001));
        assert_eq!(probability("1e-5").map(Probability::get), Ok(1e-5));
        assert_eq!(queue("1bdp"), Ok(QueueSpec::Bdp(1.0)));
        assert_eq!(queue("64k"), Ok(QueueSpec::Bytes(65536)));
        assert_eq!(each_way("1G,10M", rate), Ok([Some(1_000_000_000), Some(10_000_000)]));
    }

    #[test]
    fn what_they_should_be_told() {
        assert!(duration("300").unwrap_err().contains("unit of time"));
        assert!(rate("fast").unwrap_err().contains("number"));
        assert!(rate("0").is_err() && rate("1Xbit").is_err());
        assert!(probability("150%").is_err());
        assert!(size("1 parsec").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = (duration(&text), rate(&text), size(&text), probability(&text), queue(&text));
        }
    }
}
