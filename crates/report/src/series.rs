//! What every kind of record comes down to: series of one figure, of one tool in one scenario, a value for each run.
//!
//! Tables for other programs, plots and comparisons are made from these. Invariant: every run that has a value is in it,
//! with all that must be known of it; none is left out for being slow, cut off or doubted.

use std::fmt::Write;

use serde_json::json;

use crate::sheet::Sheet;

/// Name and version of the schema of what [`json`] gives, in a list.
pub const SCHEMA: &str = "longhaul-figures/1";

/// One figure of one tool in one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Link and data, or case; unique in a record together with the three below.
    pub scenario: String,
    /// The tool, file system or experiment.
    pub tool: String,
    /// What was measured, with its unit: `Mbit/s`.
    pub figure: String,
    /// Bytes of a call, where the record is about those.
    pub call_bytes: Option<u64>,
    /// Which way is better.
    pub better: Better,
    /// One for each run that has one, in the order in which they were made.
    pub values: Vec<Value>,
    /// Runs without a value.
    pub failed: u32,
}

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The larger: rates.
    More,
    /// The smaller: times.
    Less,
    /// Neither: counts that shall be what theory says.
    Neither,
}

/// The value of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Of the run; from 1.
    pub round: u32,
    /// In the figure's unit.
    pub value: f64,
    /// The run was cut off at its limit.
    pub is_cut: bool,
    /// The emulator does not vouch for the link in this run.
    pub is_doubted: bool,
    /// The machine's own host gave processor time to others meanwhile.
    pub is_disturbed: bool,
}

impl Value {
    /// One that nothing is to be said against.
    #[must_use]
    pub fn of(round: u32, value: f64) -> Self {
        Self { round, value, is_cut: false, is_doubted: false, is_disturbed: false }
    }
}

/// Mean and spread of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// How many there are.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample (n - 1); none of a single value.
    pub deviation: Option<f64>,
}

impl Spread {
    /// None where there is nothing, or nothing that is a number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (count > 1).then(|| (squares / (count - 1) as f64).sqrt());
        let is_number = mean.is_finite() && deviation.is_none_or(f64::is_finite);
        is_number.then_some(Self { count, mean, deviation })
    }
}

impl Series {
    /// All values, without what is to be said of them.
    #[must_use]
    pub fn numbers(&self) -> Vec<f64> {
        self.values.iter().map(|value| value.value).collect()
    }

    /// Of all values.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        Spread::of(&self.numbers())
    }

    /// Values by which the figure is judged: those of runs that nothing disturbed, if there are any.
    #[must_use]
    pub fn counted(&self) -> Vec<f64> {
        counted(&self.values, |value| value.is_disturbed).map(|value| value.value).collect()
    }

    /// Of [`counted`](Self::counted) values.
    #[must_use]
    pub fn counted_spread(&self) -> Option<Spread> {
        Spread::of(&self.counted())
    }

    /// Whether it is the same figure of the same tool in the same scenario.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        let key = |series: &Self| {
            (series.scenario.clone(), series.tool.clone(), series.figure.clone(), series.call_bytes)
        };
        key(self) == key(other)
    }
}

/// Those that count: what nothing disturbed, or all where everything was.
pub(crate) fn counted<T>(all: &[T], is_disturbed: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
    let is_any_calm = all.iter().any(|one| !is_disturbed(one));
    all.iter().filter(move |one| !is_any_calm || !is_disturbed(one))
}

/// The first line of [`csv`].
pub const CSV_HEAD: &str =
    "record,scenario,tool,figure,call_bytes,round,value,cut_off,link_doubted,disturbed\r\n";

/// A line for each run, as RFC 4180 has it, without the head: several records make one table.
#[must_use]
pub fn csv(record: &str, all: &[Series]) -> String {
    let mut text = String::new();
    for series in all {
        let length = series.call_bytes.map_or_else(String::new, |bytes| bytes.to_string());
        for Value { round, value, is_cut, is_doubted, is_disturbed } in &series.values {
            let [record, scenario, tool, figure] =
                [record, &series.scenario, &series.tool, &series.figure].map(quoted);
            let _ = write!(
                text,
                "{record},{scenario},{tool},{figure},{length},{round},{value},{is_cut},{is_doubted},{is_disturbed}\r\n"
            );
        }
    }
    text
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// A record for other programs: what it is, and its series with their means.
#[must_use]
pub fn json(record: &str, schema: Option<&str>, sheet: &Sheet, all: &[Series]) -> serde_json::Value {
    let run = |value: &Value| {
        let Value { round, value, is_cut, is_doubted, is_disturbed } = value;
        json!({
            "round": round, "value": value, "cut_off": is_cut, "link_doubted": is_doubted,
            "disturbed": is_disturbed,
        })
    };
    let figure = |series: &Series| {
        let spread = series.spread();
        let better = match series.better {
            Better::More => "more",
            Better::Less => "less",
            Better::Neither => "neither",
        };
        json!({
            "scenario": series.scenario, "tool": series.tool, "figure": series.figure,
            "call_bytes": series.call_bytes, "better": better, "mean": spread.map(|spread| spread.mean),
            "standard_deviation": spread.and_then(|spread| spread.deviation), "failed": series.failed,
            "runs": series.values.iter().map(run).collect::<Vec<_>>(),
        })
    };
    let facts: serde_json::Map<String, serde_json::Value> = sheet
        .facts
        .iter()
        .map(|(name, value)| (name.to_lowercase(), value.replace('`', "").into()))
        .collect();
    let doubts: Vec<&String> = sheet.parts.iter().flat_map(|part| &part.doubts).collect();
    json!({
        "record": record, "schema": schema, "title": sheet.title, "facts": facts, "summary": sheet.summary,
        "doubts": doubts, "figures": all.iter().map(figure).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn series(tool: &str, values: &[f64]) -> Series {
        Series {
            scenario: "1 Gbit/s, RTT 100 ms".to_owned(),
            tool: tool.to_owned(),
            figure: "Mbit/s".to_owned(),
            call_bytes: None,
            better: Better::More,
            values: (1..).zip(values).map(|(round, value)| Value::of(round, *value)).collect(),
            failed: 0,
        }
    }

    #[test]
    fn a_single_value_has_no_spread() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[7.0]), Some(Spread { count: 1, mean: 7.0, deviation: None }));
        let three = Spread::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((three.mean, three.deviation), (2.0, Some(1.0)));
        assert_eq!(Spread::of(&[f64::MAX, f64::MAX]), None, "no number");
    }

    #[test]
    fn commas_and_quotes_stay_in_their_field() {
        let text = csv("a\"b", &[series("x,y", &[1.5])]);
        assert_eq!(text, "\"a\"\"b\",\"1 Gbit/s, RTT 100 ms\",\"x,y\",Mbit/s,,1,1.5,false,false,false\r\n");
        assert_eq!(CSV_HEAD.trim().split(',').count(), 10);
    }
}
