//! Records as Markdown that also reads well on a terminal.

use std::fmt::Write;

use crate::record::{Data, End, Environment, Report, Run, Scenario};
use crate::summary::Summary;

/// A Markdown table with its columns padded; the first column is aligned left, the others right.
#[must_use]
pub fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let escaped: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell.replace('|', "\\|")).collect()).collect();
    let width = |column: usize| {
        let cells = escaped.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "| {cell:<width$} "),
                _ => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
    };
    line(&mut head.iter().copied());
    let rules: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(column, width)| if column == 0 { "-".repeat(*width) } else { "-".repeat(width - 1) + ":" })
        .collect();
    line(&mut rules.iter().map(String::as_str));
    for row in &escaped {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// What the columns of a report mean.
const LEGEND: &str = "\nThe time of a run is that of its command, from start to exit. Mbit/s is payload: the source's bytes over \
    the time, mean and median over the rounds. A run that reached the limit was ended, and time and rate of the whole are \
    projected from the share of the bytes (in trees: of the bytes or of the files, whichever is larger) that was at \
    the destination by then. `x best rival` is the mean rate over that of \
    the fastest other tool. `trusted` counts the runs for which the emulator found no fault of its own.\n";

/// The tools of a scenario beside each other.
#[must_use]
pub fn scenario(scenario: &Scenario) -> String {
    let head = ["tool", "time", "Mbit/s", "median", "x best rival", "encrypted", "complete", "trusted"];
    let rows: Vec<Vec<String>> = scenario.summaries.iter().map(row).collect();
    let mut text = markdown(&head, &rows);
    let mut notes: Vec<String> = scenario.runs.iter().flat_map(notes_of).collect();
    notes.extend(scenario.left_out.iter().map(|out| format!("{}: not run: {}", out.tool, out.reason)));
    let mut told: Vec<String> = Vec::new();
    for note in notes {
        if !told.contains(&note) {
            told.push(note);
        }
    }
    if !told.is_empty() {
        text.push('\n');
        for note in told {
            let _ = writeln!(text, "- {note}");
        }
    }
    text
}

/// What a run was disturbed by, if it was.
pub(crate) fn disturbance(run: &Run) -> Option<String> {
    run.stolen.filter(|_| !run.is_undisturbed()).map(stolen_in_words)
}

/// What it means that this share of the processors' time was stolen.
pub(crate) fn stolen_in_words(share: f64) -> String {
    format!(
        "disturbed: {:.0} % of the processors' time went to other machines on the same host",
        share * 100.0
    )
}

/// What must be known of a run besides its figures.
fn notes_of(run: &Run) -> Vec<String> {
    let mut notes: Vec<String> = run.remarks.iter().map(|remark| format!("{}: {remark}", run.tool)).collect();
    if let End::Failed { reason } = &run.end {
        notes.push(format!("{}: round {}: failed: {reason}", run.tool, run.round));
    }
    if !run.link.trusted {
        notes.push(format!("{}: round {}: not trusted: {}", run.tool, run.round, run.link.doubts.join("; ")));
    }
    notes.extend(disturbance(run).map(|what| format!("{}: round {}: {what}", run.tool, run.round)));
    notes
}

fn row(summary: &Summary) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), significant);
    let time = match summary.seconds_median {
        Some(seconds) if summary.projected => format!("{} projected", duration(seconds)),
        Some(seconds) => duration(seconds),
        None => "-".to_owned(),
    };
    vec![
        summary.tool.clone(),
        time,
        number(summary.mbit_s_mean),
        number(summary.mbit_s_median),
        summary.ratio_to_best_rival.map_or_else(|| "-".to_owned(), significant),
        if summary.encrypted { "yes" } else { "no" }.to_owned(),
        format!("{}/{}", summary.complete, summary.runs),
        format!("{}/{}", summary.trusted, summary.runs),
    ]
}

/// The whole record.
#[must_use]
pub fn report(report: &Report) -> String {
    let mut text = format!("# {}\n\n{}{LEGEND}", report.title, machine(&report.environment));
    for each in &report.scenarios {
        let data = &each.data;
        let _ = write!(
            text,
            "\n## {}: {}\n\n{}; limit {} s a run; link `{}`\n\n{}",
            each.link.in_words(),
            data.name,
            amount(data),
            each.limit_seconds,
            each.link.command.join(" "),
            scenario(each),
        );
    }
    text
}

