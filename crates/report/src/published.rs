//! What the reports that longhaul's systems come from have published of networks, read from the tables that were copied out of them:
//! JAXA RR-05-004 (2005; `srfs-network.csv`), ICEPP of the University of Tokyo and CERN (2004; `icepp-cern.csv`), and UsadaFox (2010;
//! `usadafox.csv`). File I/O by length is in [`io`](crate::io).

/// A figure that was published.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Whose it is, as `JAXA 2005`.
    pub whose: &'static str,
    /// Which way, with which program, under which conditions.
    pub about: String,
    /// UDP: bytes of a frame on Ethernet, without preamble and gap; 0 where that is not said.
    pub frame_bytes: u64,
    /// TCP: the socket's buffer; 0 for UDP.
    pub window_bytes: u64,
    /// TCP: connections at a time.
    pub streams: u64,
    /// Mbit/s: of frames for UDP by frame size, else of payload.
    pub mbps: f64,
}

/// The part of an experiment that a publication is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// JAXA and NIED, the direct path.
    JaxaDirect,
    /// JAXA and NIED, through the VPN.
    JaxaVpn,
    /// Tokyo and CERN.
    Cern,
    /// Tokyo and KEK.
    Kek,
    /// UsadaFox, over a long path that was made.
    UsadaFox,
}

const JAXA: &str = "JAXA 2005";
const ICEPP: &str = "ICEPP 2004";
const USADAFOX: &str = "UsadaFox 2010";

impl Site {
    /// By the name of an experiment, whose first word is the place: `jaxa-udp`.
    #[must_use]
    pub fn of(experiment: &str) -> Option<Self> {
        match experiment.split('-').next()? {
            "jaxa" => Some(Self::JaxaDirect),
            "vpn" => Some(Self::JaxaVpn),
            "cern" => Some(Self::Cern),
            "kek" => Some(Self::Kek),
            "usadafox" => Some(Self::UsadaFox),
            _ => None,
        }
    }

    fn is_jaxa(self) -> bool {
        matches!(self, Self::JaxaDirect | Self::JaxaVpn)
    }

    /// UDP: by frame size, or the one figure.
    #[must_use]
    pub fn udp(self) -> Vec<Figure> {
        if self.is_jaxa() {
            let frame =
                |row: &Jaxa| Some((row.parameter.strip_prefix("frame ")?.strip_suffix(" B")?).parse().ok());
            return self
                .jaxa("udp_throughput")
                .filter_map(|row| {
                    let frame_bytes = frame(&row)??;
                    Some(figure(JAXA, row.direction, frame_bytes, 0, 1, row.value))
                })
                .collect();
        }
        self.icepp("UDP").map(|row| figure(ICEPP, &row.about(), 0, 0, 1, row.mbps)).collect()
    }

    /// TCP, from memory to memory, by the window and the number of streams.
    #[must_use]
    pub fn tcp(self) -> Vec<Figure> {
        match self {
            Self::JaxaDirect | Self::JaxaVpn => self
                .jaxa("netperf_tcp")
                .map(|row| {
                    let about = format!("netperf, {}, {}", row.parameter, row.direction);
                    // The theory beside it is of a window of 128 KiB.
                    figure(JAXA, &about, 0, 128 << 10, 1, row.value)
                })
                .collect(),
            Self::Cern | Self::Kek => self
                .icepp("TCP")
                .filter_map(|row| {
                    let window = row.option("-w").and_then(window_bytes)?;
                    let streams = row.option("-P").and_then(|count| count.parse().ok()).unwrap_or(1);
                    Some(figure(ICEPP, &row.about(), 0, window, streams, row.mbps))
                })
                .collect(),
            Self::UsadaFox => usadafox()
                .map(|(buffer, mbytes)| {
                    let about = format!("one stream to a browser, {buffer} MB of SO_RCVBUF");
                    figure(USADAFOX, &about, 0, (buffer * 1e6) as u64, 1, mbytes * 8.0)
                })
                .collect(),
        }
    }

    /// From disk to disk; of UsadaFox from the far host's memory to this one's disk.
    #[must_use]
    pub fn copies(self) -> Vec<Figure> {
        match self {
            Self::UsadaFox => usadafox()
                .filter(|(buffer, _)| *buffer == 150.0)
                .map(|(_, mbytes)| figure(USADAFOX, "browser, largest buffer", 0, 0, 1, mbytes * 8.0))
                .collect(),
            _ => self.icepp("bbftp").map(|row| figure(ICEPP, &row.about(), 0, 0, 1, row.mbps)).collect(),
        }
    }

