//! What follows from the raw runs of a scenario: one line for each tool.

use serde::{Deserialize, Serialize};

use crate::record::{End, OURS, Run};

/// All runs of one tool in one scenario, together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the tool.
    pub tool: String,
    /// Whether it encrypts what it sends.
    pub encrypted: bool,
    /// Runs in all.
    pub runs: u32,
    /// Of them, those that ended by themselves with an equal copy.
    pub complete: u32,
    /// Of them, those that failed; they count in no other figure.
    pub failed: u32,
    /// Of them, those whose link the emulator vouches for. The others count in the figures: leaving out runs that the
    /// emulator could not follow would favour whoever is slow.
    pub trusted: u32,
    /// Payload, mean over the runs that did not fail; projected for those that were cut off.
    pub mbit_s_mean: Option<f64>,
    /// The same, median.
    pub mbit_s_median: Option<f64>,
    /// Time for the whole, median, of the runs that have one.
    pub seconds_median: Option<f64>,
    /// Whether any of the times is projected, not measured.
    pub projected: bool,
    /// Its mean rate over that of the fastest rival: for longhaul how much faster it is than the best other tool, for
    /// that tool 1.
    pub ratio_to_best_rival: Option<f64>,
}

impl Summary {
    /// One for each tool that has copied `whole_bytes`, in the order of their first runs, longhaul first.
    #[must_use]
    pub fn all(runs: &[Run], whole_bytes: u64) -> Vec<Self> {
        let mut tools: Vec<&str> = Vec::new();
        for run in runs {
            if !tools.contains(&run.tool.as_str()) {
                tools.push(&run.tool);
            }
        }
        tools.sort_by_key(|tool| *tool != OURS); // stable: the rivals keep their order
        let mut summaries: Vec<Self> = tools.iter().map(|tool| Self::of(tool, runs, whole_bytes)).collect();
        let best_rival = summaries
            .iter()
            .filter(|s| s.tool != OURS)
            .filter_map(|s| s.mbit_s_mean)
            .max_by(f64::total_cmp)
            .filter(|rate| *rate > 0.0);
        for summary in &mut summaries {
            summary.ratio_to_best_rival = summary.mbit_s_mean.zip(best_rival).map(|(own, best)| own / best);
        }
        summaries
    }

    fn of(tool: &str, runs: &[Run], whole_bytes: u64) -> Self {
        let own: Vec<&Run> = runs.iter().filter(|run| run.tool == tool).collect();
        let rates: Vec<f64> =
            own.iter().filter_map(|run| run.rate_bps(whole_bytes)).map(|bps| bps / 1e6).collect();
        let times: Vec<f64> = own.iter().filter_map(|run| run.whole_seconds()).collect();
        let count = |test: &dyn Fn(&Run) -> bool| own.iter().filter(|run| test(run)).count() as u32;
        Self {
            tool: tool.to_owned(),
            encrypted: own.iter().all(|run| run.encrypted),
            runs: own.len() as u32,
            complete: count(&|run| run.end == End::Complete),
            failed: count(&|run| matches!(run.end, End::Failed { .. })),
            trusted: count(&|run| run.link.trusted),
            mbit_s_mean: mean(&rates),
            mbit_s_median: median(&rates),
            seconds_median: median(&times),
            projected: own.iter().any(|run| matches!(run.end, End::Cut { .. })),
            ratio_to_best_rival: None,
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::run;

    const MB: u64 = 1_000_000;

    #[test]
    fn the_ratio_is_to_the_fastest_rival() {
        let runs = [
            run("scp", 100 * MB, 10.0, End::Cut { projected_seconds: Some(100.0) }),
            run(OURS, 1000 * MB, 10.0, End::Complete),
            run("rsync", 1000 * MB, 40.0, End::Complete),
            run(OURS, 1000 * MB, 8.0, End::Complete),
            run("rsync", 0, 1.0, End::Failed { reason: "no".to_owned() }),
        ];
        let all = Summary::all(&runs, 1000 * MB);
        let tools: Vec<&str> = all.iter().map(|s| s.tool.as_str()).collect();
        assert_eq!(tools, [OURS, "scp", "rsync"]);
        assert_eq!(all[0].mbit_s_mean, Some(900.0));
        assert_eq!(all[0].mbit_s_median, Some(900.0));
        assert_eq!(all[0].seconds_median, Some(9.0));
        assert_eq!(all[0].ratio_to_best_rival, Some(4.5));
        assert!(!all[0].projected && all[1].projected);
        assert_eq!(all[1].seconds_median, Some(100.0));
        assert_eq!(all[2].ratio_to_best_rival, Some(1.0));
        assert_eq!((all[2].runs, all[2].complete, all[2].failed), (2, 1, 1));
    }

    #[test]
    fn without_a_rival_that_moved_anything_there_is_no_ratio() {
        let runs = [
            run(OURS, 1000 * MB, 10.0, End::Complete),
            run("scp", 0, 60.0, End::Cut { projected_seconds: None }),
        ];
        let all = Summary::all(&runs, 1000 * MB);
        assert_eq!(all[0].ratio_to_best_rival, None);
        assert_eq!((all[1].mbit_s_mean, all[1].seconds_median), (Some(0.0), None));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }
}
