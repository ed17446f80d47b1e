//! The record of the grid, and its tables.

use std::fmt::Write;

use anyhow::bail;
use longhaul_report::path::{Limit, Limited, Path as Measured, Way};
use longhaul_report::{Environment, Verdict};
use serde::{Deserialize, Serialize};

use super::cases::{Case, Expected, Link};
use super::compare::{Figure, capacity_allowed, lost_allowed, rtt_allowed};

/// Name and version of the schema, first in every record.
pub(super) const SCHEMA: &str = "longhaul-path-grid/1";

/// All cases that were measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Grid {
    schema: String,
    /// Of the last piece: a grid may be measured in several.
    environment: Environment,
    left_out: Vec<String>,
    runs: Vec<Run>,
    /// Measured again afterwards; without what the measurement says besides its figures.
    #[serde(default)]
    set_aside: Vec<Run>,
}

/// One measurement of a path.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) case: String,
    pub(super) date: String,
    /// Words that brought the link up.
    pub(super) link: Vec<String>,
    /// Of the kernel, on both hosts.
    pub(super) settings: Vec<String>,
    /// Words of the measurement.
    pub(super) command: Vec<String>,
    pub(super) seconds: f64,
    pub(super) figures: Vec<Figure>,
    pub(super) verdicts: Vec<Judged>,
    /// Why there is nothing to compare.
    pub(super) failure: Option<String>,
    /// What the emulator says of all that passed.
    pub(super) emulator: Verdict,
    /// Its counts: to the server, from it.
    pub(super) counts: Vec<Counts>,
    /// Of schema longhaul-path/1, without its environment, which is this record's.
    pub(super) path: serde_json::Value,
}

/// A verdict beside the one that is right.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Judged {
    way: Way,
    /// Any of these.
    right: Vec<Limit>,
    right_bufferbloat: bool,
    /// None: none was given.
    given: Option<Limit>,
    given_bufferbloat: bool,
    is_right: bool,
}

/// Packets of all of a measurement, one way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) segments: u64,
    pub(super) lost: u64,
    pub(super) dropped_queue: u64,
}

impl Run {
    /// Compares what was measured with what is known.
    pub(super) fn compare(&mut self, case: &Case, measured: &Measured) {
        match &case.expected {
            Expected::Figures => self.figures = figures(case.link, measured),
            Expected::Verdict { limits, bufferbloat } => {
                self.verdicts = Way::BOTH
                    .into_iter()
                    .map(|way| {
                        judged(way, limits, *bufferbloat, measured.verdicts.iter().find(|it| it.way == way))
                    })
                    .collect();
            }
        }
    }

    /// What follows the name of a run that is to be read with care.
    fn mark(&self) -> &'static str {
        if self.emulator.trusted { "" } else { " (doubted)" }
    }

    pub(super) fn in_words(&self) -> String {
        if let Some(failure) = &self.failure {
            return format!("FAILED: {failure}");
        }
        let within = self.figures.iter().filter(|figure| figure.within).count();
        let right = self.verdicts.iter().filter(|judged| judged.is_right).count();
        let doubts = if self.emulator.trusted {
            String::new()
        } else {
            format!("; doubted: {}", self.emulator.doubts.join("; "))
        };
        match self.figures.len() {
            0 => format!("{right} of {} verdicts right{doubts}", self.verdicts.len()),
            all => format!("{within} of {all} figures within{doubts}"),
        }
    }
}

fn figures(link: Link, measured: &Measured) -> Vec<Figure> {
    let Link::Emulated { mbps, rtt_ms, loss_percent, .. } = link else { return Vec::new() };
    let rtt = measured.rtt.filter(|rtt| rtt.back > 0).map(|rtt| rtt.median_ms);
    let mut all = vec![Figure::new("idle RTT, median", "ms", rtt_ms, rtt, rtt_allowed(rtt_ms))];
    for way in Way::BOTH {
        let what = format!("UDP capacity {way}");
        all.push(Figure::new(&what, "Mbit/s", mbps, measured.capacity(way), capacity_allowed(mbps)));
    }
    let share = loss_percent / 100.0;
    for way in Way::BOTH {
        let below = measured.udp.iter().find(|udp| udp.way == way).and_then(|udp| udp.below);
        let sent = below.map_or(0, |below| below.packets);
        let what = format!("lost below the capacity {way}, of {sent}");
        let lost = below.filter(|below| below.packets > 0).map(|below| below.lost as f64);
        all.push(Figure::new(&what, "packets", sent as f64 * share, lost, lost_allowed(sent, share)));
    }
    all
}

fn judged(way: Way, right: &[Limit], right_bufferbloat: bool, given: Option<&Limited>) -> Judged {
    let limit = given.map(|given| given.limit);
    let bufferbloat = given.is_some_and(|given| given.bufferbloat);
    Judged {
        way,
        right: right.to_vec(),
        right_bufferbloat,
        given: limit,
        given_bufferbloat: bufferbloat,
        is_right: limit.is_some_and(|limit| right.contains(&limit)) && bufferbloat == right_bufferbloat,
    }
}