/// What was copied: `one file of random bytes: 4.0 GiB in 1 file`.
pub(crate) fn amount(data: &Data) -> String {
    let files = if data.files == 1 { "file" } else { "files" };
    format!("{}: {} in {} {files}", data.about, size(data.bytes), data.files)
}

/// The machine and the programs, as a list.
pub(crate) fn machine(environment: &Environment) -> String {
    let sysctls: Vec<String> =
        environment.sysctls.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
    let rivals: Vec<String> =
        environment.rivals.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let beside = if rivals.is_empty() { String::new() } else { format!("; beside {}", rivals.join(", ")) };
    let mut text = String::new();
    for line in [
        format!("{}; {}", environment.date, environment.command.join(" ")),
        format!("{} ({}){beside}", environment.program.version, environment.program.revision),
        format!(
            "{}, kernel {}; {} x {}, {} of memory",
            environment.system,
            environment.kernel,
            environment.cores,
            environment.cpu,
            size(environment.memory_bytes)
        ),
        sysctls.join(", "),
    ] {
        let _ = writeln!(text, "- {line}");
    }
    text
}

/// Three significant digits, and never an exponent: `941`, `94.1`, `0.094`.
pub(crate) fn significant(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// `9.25 s`, `412 s`, `2 h 05 min`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 9999.5 => format!("{} s", significant(s)),
        s => format!("{} h {:02} min", (s / 3600.0) as u64, (s / 60.0) as u64 % 60),
    }
}

/// `4.0 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    if power == 0 {
        return format!("{bytes} B");
    }
    format!("{:.1} {}", bytes as f64 / 1024f64.powi(power as i32), UNITS[power])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{run, scenario as example};
    use crate::record::{End, OURS};

    #[test]
    fn columns_line_up_and_bars_are_escaped() {
        let table = markdown(
            &["tool", "Mbit/s"],
            &[vec!["a|b".into(), "9".into()], vec!["longhaul".into(), "941".into()]],
        );
        assert_eq!(
            table,
            "| tool     | Mbit/s |\n| -------- | -----: |\n| a\\|b     |      9 |\n| longhaul |    941 |\n"
        );
    }

    #[test]
    fn what_was_cut_off_is_called_projected_and_doubts_are_told() {
        let mut untrusted = run("scp", 10_000_000, 60.0, End::Cut { projected_seconds: Some(6000.0) });
        untrusted.link.trusted = false;
        untrusted.link.doubts = vec!["it stalled".to_owned()];
        let text = scenario(&example(vec![
            run(OURS, 1_000_000_000, 9.25, End::Complete),
            untrusted,
            run("rsync", 0, 0.1, End::Failed { reason: "exit code 12".to_owned() }),
        ]));
        let line = |tool: &str| {
            let line = text.lines().find(|l| l.starts_with(&format!("| {tool}"))).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(line("longhaul").contains("| 9.25 s |"), "{text}");
        assert!(!line("longhaul").contains("projected"), "{text}");
        assert!(line("scp").contains("6000 s projected") && line("scp").contains("0/1"), "{text}");
        assert!(text.contains("- scp: round 1: not trusted: it stalled"), "{text}");
        assert!(text.contains("- rsync: round 1: failed: exit code 12"), "{text}");
        assert!(text.contains("- none: not run: a | b"), "{text}");
    }

    #[test]
    fn figures_as_people_read_them() {
        assert_eq!(significant(941.4), "941");
        assert_eq!(significant(0.0123), "0.012");
        assert_eq!(duration(7500.0), "7500 s");
        assert_eq!(duration(12_345.0), "3 h 25 min");
        assert_eq!(size(4 << 30), "4.0 GiB");
        assert_eq!(size(0), "0 B");
    }

    #[test]
    fn the_whole_report_names_machine_and_link() {
        let mut report = crate::Report::new("Copies", Environment::default());
        report.environment.kernel = "6.18".to_owned();
        report.scenarios.push(example(vec![run(OURS, 1_000_000_000, 9.25, End::Complete)]));
        let text = super::report(&report);
        assert!(text.starts_with("# Copies\n") && text.contains("kernel 6.18"), "{text}");
        assert!(text.contains("## 1 Gbit/s, RTT 100 ms, loss 0.1 %: big"), "{text}");
        assert!(text.contains("`longhaul emulate`"), "{text}");
    }
}
