//! `longhaul report`: kept records, shown to people and to other programs.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use longhaul_bench::file::write;
use longhaul_report::Kept;
use longhaul_report::chart::Chart;
use longhaul_report::compare::{self, Comparison};
use longhaul_report::series::{self, CSV_HEAD};
use longhaul_report::{page, picture, plain};
use serde_json::json;

use super::print_out;
use crate::terminal::harmless;

/// Show records of measurements: as tables, one HTML page, plots, or for other programs
///
/// A record is a `results.json` of benches/results, what `longhaul bench io --json` and `longhaul probe --json` print, or what `longhaul cp --trace` writes.
/// Each says itself of what kind it is. Every form shows all runs, what was cut off, and what the emulator says against its own link.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul report benches/results/io-2026-11-23T042931Z/results.json
  longhaul report --html report.html benches/results/copy-*/results.json
  longhaul report --csv */results.json > runs.csv
  longhaul report --png plots trace.jsonl
  longhaul bench io /mnt/far --json | longhaul report -
  longhaul report --compare before/results.json after/results.json
  longhaul report --baseline kept/results.json --tolerance 3% new/results.json

Exit codes: 0 all was shown; 1 some files were not, each is named, or a figure is worse than the baseline; 2 nothing was shown, or could be judged.")]
pub(crate) struct ReportCommand {
    /// Records; `-`: standard input
    #[arg(required_unless_present = "compare", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Compare two records of the same kind: for each figure the ratio, and its interval of 95 %
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["files", "baseline"])]
    compare: Option<Vec<PathBuf>>,
    /// Compare each file with this one, and end with 1 if a figure is worse
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// With --baseline: what a figure may be worse by, besides what its interval leaves open
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = tolerance)]
    tolerance: f64,
    /// Print Markdown
    #[arg(long, group = "form")]
    markdown: bool,
    /// Print a line for each run, as CSV
    #[arg(long, group = "form")]
    csv: bool,
    /// Print all figures with their runs as JSON (schema longhaul-figures/1)
    #[arg(long, group = "form")]
    json: bool,
    /// Write one page that needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plots as SVG into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the plots as PNG into this directory
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
    /// In tables on the terminal: every run, too
    #[arg(long)]
    runs: bool,
}

/// Longest record: the trace of an hour with 50 lanes takes 200 bytes for each of them ten times a second, 360 MB; what is made of it
/// in memory is smaller.
const RECORD_BYTES_MAX: u64 = 512 << 20;

/// A record and the name of its file.
struct Shown {
    name: String,
    kept: Kept,
}

