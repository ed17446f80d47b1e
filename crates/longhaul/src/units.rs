//! Quantities as people write them: `200ms`, `1Gbit`, `10G`, `64MiB`, `0.1%`, `1bdp`; and what an emulated link may do to
//! packets, as words between colons: `5ms:normal`, `gilbert:1%:30%`.

use std::io::Read;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use longhaul_emulator::aqm::Aqm;
use longhaul_emulator::delay::{Jitter, Shape, table_of};
use longhaul_emulator::dice::Probability;
use longhaul_emulator::link::Reorder;
use longhaul_emulator::loss::LossModel;
use longhaul_emulator::outage::Outage;
use longhaul_emulator::spec::QueueSpec;
use longhaul_emulator::trace::{Step, Trace};

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

/// `0.1%`; `gilbert:1%:30%`; `markov:0.1%:20%`; `burst:0.01%:20`.
pub(crate) fn loss(text: &str) -> Result<LossModel, String> {
    let words: Vec<&str> = text.split(':').collect();
    let chance = |at: usize, default: f64| match words.get(at) {
        Some(word) => probability(word),
        None => Probability::try_from(default).map_err(|e| e.to_string()),
    };
    let between = |least: usize, most: usize, form: &str| match words.len() - 1 {
        count if (least..=most).contains(&count) => Ok(()),
        _ => Err(format!("`{text}` is not a loss model; write `{form}`")),
    };
    match words[0] {
        "gilbert" => {
            between(2, 4, "gilbert:FAIL:RECOVER[:LOSS_IN_BAD[:LOSS_IN_GOOD]]")?;
            let (fail, recover) = (chance(1, 0.0)?, chance(2, 1.0)?);
            Ok(LossModel::GilbertElliott { fail, recover, bad: chance(3, 1.0)?, good: chance(4, 0.0)? })
        }
        "markov" => {
            between(1, 5, "markov:P13[:P31[:P32[:P23[:P14]]]]")?;
            let p13 = chance(1, 0.0)?;
            let p31 = chance(2, 1.0 - p13.get())?;
            Ok(LossModel::Markov {
                p13,
                p31,
                p32: chance(3, 0.0)?,
                p23: chance(4, 1.0)?,
                p14: chance(5, 0.0)?,
            })
        }
        "burst" => {
            between(2, 2, "burst:BEGIN:PACKETS")?;
            let length: NonZeroU32 =
                words[2].parse().map_err(|_| format!("`{}` is not a number of packets", words[2]))?;
            Ok(LossModel::Burst { begin: chance(1, 0.0)?, length })
        }
        _ => {
            between(0, 0, "0.1%`, `gilbert:1%:30%`, `markov:1%:30%` or `burst:0.1%:20")?;
            probability(text).map(LossModel::Random)
        }
    }
}

/// `5ms`, `5ms:normal:corr=25%:overtake`, `table=delays.txt`.
pub(crate) fn jitter(text: &str) -> Result<Jitter, String> {
    let mut words = text.split(':');
    let first = words.next().unwrap_or_default();
    let (spread, mut shape) = match first.strip_prefix("table=") {
        Some(file) => (Duration::from_millis(1), table(file)?),
        None => (duration(first)?, Shape::Uniform),
    };
    let mut jitter =
        Jitter { spread, shape: Shape::Uniform, correlation: Probability::ZERO, overtakes: false };
    for word in words {
        let is_table = matches!(shape, Shape::Table(_));
        match (word, word.strip_prefix("corr=")) {
            ("uniform" | "normal" | "pareto", _) if is_table => {
                return Err(format!("`{text}`: a table is a distribution already"));
            }
            ("uniform", _) => shape = Shape::Uniform,
            ("normal", _) => shape = Shape::Normal,
            ("pareto", _) => shape = Shape::Pareto,
            ("overtake", _) => jitter.overtakes = true,
            (_, Some(correlation)) => jitter.correlation = probability(correlation)?,
            _ => {
                return Err(format!(
                    "`{word}` says nothing of jitter; write `TIME` or `table=FILE`, then any of `:uniform`, `:normal`, \
                     `:pareto`, `:corr=25%`, `:overtake`"
                ));
            }
        }
    }
    jitter.shape = shape;
    Ok(jitter)
}

/// Most that is read of a file that describes a link: half a million measurements.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// A file that describes a link, or a part of one.
pub(crate) fn read_file(file: &str) -> Result<String, String> {
    let mut text = String::new();
    let open = std::fs::File::open(file).map_err(|error| format!("cannot open {file}: {error}"))?;
    open.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read {file}: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{file} is larger than {} MiB", FILE_BYTES_MAX >> 20));
    }
    Ok(text)
}