impl Grid {
    pub(super) fn new(environment: Environment) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            environment,
            left_out: Vec::new(),
            runs: Vec::new(),
            set_aside: Vec::new(),
        }
    }

    /// Goes on with a record of the same program.
    pub(super) fn resumed(text: &str, environment: Environment) -> anyhow::Result<Self> {
        let mut grid: Self = serde_json::from_str(text)?;
        if grid.schema != SCHEMA {
            bail!("its schema is {}, not {SCHEMA}", grid.schema);
        }
        if grid.environment.program != environment.program {
            bail!("it was measured with another program or another revision of the sources");
        }
        grid.environment = environment;
        Ok(grid)
    }

    /// Adds a run; an older one of its case is set aside.
    pub(super) fn push(&mut self, run: Run) {
        match self.runs.iter_mut().find(|old| old.case == run.case) {
            Some(old) => {
                let old = std::mem::replace(old, run);
                self.set_aside.push(Run { path: serde_json::Value::Null, ..old });
            }
            None => self.runs.push(run),
        }
    }

    /// Whether everything is within its bounds, and right.
    pub(super) fn holds(&self) -> bool {
        self.runs.iter().all(|run| {
            run.failure.is_none()
                && run.figures.iter().all(|figure| figure.within)
                && run.verdicts.iter().all(|judged| judged.is_right)
        })
    }

    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    pub(super) fn markdown(&self) -> String {
        let environment = &self.environment;
        let mut text = String::from("# `longhaul probe --quick` beside what the links are\n\n");
        let _ = writeln!(
            text,
            "{}; {}; {} ({}); kernel {}; {} x {}.\n",
            environment.date,
            environment.command.join(" "),
            environment.program.version,
            environment.program.revision,
            environment.kernel,
            environment.cores,
            environment.cpu
        );
        text += "RTT within 0.5 ms or 1 %, capacity of the wire within 2 %, losses where 99 % of all counts lie for so many packets and the \
                 link's loss: of true figures of loss one in a hundred is outside. Doubted: the emulator says that it was late or \
                 dropped packets itself.\n\n";
        for line in &self.left_out {
            let _ = writeln!(text, "{line}\n");
        }
        self.figures_table(&mut text);
        self.verdicts_table(&mut text);
        for run in &self.runs {
            if let Some(failure) = &run.failure {
                let _ = writeln!(text, "Not measured: {}: {failure}\n", run.case);
            }
            if !run.emulator.trusted {
                let _ = writeln!(text, "Doubted: {}: {}\n", run.case, run.emulator.doubts.join("; "));
            }
        }
        for run in &self.set_aside {
            let _ = writeln!(
                text,
                "Set aside and measured again: {}, {}: {}\n",
                run.case,
                run.date,
                run.in_words()
            );
        }
        let _ = writeln!(text, "{}", self.count());
        text
    }

    fn figures_table(&self, text: &mut String) {
        *text += "| link | figure | known | allowed | measured | within |\n| --- | --- | ---: | ---: | ---: | --- |\n";
        for run in &self.runs {
            for figure in &run.figures {
                let measured = figure.measured.map_or_else(|| "none".to_owned(), short);
                let within = if figure.within { "yes" } else { "**no**" };
                let [least, most] = figure.allowed;
                let _ = writeln!(
                    text,
                    "| {}{} | {} | {} {} | {} to {} | {measured} | {within} |",
                    run.case,
                    run.mark(),
                    figure.what,
                    short(figure.known),
                    figure.unit,
                    short(least),
                    short(most)
                );
            }
        }
        *text += "\n";
    }

    fn verdicts_table(&self, text: &mut String) {
        *text += "| case | way | right | given | is right |\n| --- | --- | --- | --- | --- |\n";
        let bloat = |is_so: bool| if is_so { ", with bufferbloat" } else { "" };
        for run in &self.runs {
            for judged in &run.verdicts {
                let right: Vec<String> = judged.right.iter().map(ToString::to_string).collect();
                let given = judged.given.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
                let _ = writeln!(
                    text,
                    "| {}{} | {} | {}{} | {given}{} | {} |",
                    run.case,
                    run.mark(),
                    judged.way,
                    right.join(" or "),
                    bloat(judged.right_bufferbloat),
                    bloat(judged.given_bufferbloat),
                    if judged.is_right { "yes" } else { "**no**" }
                );
            }
        }
        *text += "\n";
    }

    /// The last line.
    fn count(&self) -> String {
        let figures: Vec<bool> =
            self.runs.iter().flat_map(|run| &run.figures).map(|figure| figure.within).collect();
        let verdicts: Vec<bool> =
            self.runs.iter().flat_map(|run| &run.verdicts).map(|judged| judged.is_right).collect();
        let yes = |all: &[bool]| all.iter().filter(|it| **it).count();
        format!(
            "{} runs: {} of {} figures within, {} of {} verdicts right; {} runs doubted, {} not measured; {} set aside.",
            self.runs.len(),
            yes(&figures),
            figures.len(),
            yes(&verdicts),
            verdicts.len(),
            self.runs.iter().filter(|run| !run.emulator.trusted).count(),
            self.runs.iter().filter(|run| run.failure.is_some()).count(),
            self.set_aside.len()
        )
    }
}