impl ReportCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(both) = &self.compare {
            let [before, after] = both.as_slice() else { bail!("--compare takes two records") };
            self.compared(before, after)?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(baseline) = &self.baseline {
            return self.judged(baseline);
        }
        let mut records = Vec::new();
        for file in &self.files {
            match read(file) {
                Ok(kept) => records.push(Shown { name: name_of(file), kept }),
                Err(error) => eprintln!("{}", harmless(&format!("longhaul: {}: {error:#}", name_of(file)))),
            }
        }
        if records.is_empty() {
            bail!("none of the files is a record that can be shown");
        }
        let writes = self.html.is_some() || self.svg.is_some() || self.png.is_some();
        if self.markdown || self.csv || self.json || self.runs || !writes {
            print_out(&self.printed(&records)?)?;
        }
        if let Some(file) = &self.html {
            let sheets: Vec<page::Named> =
                records.iter().map(|record| (record.name.clone(), record.kept.sheet(&record.name))).collect();
            write(file, &page::page(&sheets))?;
        }
        for (directory, extension) in [(&self.svg, "svg"), (&self.png, "png")] {
            if let Some(directory) = directory {
                draw(&records, directory, extension)?;
            }
        }
        Ok(if records.len() < self.files.len() { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    /// Shows a comparison.
    fn compared(&self, before: &Path, after: &Path) -> anyhow::Result<Vec<Comparison>> {
        let series = |file: &Path| read(file).with_context(|| name_of(file)).map(|kept| kept.series());
        let (one, other) = (series(before)?, series(after)?);
        let all = compare::compare(&one, &other);
        if all.is_empty() {
            bail!("{} and {} have no figure in common", name_of(before), name_of(after));
        }
        let table = compare::table(&all);
        let missing = (compare::missing(&one, &other), compare::missing(&other, &one));
        print_out(&if self.json {
            let value = json!({
                "schema": compare::SCHEMA, "before": name_of(before), "after": name_of(after),
                "figures": compare::json(&all), "only_before": missing.0, "only_after": missing.1,
            });
            serde_json::to_string_pretty(&value)? + "\n"
        } else {
            let rows = if self.markdown { plain::markdown(&table) } else { plain::table(&table) };
            let method = plain::wrapped(compare::METHOD, 100).join("\n");
            let left = match missing {
                (0, 0) => String::new(),
                (one, other) => {
                    format!("Not in both, and left out: {one} figures of before, {other} of after.\n")
                }
            };
            harmless(&format!(
                "Before: {}\nAfter:  {}\n\n{rows}\n{left}{method}\n",
                name_of(before),
                name_of(after)
            ))
        })?;
        Ok(all)
    }

    /// Compares all files with one, and says whether any is worse.
    fn judged(&self, baseline: &Path) -> anyhow::Result<ExitCode> {
        let (mut judged, mut worse, mut failed) = (0, Vec::new(), false);
        for file in &self.files {
            match self.compared(baseline, file) {
                Ok(all) => {
                    judged += all.iter().filter(|each| each.is_judged()).count();
                    worse.extend(all.into_iter().filter(|each| each.is_worse_than(self.tolerance)));
                }
                Err(error) => {
                    failed = true;
                    eprintln!("{}", harmless(&format!("longhaul: {error:#}")));
                }
            }
        }
        for Comparison { before, ratio, .. } in &worse {
            let ratio = ratio.map_or(f64::NAN, |ratio| ratio.ratio);
            let words = format!(
                "worse: {}; {}, {}: {ratio:.3} times as much",
                before.scenario, before.tool, before.figure
            );
            eprintln!("{}", harmless(&words));
        }
        if judged == 0 {
            bail!("no figure could be judged: both records need two runs or more of each");
        }
        Ok(if failed || !worse.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    fn printed(&self, records: &[Shown]) -> anyhow::Result<String> {
        if self.json {
            let all: Vec<serde_json::Value> = records
                .iter()
                .map(|Shown { name, kept }| {
                    series::json(name, kept.schema(), &kept.sheet(name), &kept.series())
                })
                .collect();
            return Ok(
                serde_json::to_string_pretty(&json!({"schema": series::SCHEMA, "records": all}))? + "\n"
            );
        }
        if self.csv {
            let lines: String =
                records.iter().map(|each| series::csv(&each.name, &each.kept.series())).collect();
            return Ok(CSV_HEAD.to_owned() + &lines);
        }
        let each = |Shown { name, kept }: &Shown| {
            if self.markdown { kept.markdown(name) } else { plain::sheet(&kept.sheet(name), self.runs) }
        };
        Ok(harmless(&records.iter().map(each).collect::<Vec<_>>().join("\n")))
    }
}

/// `5%`, or `0.05`.
fn tolerance(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().map(|number| number / unit);
    let share = share.map_err(|_| format!("`{text}` is not a share: write `5%` or `0.05`"))?;
    if (0.0..1.0).contains(&share) { Ok(share) } else { Err("a share from 0% to less than 100%".to_owned()) }
}

fn name_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

fn read(file: &Path) -> anyhow::Result<Kept> {
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(file).context("cannot open it")?)
    };
    let mut bytes = Vec::new();
    source.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes).context("cannot read it")?;
    if bytes.len() as u64 > RECORD_BYTES_MAX {
        bail!("longer than any record: {} MiB at the most", RECORD_BYTES_MAX >> 20);
    }
    Ok(Kept::read(&bytes)?)
}

/// All charts, numbered in the order in which a page shows them.
fn draw(records: &[Shown], directory: &Path, extension: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut number = 0;
    for Shown { name, kept } in records {
        for chart in kept.sheet(name).parts.iter().flat_map(|part| &part.charts) {
            number += 1;
            let file = directory.join(format!("{number:02}-{}.{extension}", file_name(chart)));
            write(&file, &picture::for_file(&file, chart.file())?)?;
            eprintln!("{}", harmless(&file.display().to_string()));
        }
    }
    Ok(())
}

/// What a chart shows, as letters and digits: nobody's record decides where a file goes.
fn file_name(chart: &Chart) -> String {
    const LENGTH_MAX: usize = 60;
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let words: String = chart.title().chars().map(plain).collect();
    let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-").trim_start_matches('.').chars().take(LENGTH_MAX).collect()
}

#[cfg(test)]
mod tests {
    use longhaul_report::chart::Bars;

    use super::*;

    #[test]
    fn tolerances_are_shares() {
        assert_eq!((tolerance("5%"), tolerance("0.05"), tolerance("0")), (Ok(0.05), Ok(0.05), Ok(0.0)));
        assert!(
            tolerance("-1%").is_err()
                && tolerance("100%").is_err()
                && tolerance("NaN").is_err()
                && tolerance("x").is_err()
        );
    }

    #[test]
    fn a_title_becomes_a_harmless_name() {
        let named =
            |title: &str| file_name(&Chart::Bars(Bars { title: title.to_owned(), ..Bars::default() }));
        assert_eq!(named("1g-3.3ms: create write"), "1g-3.3ms-create-write");
        assert_eq!(named("../../etc/x"), "-..-etc-x");
        assert!(!named("/..\u{0}/a").contains('/'));
        assert_eq!(named(&"x".repeat(300)).len(), 60);
    }
}