/// A file in mahimahi's format, or a table of `time,rate,delay,loss` with these names in its first line; `none`.
pub(crate) fn trace(file: &str) -> Result<Trace, String> {
    if file == "none" {
        return Ok(Trace::nothing());
    }
    let text = read_file(file)?;
    let first = text.lines().map(without_remark).find(|line| !line.is_empty());
    let is_table = first.is_some_and(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let trace =
        if is_table { table_of_steps(&text) } else { Trace::from_mahimahi(&text).map_err(|e| e.to_string()) };
    trace.map_err(|error| format!("{file}: {error}"))
}

fn without_remark(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// Lines of a table, each with what it holds from then on; the last may be `60s,repeat`.
fn table_of_steps(text: &str) -> Result<Trace, String> {
    let lines = (1..).zip(text.lines().map(without_remark)).filter(|(_, line)| !line.is_empty());
    let mut lines =
        lines.map(|(number, line)| (number, line.split(',').map(str::trim).collect::<Vec<&str>>()));
    let columns = lines.next().map(|(_, names)| names).unwrap_or_default();
    if let Some(name) = columns.iter().find(|name| !["time", "rate", "delay", "loss"].contains(name)) {
        return Err(format!("no column is called `{name}`; name them `time`, `rate`, `delay` and `loss`"));
    }
    if columns.first() != Some(&"time") {
        return Err("the first column must be `time`".to_owned());
    }
    let (mut steps, mut period) = (Vec::new(), None);
    for (number, fields) in lines {
        let at_line = |error: String| format!("line {number}: {error}");
        if period.is_some() {
            return Err(at_line("nothing can follow `repeat`".to_owned()));
        }
        let mut step = Step { at: duration(fields[0]).map_err(at_line)?, ..Step::default() };
        if fields[1..] == ["repeat"] {
            period = Some(step.at);
            continue;
        }
        if fields.len() != columns.len() {
            return Err(at_line(format!(
                "{} fields where the first line names {}",
                fields.len(),
                columns.len()
            )));
        }
        for (column, field) in columns.iter().zip(&fields).skip(1) {
            match *column {
                "rate" if *field == "0" => step.rate_bps = Some(0),
                "rate" => step.rate_bps = Some(rate(field).map_err(at_line)?),
                "delay" => step.delay = Some(duration(field).map_err(at_line)?),
                "loss" => step.loss = Some(probability(field).map_err(at_line)?),
                _ => return Err(at_line("the time is named twice".to_owned())),
            }
        }
        steps.push(step);
    }
    Trace::new(steps, period).map_err(|error| error.to_string())
}

/// Delays in milliseconds, one a line; what follows a `#` is left out.
fn table(file: &str) -> Result<Shape, String> {
    let text = read_file(file)?;
    let numbers = text.lines().map(without_remark);
    let delays = numbers.filter(|line| !line.is_empty()).map(|line| {
        line.parse::<f64>().map_err(|_| format!("{file}: `{line}` is not a number of milliseconds"))
    });
    table_of(delays.collect::<Result<_, _>>()?).map_err(|error| format!("{file}: {error}"))
}

/// `codel`, `codel:ecn:target=5ms:interval=100ms`, `drd:100:500:ecn`.
pub(crate) fn aqm(text: &str) -> Result<Aqm, String> {
    let bad = || {
        format!(
            "`{text}` manages no queue; write `codel[:target=5ms][:interval=100ms][:ecn]`, the same with `fq_codel`, \
             `drd:MIN:MAX[:ecn]`, or `policer`"
        )
    };
    let words: Vec<&str> = text.split(':').collect();
    match words[..] {
        ["none"] => Ok(Aqm::None),
        ["policer"] => Ok(Aqm::Policer),
        [name @ ("codel" | "fq_codel"), ref options @ ..] => {
            let (mut target, mut interval, mut ecn) = (CODEL_TARGET, CODEL_INTERVAL, false);
            for option in options {
                match option.split_once('=') {
                    None if *option == "ecn" => ecn = true,
                    Some(("target", time)) => target = duration(time)?,
                    Some(("interval", time)) => interval = duration(time)?,
                    _ => return Err(bad()),
                }
            }
            Ok(match name {
                "codel" => Aqm::CoDel { target, interval, ecn },
                _ => Aqm::FqCoDel { target, interval, ecn },
            })
        }
        ["drd", min, max, ref options @ ..] if matches!(options, [] | ["ecn"]) => {
            let min = min.parse().map_err(|_| bad())?;
            let max: NonZeroU64 = max.parse().map_err(|_| bad())?;
            if min > max.get() { Err(bad()) } else { Ok(Aqm::Drd { min, max, ecn: !options.is_empty() }) }
        }
        _ => Err(bad()),
    }
}

// RFC 8289, section 3
const CODEL_TARGET: Duration = Duration::from_millis(5);
const CODEL_INTERVAL: Duration = Duration::from_millis(100);

/// `1%`, `25%:5`.
pub(crate) fn reorder(text: &str) -> Result<Reorder, String> {
    let (chance, gap) = text.split_once(':').unwrap_or((text, "1"));
    let gap = gap.parse().map_err(|_| format!("`{gap}` is not a number of packets"))?;
    Ok(Reorder { probability: probability(chance)?, gap })
}

/// `10s+2s`, `10s+2s/60s`.
pub(crate) fn outage(text: &str) -> Result<Outage, String> {
    let (when, every) = match text.split_once('/') {
        Some((when, every)) => (when, Some(duration(every)?)),
        None => (text, None),
    };
    let (at, lasts) = when.split_once('+').ok_or_else(|| {
        format!(
            "`{text}` is not an outage; write `10s+2s` (after 10 s, for 2 s) or `10s+2s/60s` (each minute)"
        )
    })?;
    let outage = Outage { at: duration(at)?, lasts: duration(lasts)?, every };
    match every {
        Some(every) if every <= outage.lasts => Err(format!("`{text}`: it would never be up again")),
        _ => Ok(outage),
    }
}

/// `1bdp`, `0.5bdp`, `256KiB`, `1000p`.
pub(crate) fn queue(text: &str) -> Result<QueueSpec, String> {
    match split(text)? {
        (number, "bdp" | "BDP") if number > 0.0 => Ok(QueueSpec::Bdp(number)),
        (number, "p" | "packets") if number >= 1.0 && number.fract() == 0.0 => {
            Ok(NonZeroU64::new(number as u64).map_or(QueueSpec::Bytes(0), QueueSpec::Packets))
        }
        _ => size(text).map(QueueSpec::Bytes),
    }
}

/// One value for both ways, or `NEAR_TO_FAR,FAR_TO_NEAR`.
pub(crate) fn each_way<T: Clone>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<[Option<T>; 2], String> {
    match text.split_once(',') {
        None => parse(text).map(|both| [Some(both.clone()), Some(both)]),
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
        assert_eq!(queue("1000p"), Ok(QueueSpec::Packets(NonZeroU64::new(1000).unwrap())));
        assert_eq!(each_way("1G,10M", rate), Ok([Some(1_000_000_000), Some(10_000_000)]));
    }

    fn p(p: f64) -> Probability {
        Probability::try_from(p).unwrap()
    }

    #[test]
    fn what_a_link_may_do() {
        assert_eq!(loss("0.1%"), Ok(LossModel::Random(p(0.001))));
        let gilbert = |bad, good| LossModel::GilbertElliott { fail: p(0.01), recover: p(0.25), bad, good };
        assert_eq!(loss("gilbert:1%:25%"), Ok(gilbert(p(1.0), p(0.0))));
        assert_eq!(loss("gilbert:1%:25%:50%:0.1%"), Ok(gilbert(p(0.5), p(0.001))));
        let netem = LossModel::Markov { p13: p(0.25), p31: p(0.75), p32: p(0.0), p23: p(1.0), p14: p(0.0) };
        assert_eq!(loss("markov:25%"), Ok(netem));
        let burst = LossModel::Burst { begin: p(0.001), length: NonZeroU32::new(20).unwrap() };
        assert_eq!(loss("burst:0.1%:20"), Ok(burst));
        for wrong in ["gilbert:1%", "gilbert:1%:2%:3%:4%:5%", "burst:1%:0", "burst:1%", "1%:2", "markov", ""]
        {
            assert!(loss(wrong).is_err(), "{wrong}");
        }
        let spread = Duration::from_millis(5);
        let plain = Jitter { spread, shape: Shape::Uniform, correlation: p(0.0), overtakes: false };
        assert_eq!(jitter("5ms"), Ok(plain.clone()));
        let all = Jitter { shape: Shape::Pareto, correlation: p(0.25), overtakes: true, ..plain };
        assert_eq!(jitter("5ms:pareto:corr=25%:overtake"), Ok(all));
        assert_eq!([aqm("none"), aqm("policer")], [Ok(Aqm::None), Ok(Aqm::Policer)]);
        let (target, interval) = (CODEL_TARGET, CODEL_INTERVAL);
        assert_eq!(aqm("fq_codel"), Ok(Aqm::FqCoDel { target, interval, ecn: false }));
        assert!(jitter("5ms:gaussian").unwrap_err().contains("normal") && jitter("table=/nowhere").is_err());
        let (target, interval) = (Duration::from_millis(20), CODEL_INTERVAL);
        assert_eq!(aqm("codel:target=20ms:ecn"), Ok(Aqm::CoDel { target, interval, ecn: true }));
        let max = NonZeroU64::new(500).unwrap();
        assert_eq!(aqm("drd:100:500"), Ok(Aqm::Drd { min: 100, max, ecn: false }));
        assert!(
            ["drd:5:4", "drd:1", "codel:fast", "red", "drd:1:2:ecn:x"].iter().all(|text| aqm(text).is_err())
        );
        let gap = |gap| NonZeroU64::new(gap).unwrap();
        assert_eq!(reorder("25%:5"), Ok(Reorder { probability: p(0.25), gap: gap(5) }));
        assert_eq!(reorder("1%"), Ok(Reorder { probability: p(0.01), gap: gap(1) }));
        assert!(reorder("1%:0").is_err());
        let seconds = Duration::from_secs;
        let once = Outage { at: seconds(10), lasts: seconds(2), every: None };
        assert_eq!(outage("10s+2s"), Ok(once));
        assert_eq!(outage("10s+2s/60s"), Ok(Outage { every: Some(seconds(60)), ..once }));
        assert!(outage("10s").is_err() && outage("1s+2s/2s").is_err());
    }

    #[test]
    fn delays_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().to_str().unwrap();
        std::fs::write(name, "# measured\n3.5\n\n1.5 # the least\n2.5\n").unwrap();
        let Ok(Jitter { spread, shape, .. }) = jitter(&format!("table={name}")) else { panic!() };
        assert_eq!((spread, shape), (Duration::from_millis(1), Shape::Table(vec![1.5, 2.5, 3.5])));
        std::fs::write(name, "1\nsoon\n").unwrap();
        assert!(table(name).unwrap_err().contains("`soon` is not a number"));
        std::fs::write(name, "\n").unwrap();
        assert!(table(name).unwrap_err().contains("at least one number"));
    }

    #[test]
    fn traces_from_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().to_str().unwrap();
        let read = |text: &str| {
            std::fs::write(name, text).unwrap();
            trace(name)
        };
        let ms = Duration::from_millis;
        let steps = vec![
            Step { at: ms(0), rate_bps: Some(10_000_000), delay: Some(ms(20)), loss: Some(p(0.0)) },
            Step { at: ms(30_000), rate_bps: Some(0), delay: Some(ms(40)), loss: Some(p(0.01)) },
        ];
        let table =
            "# a train\ntime,rate,delay,loss\n0,10Mbit,20ms,0%\n30s, 0, 40ms, 1% # tunnel\n40s,repeat\n";
        assert_eq!(read(table), Ok(Trace::new(steps, Some(ms(40_000))).unwrap()));
        assert_eq!(read("1\n1\n4\n"), Ok(Trace::from_mahimahi("1\n1\n4\n").unwrap()));
        for (text, what) in [
            ("time,speed\n0,1Gbit\n", "no column is called `speed`"),
            ("rate,time\n1Gbit,0\n", "must be `time`"),
            ("time,rate\n0,1Gbit,5ms\n", "line 2: 3 fields where the first line names 2"),
            ("time,rate\n0,fast\n", "line 2"),
            ("time,rate\n0,1Gbit\n1s,repeat\n2s,1Mbit\n", "nothing can follow"),
            ("time,rate\n0,1Gbit\n1s,0\n", "1 kbit/s"),
            ("time,time\n0,0\n", "twice"),
            ("time\n", "at least one step"),
            ("one\n", "no column"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(what), "{text:?}: {told}");
        }
        assert!(trace("/nowhere").unwrap_err().contains("cannot open"));
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
            let _ = (loss(&text), jitter(&text), reorder(&text), outage(&text), aqm(&text));
            let _ = (table_of_steps(&text), Trace::from_mahimahi(&text));
        }

        #[test]
        fn no_table_panics(lines in prop::collection::vec("[0-9]{1,4}(ms|s)?(,(repeat|[0-9]{1,3}(Mbit|kbit|)))?", 0..9)) {
            let table = format!("time,rate\n{}", lines.join("\n"));
            let _ = (table_of_steps(&table), Trace::from_mahimahi(&lines.join("\n")));
        }
    }
}
