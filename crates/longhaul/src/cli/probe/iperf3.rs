//! `longhaul probe --iperf3`: iperf3's protocol, at either end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use longhaul_probe::iperf3::DEFAULT_PORT;
use longhaul_probe::iperf3::client::{self, Family, Observer, Test};
use longhaul_probe::iperf3::message::{Direction, Parameters, Protocol};
use longhaul_probe::iperf3::report::{self, End, Start};
use longhaul_probe::iperf3::server::{Server, ServerError, Service};
use longhaul_probe::traffic::FlowInterval;
use longhaul_probe::{limits, tcp};

use super::{INTERVAL_DEFAULT, Probe, TIME_DEFAULT, UDP_RATE_DEFAULT, print_out};

impl Probe {
    pub(super) fn run_iperf3(self) -> anyhow::Result<ExitCode> {
        let interval = self.interval.unwrap_or(INTERVAL_DEFAULT).0;
        match self.listen {
            Some(address) => self.serve(address, interval),
            None => self.measure(interval),
        }
    }

    fn measure(self, interval: Option<Duration>) -> anyhow::Result<ExitCode> {
        let test = Test {
            parameters: self.parameters()?,
            host: self
                .host
                .unwrap_or_default()
                .into_string()
                .map_err(|_| anyhow!("the host is not UTF-8"))?,
            port: self.port.unwrap_or(DEFAULT_PORT),
            family: match (self.ipv4, self.ipv6) {
                (true, _) => Family::V4,
                (_, true) => Family::V6,
                _ => Family::Any,
            },
            interval,
            skip_receive_copy: self.skip_rx_copy,
        };
        let mut teller = Teller { json: self.json, ..Teller::default() };
        let result = client::run(&test, &mut teller);
        teller.conclude(result.as_ref().ok(), result.as_ref().err().map(ToString::to_string))?;
        match result {
            Ok(_) => {
                if !self.json {
                    print_out("\nlonghaul probe: done.\n")?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Err(error) if teller.start.is_some() => {
                eprintln!("{}", crate::terminal::harmless(&format!("longhaul: {error}")));
                Ok(ExitCode::from(1))
            }
            // It names its own cause.
            Err(error) => bail!("{error}"),
        }
    }

    fn parameters(&self) -> anyhow::Result<Parameters> {
        let (protocol, lengths) = if self.udp {
            (Protocol::Udp, limits::DATAGRAM_BYTES_MIN..=limits::DATAGRAM_BYTES_MAX)
        } else {
            (Protocol::Tcp, 1..=limits::WRITE_BYTES_MAX)
        };
        let length = match (self.length, protocol) {
            (Some(length), _) => length as usize,
            (None, Protocol::Tcp) => tcp::write_bytes(self.bitrate.filter(|rate| *rate > 0)),
            // The client looks at the path.
            (None, Protocol::Udp) => 0,
        };
        if self.length.is_some() && !lengths.contains(&length) {
            bail!("a length of {length} bytes (-l) cannot be had: {} to {}", lengths.start(), lengths.end());
        }
        if let Some(window) = self.window.filter(|window| *window > limits::WINDOW_BYTES_MAX) {
            bail!(
                "buffers of {window} bytes (-w) cannot be had: at most {} MiB",
                limits::WINDOW_BYTES_MAX >> 20
            );
        }
        let direction = match (self.reverse, self.bidir) {
            (true, _) => Direction::Reverse,
            (_, true) => Direction::Both,
            _ => Direction::Forward,
        };
        Ok(Parameters {
            protocol,
            direction,
            seconds: if self.bytes.is_some() { 0 } else { self.time.unwrap_or(TIME_DEFAULT) },
            omit: self.omit.unwrap_or(0),
            bytes: self.bytes.unwrap_or(0),
            blocks: 0,
            parallel: self.parallel.unwrap_or(1),
            length,
            bandwidth: self.bitrate.unwrap_or(if self.udp { UDP_RATE_DEFAULT } else { 0 }),
            window: self.window.unwrap_or(0),
            mss: self.set_mss.unwrap_or(0),
            no_delay: self.no_delay,
            congestion: self.congestion.clone(),
            pacing: self.fq_rate.unwrap_or(0),
            zero_copy: self.zerocopy,
            // Numbers of 32 bits are used up within minutes at the rates that are to be measured.
            wide_numbers: self.udp,
        })
    }

    fn serve(self, address: IpAddr, interval: Option<Duration>) -> anyhow::Result<ExitCode> {
        let address = match (address.is_unspecified(), self.ipv4) {
            (true, true) => Ipv4Addr::UNSPECIFIED.into(),
            _ => address,
        };
        let service = Service { rate_max: self.rate_max, interval, skip_receive_copy: self.skip_rx_copy };
        let at = |address| SocketAddr::new(address, self.port.unwrap_or(DEFAULT_PORT));
        let server = match Server::listen(at(address), service) {
            // A kernel without IPv6.
            Err(_) if address == Ipv6Addr::UNSPECIFIED && !self.ipv6 => {
                Server::listen(at(Ipv4Addr::UNSPECIFIED.into()), service)
            }
            listens => listens,
        };
        // It names its own cause.
        let mut server = server.map_err(|error| anyhow::anyhow!("{error}"))?;
        let port = server.address().context("cannot tell the port")?.port();
        eprintln!(
            "warning: iperf3's protocol knows no keys: whoever reaches port {port} can have this host send and receive{}; \
             stop it when the measurement is over",
            if self.rate_max.is_some() { "" } else { ", as fast as it can (--rate-max bounds that)" }
        );
        let mut number = 1;
        loop {
            if self.json {
                eprintln!("listening on port {port}");
            } else {
                let rule = "-".repeat(59);
                print_out(&format!("{rule}\nServer listening on {port} (test #{number})\n{rule}\n"))?;
            }
            let mut teller = Teller { json: self.json, ..Teller::default() };
            let result = server.serve_one(&mut teller);
            let error = result.as_ref().err().map(ToString::to_string);
            teller.conclude(result.as_ref().ok(), error.clone())?;
            if let Some(error) =
                error.as_ref().filter(|_| result.as_ref().is_err_and(ServerError::is_of_one_test))
            {
                eprintln!("{}", crate::terminal::harmless(&format!("longhaul: {error}")));
            }
            match result {
                Err(error) if !error.is_of_one_test() => bail!("{error}"),
                _ if self.one_off => return Ok(ExitCode::from(u8::from(error.is_some()))),
                _ => number += 1,
            }
        }
    }
}

/// Prints as the test goes on, or keeps what there is for one record.
#[derive(Default)]
struct Teller {
    json: bool,
    start: Option<Start>,
    intervals: Vec<Vec<FlowInterval>>,
}

impl Teller {
    /// Nobody can be told that standard output is closed; the test goes on.
    fn print(&self, text: &str) {
        if !self.json {
            let _ = print_out(text);
        }
    }

    fn conclude(&self, result: Option<&(Start, End)>, error: Option<String>) -> io::Result<()> {
        if !self.json {
            return match result {
                Some((start, end)) => print_out(&report::end(start, end)),
                None => Ok(()),
            };
        }
        let uname = rustix::system::uname();
        let words = [uname.sysname(), uname.nodename(), uname.release(), uname.version(), uname.machine()];
        let system: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let end = result.map(|(_, end)| end);
        let document =
            report::document(self.start.as_ref(), &self.intervals, end, &system.join(" "), error.as_deref());
        print_out(&format!("{document:#}\n"))
    }
}

impl Observer for Teller {
    fn started(&mut self, start: &Start) {
        self.start = Some(start.clone());
        self.print(
            &(report::heading(start) + &report::stream_opened(start) + &report::interval_heading(start)),
        );
    }

    fn interval(&mut self, start: &Start, flows: &[FlowInterval]) {
        self.print(&report::interval(start, flows));
        // Text is printed and forgotten.
        if self.json && self.intervals.len() < limits::INTERVALS_MAX {
            self.intervals.push(flows.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        probe: Probe,
    }

    fn parameters(words: &str) -> anyhow::Result<Parameters> {
        let words = ["probe", "--iperf3", "far"].into_iter().chain(words.split_whitespace());
        Alone::try_parse_from(words)?.probe.parameters()
    }

    #[test]
    fn letters_mean_what_they_mean_to_iperf3() {
        let found = parameters("-u -b 10m -l 8k -P 4 -R -t 3 -w 1M").unwrap();
        assert_eq!((found.bandwidth, found.length, found.window), (10_000_000, 8192, 1 << 20));
        assert_eq!((found.parallel, found.seconds, found.direction), (4, 3, Direction::Reverse));
        let found = parameters("-n 1g -C cubic -M 1000 --bidir --fq-rate 50m -Z").unwrap();
        assert_eq!((found.bytes, found.seconds, found.mss, found.bandwidth), (1 << 30, 0, 1000, 0));
        assert_eq!((found.congestion.as_deref(), found.direction), (Some("cubic"), Direction::Both));
        assert_eq!((found.pacing, found.zero_copy), (50_000_000, true));
        assert_eq!(parameters("-u").unwrap().bandwidth, UDP_RATE_DEFAULT);
        assert_eq!(parameters("-u -b 0").unwrap().bandwidth, 0);
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_what_can() {
        for words in ["-l 0", "-u -l 15", "-u -l 65508", "-l 2M", "-w 1G"] {
            let error = parameters(words).unwrap_err().to_string();
            assert!(error.contains("cannot be had"), "{words}: {error}");
        }
        for words in [
            "-P 0",
            "-P 129",
            "-t 3 -n 1M",
            "-R --bidir",
            "-4 -6",
            "-M 20",
            "-i 0.05",
            "-i 61",
            "-i x",
            "--graph never",
        ] {
            assert!(parameters(words).is_err(), "{words}");
        }
    }
}
