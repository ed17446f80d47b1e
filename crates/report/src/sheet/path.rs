//! A path: UDP by frame size, TCP by window and streams, disks, from disk to disk, and the verdict.

use super::{Cell, Part, Sheet, Table, facts};
use crate::chart::{Chart, Line, Lines, Look, Over};
use crate::palette::colours;
use crate::path::{Controlled, Paced, Path, Tcp, Way};
use crate::series::{Better, Series, Value};

pub(crate) fn series(path: &Path) -> Vec<Series> {
    let one = |tool: String, figure: &str, call_bytes, better, value| Series {
        scenario: path.title.clone(),
        tool,
        figure: figure.to_owned(),
        call_bytes,
        better,
        values: vec![Value::of(1, value)],
        failed: 0,
    };
    let mut all = Vec::new();
    if let Some(rtt) = &path.rtt {
        all.push(one(
            "packets that come back".to_owned(),
            "RTT, median, ms",
            None,
            Better::Less,
            rtt.median_ms,
        ));
    }
    for loaded in &path.loaded {
        let tool = format!("packets that come back, under load {}", loaded.way);
        all.push(one(tool, "RTT, median, ms", None, Better::Less, loaded.rtt.median_ms));
    }
    for udp in &path.udp {
        let (tool, frame) = (format!("UDP {}", udp.way), Some(u64::from(udp.frame_bytes)));
        all.push(one(tool.clone(), "Mbit/s of the wire", frame, Better::More, udp.above.arrived_mbps));
        if let Some(below) = &udp.below {
            all.push(one(tool, "loss at nine tenths, %", frame, Better::Less, below.lost_percent()));
        }
    }
    for tcp in &path.tcp {
        let tool = format!("TCP {}, {}, streams: {}", tcp.way, tcp.window_in_words(), tcp.streams);
        all.push(one(tool, "Mbit/s", None, Better::More, tcp.mbps));
    }
    for controlled in &path.controlled {
        let Controlled { control, tcp } = controlled;
        let tool = format!("TCP {}, {control}, streams: {}", tcp.way, tcp.streams);
        all.push(one(tool, "Mbit/s", None, Better::More, tcp.mbps));
    }
    for paced in &path.paced {
        let tool = format!(
            "TCP {}, streams: {}, paced at {:.0} % of the capacity",
            paced.tcp.way, paced.tcp.streams, paced.percent
        );
        all.push(one(tool, "Mbit/s", None, Better::More, paced.tcp.mbps));
    }
    for disk in &path.disks {
        let tool = format!("disk of {} ({})", disk.side, disk.directory);
        all.push(one(tool.clone(), "Mbit/s written", None, Better::More, disk.write_mbps));
        all.push(one(tool, "Mbit/s read", None, Better::More, disk.read_mbps));
    }
    for copied in &path.disk_to_disk {
        all.push(one(format!("disk to disk {}", copied.way), "Mbit/s", None, Better::More, copied.mbps));
    }
    all
}

pub(crate) fn sheet(path: &Path) -> Sheet {
    let parts = Way::BOTH.into_iter().filter_map(|way| part(path, way)).chain(disks(path)).collect();
    Sheet {
        title: path.title.clone(),
        facts: facts(&path.environment),
        summary: path.sentences().iter().map(|line| line.replace("**", "")).collect(),
        parts,
    }
}

fn part(path: &Path, way: Way) -> Option<Part> {
    let suffix = format!(" {way},");
    let tables: Vec<Table> =
        path.tables().into_iter().filter(|(caption, _, _)| caption.contains(&suffix)).map(table).collect();
    if tables.is_empty() {
        return None;
    }
    Some(Part {
        title: format!("{}, {way}", path.host),
        about: vec![
            "UDP: the load was raised until too little arrived; the capacity is what arrives then, with Ethernet's 38 bytes a packet. \
             TCP: payload after the start-up; beside it window / RTT (RFC 6349) and Mathis's formula."
                .to_owned(),
        ],
        charts: [udp_rates(path, way), udp_loss(path, way), tcp_rates(path, way)]
            .into_iter()
            .chain(paced(path, way))
            .flatten()
            .collect(),
        tables,
        doubts: Vec::new(),
        notes: path.left_out.iter().map(|what| format!("Not measured: {what}.")).collect(),
    })
}

fn table((caption, head, rows): crate::path::Table) -> Table {
    let cells = |row: Vec<String>| row.into_iter().map(Cell::of).collect();
    Table::new(caption, &head, rows.into_iter().map(cells).collect())
}

fn disks(path: &Path) -> Option<Part> {
    let mut about = vec![
        "A file without a name was written for a while, until all of it was on the disk, and read again, both sequentially; nothing \
         was on the network meanwhile. Files that are copied are read at one end and written at the other."
            .to_owned(),
    ];
    let mut tables = vec![table(path.disks_table()?)];
    if let Some(copied) = path.disk_to_disk_table() {
        let words = "Disk to disk: a file that no disk can make smaller was copied as `longhaul cp` does, from the start of the copy, \
                     over a session that was connected before, until it was verified and durable under its name.";
        about.push(words.to_owned());
        tables.push(table(copied));
    }
    Some(Part {
        title: "Disks".to_owned(),
        about,
        charts: Vec::new(),
        tables,
        doubts: Vec::new(),
        notes: Vec::new(),
    })
}

