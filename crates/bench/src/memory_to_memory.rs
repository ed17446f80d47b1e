//! TCP and UDP from the memory of one host to that of the other: longhaul and iperf3, each with itself at both ends, by the same words.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::iperf3::Ended;
use crate::limited::{Limited, Words, last_words};
use crate::link::{Host, Network};
use crate::server::Listener;
use crate::tool::Package;

/// The rival's package.
pub const IPERF3: Package = Package { name: "iperf3", program: "iperf3" };

/// Where both listen.
const PORT: u16 = 5201;

/// Beyond the time of the test itself: what is omitted at its start, and what many streams over a long path take to end.
const PATIENCE: Duration = Duration::from_secs(45);

/// A program that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prober<'a> {
    /// `longhaul probe --iperf3`
    Longhaul,
    /// An iperf3, by its program: the system's, or one that was built from newer sources.
    Iperf3(&'a str),
}

impl<'a> Prober<'a> {
    /// longhaul, and the system's iperf3.
    pub const ALL: [Self; 2] = [Self::Longhaul, Self::Iperf3(IPERF3.program)];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'a str {
        match self {
            Self::Longhaul => longhaul_report::record::OURS,
            Self::Iperf3(program) => program,
        }
    }

    /// The server's words, then the client's.
    fn commands(self, longhaul: &Path) -> [Vec<String>; 2] {
        let words = |start: &str, words: &str| {
            std::iter::once(start).chain(words.split_whitespace()).map(str::to_owned).collect()
        };
        let program = longhaul.to_string_lossy();
        match self {
            Self::Longhaul => [
                words(&program, "probe --iperf3 --listen --one-off"),
                words(&program, "probe --iperf3 far -J"),
            ],
            Self::Iperf3(program) => [words(program, "-s -1"), words(program, "-c far -J")],
        }
    }
}

/// One test.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Who makes it.
    pub prober: Prober<'a>,
    /// In the letters of iperf3: `-u -b 1G -l 1472`.
    pub words: &'a [String],
    /// How long traffic is sent.
    pub seconds: u64,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Payload that arrived.
    pub bits_per_second: f64,
    /// UDP: packets that arrived.
    pub packets_received: u64,
    /// UDP: packets that were sent.
    pub packets_sent: u64,
    /// For which they were counted.
    pub seconds: f64,
    /// Of one processor, both ends together.
    pub processor_percent: f64,
}

impl Asked<'_> {
    /// Makes it, between the two hosts; what they say goes to files in `scratch`. Gives the client's words, too.
    ///
    /// # Errors
    /// When there is no result, with the program's own words.
    pub fn measure(
        &self,
        network: &Network,
        longhaul: &Path,
        scratch: &Path,
    ) -> anyhow::Result<(Vec<String>, Measured)> {
        let [server, mut client] = self.prober.commands(longhaul);
        client.extend(["-t".to_owned(), self.seconds.to_string()]);
        client.extend(self.words.iter().cloned());
        let [log, out, err] = ["probe-server", "probe-out", "probe-err"].map(|name| scratch.join(name));
        let on = |host, words: &[String]| {
            let words: Vec<_> = words.iter().map(Into::into).collect();
            network.command(host, &words)
        };
        let server = Limited::start(&mut on(Host::Far, &server), Words::Kept(&log))?;
        let listener = Listener { name: "the server of a test", host: Host::Far, port: PORT, log };
        let _server = listener.wait(network, server)?;
        let words_to = Words::Apart { out: &out, err: &err };
        let limit = Duration::from_secs(self.seconds) + PATIENCE;
        let ended = Limited::start(&mut on(Host::Near, &client), words_to)?.wait(limit)?;
        if ended.status.is_none() {
            bail!("`{}` does not end", client.join(" "));
        }
        let said = std::fs::read_to_string(&out)?;
        let measured = Measured::of(&said)
            .with_context(|| format!("`{}` has no result; {}", client.join(" "), last_words(&err)))?;
        Ok((client, measured))
    }
}

impl Measured {
    /// What a record of iperf3's form says.
    fn of(json: &str) -> anyhow::Result<Self> {
        let end = Ended::of(json)?;
        let (Some(sent), Some(received), Some(processor)) =
            (end.sum_sent, end.sum_received, end.cpu_utilization_percent)
        else {
            bail!("no sums");
        };
        let packets_sent = sent.packets.unwrap_or(0);
        let lost = received.lost_packets.unwrap_or(0).max(0).cast_unsigned();
        let packets_received = received.packets.unwrap_or(0).saturating_sub(lost);
        // iperf3 3.12 gives the bytes that were sent as those of a UDP receiver.
        let bytes = match (received.packets, sent.packets) {
            (Some(_), Some(packets)) if packets > 0 => sent.bytes / packets * packets_received,
            _ => received.bytes,
        };
        let seconds = received.seconds.max(1e-9);
        Ok(Self {
            bits_per_second: bytes as f64 * 8.0 / seconds,
            packets_received,
            packets_sent,
            seconds,
            processor_percent: processor.host_total + processor.remote_total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_both_protocols() {
        let processor = r#""cpu_utilization_percent":{"host_total":50.0,"remote_total":50.0}"#;
        let tcp = format!(
            r#"{{"end":{{"sum_sent":{{"bytes":3,"seconds":2}},"sum_received":{{"bytes":2000000000,"seconds":2}},{processor}}}}}"#
        );
        let measured = Measured::of(&tcp).unwrap();
        assert_eq!((measured.bits_per_second, measured.processor_percent), (8e9, 100.0));
        let udp = format!(
            r#"{{"end":{{"sum_sent":{{"bytes":1000,"seconds":1,"packets":10}},
            "sum_received":{{"bytes":1000,"seconds":1,"packets":10,"lost_packets":4}},{processor}}}}}"#
        );
        let measured = Measured::of(&udp).unwrap();
        assert_eq!((measured.packets_received, measured.bits_per_second), (6, 4800.0));
        assert!(Measured::of(r#"{"end":{},"error":"no"}"#).is_err());
    }
}