    fn jaxa(self, measure: &'static str) -> impl Iterator<Item = Jaxa> {
        let connection = match self {
            Self::JaxaDirect => "direct",
            Self::JaxaVpn => "vpn",
            _ => "",
        };
        lines(include_str!("../reference/srfs-network.csv")).filter_map(move |fields| {
            let &[on, what, parameter, direction, value, _unit] = fields.as_slice() else { return None };
            (on == connection && what == measure).then_some(())?;
            Some(Jaxa { parameter, direction, value: value.parse().ok()? })
        })
    }

    fn icepp(self, tool: &'static str) -> impl Iterator<Item = Icepp> {
        let pair = match self {
            Self::Cern => "ICEPP-CERN",
            Self::Kek => "ICEPP-KEK",
            _ => "",
        };
        lines(include_str!("../reference/icepp-cern.csv")).filter_map(move |fields| {
            let &[between, _rtt, kernel, name, options, _seconds, mbps, note] = fields.as_slice() else {
                return None;
            };
            (between == pair && name.contains(tool)).then_some(())?;
            Some(Icepp { name, kernel, options, mbps: mbps.parse().ok()?, note })
        })
    }
}

struct Jaxa {
    parameter: &'static str,
    direction: &'static str,
    value: f64,
}

struct Icepp {
    name: &'static str,
    kernel: &'static str,
    options: &'static str,
    mbps: f64,
    note: &'static str,
}

impl Icepp {
    fn about(&self) -> String {
        let words = [self.name, self.options, self.kernel, self.note];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
    }

    fn option(&self, letter: &str) -> Option<&'static str> {
        let mut words = self.options.split_whitespace();
        words.find(|word| *word == letter)?;
        words.next()
    }
}

fn figure(
    whose: &'static str,
    about: &str,
    frame_bytes: u64,
    window_bytes: u64,
    streams: u64,
    mbps: f64,
) -> Figure {
    Figure { whose, about: about.to_owned(), frame_bytes, window_bytes, streams, mbps }
}

/// `256KB`, `8M`: iperf 1.7 counts in 1024.
fn window_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().chars().next() {
        Some('k') => 1 << 10,
        Some('m') => 1 << 20,
        _ => 1,
    };
    Some(digits.parse::<u64>().ok()? * factor)
}

/// Buffer in MB, mean in MB/s.
fn usadafox() -> impl Iterator<Item = (f64, f64)> {
    lines(include_str!("../reference/usadafox.csv"))
        .filter_map(|fields| Some((fields.first()?.parse().ok()?, fields.get(1)?.parse().ok()?)))
}

/// Without the head; no field of these tables has a comma in it.
fn lines(csv: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    csv.lines().skip(1).map(|line| line.split(',').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_tables_are_read_whole() {
        assert_eq!(Site::JaxaDirect.udp().len(), 14);
        assert_eq!((Site::JaxaDirect.tcp().len(), Site::JaxaVpn.tcp().len()), (8, 8));
        assert_eq!((Site::Cern.udp().len(), Site::Cern.tcp().len(), Site::Cern.copies().len()), (1, 16, 0));
        assert_eq!((Site::Kek.udp().len(), Site::Kek.tcp().len(), Site::Kek.copies().len()), (1, 2, 2));
        assert_eq!((Site::UsadaFox.tcp().len(), Site::UsadaFox.copies().len()), (6, 1));
    }

    #[test]
    fn figures_are_those_of_the_reports() {
        let first = &Site::JaxaDirect.udp()[0];
        assert_eq!((first.frame_bytes, first.about.as_str(), first.mbps), (64, "NIED->JAXA", 703.3));
        let cern = Site::Cern.tcp();
        let eight = cern.iter().find(|figure| figure.window_bytes == 8 << 20).unwrap();
        assert_eq!((eight.streams, eight.mbps), (28, 634.0));
        assert_eq!((cern[0].window_bytes, cern[0].streams, cern[0].mbps), (256 << 10, 4, 4.5));
        let kek = Site::Kek.tcp();
        assert_eq!((kek[0].window_bytes, kek[0].streams, kek[1].window_bytes), (256 << 10, 1, 8 << 20));
        assert_eq!((Site::UsadaFox.tcp()[0].mbps * 100.0).round(), 188_336.0);
        assert_eq!(Site::of("cern-tcp"), Some(Site::Cern));
        assert_eq!(Site::of("other"), None);
    }
}