/// At most three digits behind the point, and no zeros at their end.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use longhaul_report::path::{Bound, Packets, Rtt, Udp};

    use super::super::cases::cases;
    use super::*;

    fn run(case: &str, trusted: bool) -> Run {
        Run {
            case: case.to_owned(),
            date: String::new(),
            link: Vec::new(),
            settings: Vec::new(),
            command: Vec::new(),
            seconds: 1.0,
            figures: Vec::new(),
            verdicts: Vec::new(),
            failure: None,
            emulator: Verdict { trusted, ..Verdict::default() },
            counts: Vec::new(),
            path: serde_json::Value::Null,
        }
    }

    fn case(name: &str) -> Case {
        cases().into_iter().find(|case| case.name == name).unwrap()
    }

    fn measured() -> Measured {
        let mut path = Measured::new("far", Environment::default());
        path.rtt = Some(Rtt { sent: 60, back: 60, median_ms: 20.1, ..Rtt::default() });
        for way in Way::BOTH {
            let above = Packets { arrived_mbps: 99.0, ..Packets::default() };
            let below = Some(Packets { packets: 5000, lost: 50, ..Packets::default() });
            path.udp.push(Udp {
                way,
                frame_bytes: 1518,
                bound: Bound::Path,
                above,
                below,
                half: None,
                bursts: Vec::new(),
            });
        }
        path
    }

    #[test]
    fn a_true_measurement_is_within_and_a_search_without_end_is_not() {
        let lossy = case("100m-20ms-loss1%");
        let (mut good, mut path) = (run(&lossy.name, true), measured());
        good.compare(&lossy, &path);
        assert_eq!(good.figures.len(), 5);
        assert!(good.figures.iter().all(|figure| figure.within), "{:?}", good.figures);
        // No limit was found that way: there is no capacity, whatever arrived.
        path.udp[0].bound = Bound::Sender;
        path.udp[1].below = None;
        let mut bad = run(&lossy.name, true);
        bad.compare(&lossy, &path);
        let within: Vec<bool> = bad.figures.iter().map(|figure| figure.within).collect();
        assert_eq!(within, [true, false, true, true, false]);
    }

    #[test]
    fn a_verdict_is_right_with_its_bufferbloat_only() {
        let given = |limit, bufferbloat| Limited {
            way: Way::ToServer,
            limit,
            bufferbloat,
            evidence: Vec::new(),
            by_itself: String::new(),
            advice: Vec::new(),
        };
        let is_right = |given: Option<Limited>| {
            judged(Way::ToServer, &[Limit::CpuHere, Limit::Rate], true, given.as_ref()).is_right
        };
        assert!(is_right(Some(given(Limit::Rate, true))) && is_right(Some(given(Limit::CpuHere, true))));
        assert!(!is_right(Some(given(Limit::Rate, false))) && !is_right(Some(given(Limit::Loss, true))));
        assert!(!is_right(None));
    }

    #[test]
    fn the_last_line_counts_and_a_case_that_is_measured_again_sets_its_run_aside() {
        let mut grid = Grid::new(Environment::default());
        let lossy = case("100m-20ms-loss1%");
        let mut first = run(&lossy.name, false);
        first.failure = Some("no route".to_owned());
        grid.push(first);
        assert!(!grid.holds());
        let mut again = run(&lossy.name, false);
        again.compare(&lossy, &measured());
        grid.push(again);
        assert!(grid.holds());
        let text = grid.markdown();
        let last = "1 runs: 5 of 5 figures within, 0 of 0 verdicts right; 1 runs doubted, 0 not measured; 1 set aside.\n";
        assert!(text.ends_with(last), "{text}");
        assert!(
            text.contains("Set aside and measured again: 100m-20ms-loss1%, : FAILED: no route\n"),
            "{text}"
        );
        assert!(text.contains(
            "| 100m-20ms-loss1% (doubted) | idle RTT, median | 20 ms | 19.5 to 20.5 | 20.1 | yes |"
        ));
        let resumed = Grid::resumed(&grid.to_json().unwrap(), Environment::default()).unwrap();
        assert_eq!(resumed.runs.len(), 1);
        let mut other = Environment::default();
        other.program.revision = "another".to_owned();
        assert!(Grid::resumed(&grid.to_json().unwrap(), other).is_err());
    }
}