fn lines(title: String, unit: &str, over: Over, lines: Vec<Line>) -> Option<Chart> {
    let lines: Vec<Line> = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
    (!lines.is_empty()).then(|| Chart::Lines(Lines { title, unit: unit.to_owned(), over, lines }))
}

fn udp_rates(path: &Path, way: Way) -> Option<Chart> {
    let of_way = || path.udp.iter().filter(move |udp| udp.way == way);
    let points = of_way().map(|udp| (f64::from(udp.frame_bytes), udp.above.arrived_mbps)).collect();
    let line = Line { name: "capacity".to_owned(), look: Look::Marked(0), points, ..Line::default() };
    lines(format!("UDP {way}, by frame size"), "Mbit/s of the wire", Over::FrameBytes, vec![line])
}

fn udp_loss(path: &Path, way: Way) -> Option<Chart> {
    let of_way = || path.udp.iter().filter(move |udp| udp.way == way);
    let frame = |bytes: u32| f64::from(bytes);
    let above = of_way().map(|udp| (frame(udp.frame_bytes), udp.above.lost_percent())).collect();
    let below = of_way()
        .filter_map(|udp| udp.below.as_ref().map(|below| (frame(udp.frame_bytes), below.lost_percent())))
        .collect();
    let line = |name: &str, colour, points| Line {
        name: name.to_owned(),
        look: Look::Marked(colour),
        points,
        ..Line::default()
    };
    let both = vec![line("just above the capacity", 0, above), line("at nine tenths of it", 1, below)];
    lines(format!("Loss of UDP {way}, by frame size"), "%", Over::FrameBytes, both)
}

fn tcp_rates(path: &Path, way: Way) -> Option<Chart> {
    let of_way = || path.tcp.iter().filter(move |tcp| tcp.way == way);
    let mut counts: Vec<u32> = of_way().map(|tcp| tcp.streams).collect();
    counts.sort_unstable();
    counts.dedup();
    let names: Vec<String> = counts.iter().map(|count| format!("streams: {count}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut all = Vec::new();
    for ((count, name), colour) in counts.iter().zip(&names).zip(colours(&names)) {
        let rows = || of_way().filter(|tcp| tcp.streams == *count);
        let measured =
            rows().filter_map(|tcp| tcp.window_bytes.map(|bytes| (bytes as f64, tcp.mbps))).collect();
        // No faster than the link: beyond that the theory says nothing of this path.
        let most = path.capacity(way).unwrap_or(f64::INFINITY);
        let theory =
            rows().filter_map(|tcp| Some((tcp.window_bytes? as f64, tcp.window_mbps?.min(most)))).collect();
        all.push(Line {
            name: (*name).to_owned(),
            look: Look::Marked(colour),
            points: measured,
            ..Line::default()
        });
        let name = format!("window/RTT, {name}");
        all.push(Line { name, look: Look::Published, points: theory, ..Line::default() });
    }
    lines(format!("TCP {way}, by window"), "Mbit/s", Over::WindowBytes, all)
}

/// What arrives, and what is sent again, by the rate at which the senders are paced.
fn paced(path: &Path, way: Way) -> [Option<Chart>; 2] {
    let over = |of: fn(&Paced) -> f64| path.paced_of(way).map(|paced| (paced.percent, of(paced))).collect();
    let line = |name: &str, look, points| Line { name: name.to_owned(), look, points, ..Line::default() };
    let level = |of: fn(&Tcp) -> f64| {
        let all = || path.paced_of(way).map(|paced| paced.percent);
        let ends = [all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max)];
        path.unpaced(way).map_or_else(Vec::new, |tcp| ends.map(|end| (end, of(tcp))).to_vec())
    };
    let rates = vec![
        line("measured", Look::Marked(0), over(|paced| paced.tcp.mbps)),
        line("paced at", Look::Published, over(|paced| paced.rate_mbps)),
        line("not paced", Look::Plain(1), level(|tcp| tcp.mbps)),
    ];
    let again = vec![
        line("paced", Look::Marked(0), over(|paced| paced.tcp.retransmitted_percent)),
        line("not paced", Look::Plain(1), level(|tcp| tcp.retransmitted_percent)),
    ];
    if path.paced_of(way).next().is_none() {
        return [None, None];
    }
    [
        lines(format!("TCP {way}, paced"), "Mbit/s", Over::Percent, rates),
        lines(format!("Segments of TCP {way} sent again, paced"), "%", Over::Percent, again),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::tests::path;

    #[test]
    fn a_path_is_tables_and_plots() {
        let sheet = sheet(&path());
        assert_eq!(sheet.parts.len(), 2, "nothing came from the server; disks");
        assert_eq!(sheet.parts[1].tables.len(), 2, "each alone, and from disk to disk");
        assert_eq!((sheet.parts[0].tables.len(), sheet.parts[0].charts.len()), (3, 3));
        assert!(sheet.summary[0].starts_with("Round-trip time at rest: 10.00 ms"), "{:?}", sheet.summary);
        let series = series(&path());
        assert!(series.iter().any(|one| one.call_bytes == Some(1518) && one.values[0].value == 100.0));
        assert!(
            series
                .iter()
                .any(|one| one.tool == "disk of the server (/data)" && one.values[0].value == 1234.0)
        );
        assert!(series.iter().all(|one| series.iter().filter(|other| one.is_of(other)).count() == 1));
    }
}
