//! `plot` and `table`: kept results shown anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use longhaul_report::record::schema_of;
use longhaul_report::{Emulator, Io, Report, Targets, Trace, plot, table};

/// Draw a copy's throughput, lanes and buffers over time from a trace
#[derive(Debug, Args)]
pub(crate) struct Plot {
    /// What `longhaul cp --trace` has written
    trace: PathBuf,
    /// The SVG file to write [default: the trace's name with .svg]
    out: Option<PathBuf>,
    /// What stands above it [default: the trace's name]
    #[arg(long)]
    title: Option<String>,
}

/// Print the table of kept results, and draw their plots again with --plots; of several records of file I/O, a line for each link
#[derive(Debug, Args)]
pub(crate) struct Table {
    /// A results.json, or several of `bench io`
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// Draw the plots again, into this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

impl Plot {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let out = self.out.unwrap_or_else(|| self.trace.with_extension("svg"));
        let title = self.title.unwrap_or_else(|| self.trace.display().to_string());
        draw_trace(&self.trace, &out, &title)?;
        eprintln!("{}", out.display());
        Ok(ExitCode::SUCCESS)
    }
}

impl Table {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let [results] = &self.results[..] else {
            print_out(&longhaul_report::io::overview(
                &io_records(&self.results)?,
                longhaul_report::record::OURS,
            ))?;
            return Ok(ExitCode::SUCCESS);
        };
        let text = read(results)?;
        let context = || format!("cannot read {}", results.display());
        if schema_of(&text).with_context(context)? == longhaul_report::targets::SCHEMA {
            let mut targets = Targets::from_json(&text).with_context(context)?;
            targets.cases.iter_mut().for_each(longhaul_report::targets::Case::derive);
            print_out(&targets.markdown())?;
            return Ok(ExitCode::SUCCESS);
        }
        if schema_of(&text).with_context(context)? == longhaul_report::emulator::SCHEMA {
            let mut emulator = Emulator::from_json(&text).with_context(context)?;
            emulator.cases.iter_mut().for_each(longhaul_report::emulator::Case::derive);
            print_out(&emulator.markdown())?;
            return Ok(ExitCode::SUCCESS);
        }
        if schema_of(&text).with_context(context)? == longhaul_report::io::SCHEMA {
            print_out(&Io::from_json(&text).with_context(context)?.markdown())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut report = Report::from_json(&text).with_context(context)?;
        report.scenarios.iter_mut().for_each(longhaul_report::Scenario::derive);
        print_out(&table::report(&report))?;
        if let Some(plots) = self.plots {
            fs::create_dir_all(&plots)?;
            draw_bars(&report, &plots)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Each under the name of its directory.
fn io_records(files: &[PathBuf]) -> anyhow::Result<Vec<(String, Io)>> {
    let named = |file: &PathBuf| {
        let record =
            Io::from_json(&read(file)?).with_context(|| format!("cannot read {}", file.display()))?;
        let directory = file.parent().and_then(Path::file_name).unwrap_or(file.as_os_str());
        Ok((directory.to_string_lossy().into_owned(), record))
    };
    files.iter().map(named).collect()
}

/// Draws a trace into a file.
pub(crate) fn draw_trace(trace: &Path, out: &Path, title: &str) -> anyhow::Result<()> {
    let trace = Trace::parse(&read(trace)?).with_context(|| format!("cannot plot {}", trace.display()))?;
    write(out, &plot::throughput(&trace, title)?)
}

/// Draws a report's bars into a directory: a plot for each scenario, and one of all.
pub(crate) fn draw_bars(report: &Report, directory: &Path) -> anyhow::Result<()> {
    for scenario in &report.scenarios {
        let name = format!("{}.svg", scenario.name().replace('%', "").replace(' ', "-"));
        write(&directory.join(name), &plot::bars(scenario)?)?;
    }
    write(&directory.join("overview.svg"), &plot::overview(&report.scenarios)?)
}

pub(crate) use longhaul_bench::file::write;

/// To standard output.
pub(crate) fn print_out(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a record, which others shall read on other machines: files of this source tree are named from its top.
pub(crate) fn record(path: &Path, json: &str) -> anyhow::Result<()> {
    write(path, &named_from_top(json, &crate::workspace()))
}

fn named_from_top(json: &str, top: &Path) -> String {
    // Only where a word begins: another file's path may end in the same words. In a URL of xrootd's a path has two
    // slashes before it.
    ["\"", " ", "=", ":", ":1094/"]
        .iter()
        .fold(json.to_owned(), |json, before| json.replace(&format!("{before}{}/", top.display()), before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_files_from_the_top_of_the_tree() {
        let json = r#"["/longhaul/target/release/longhaul", "/longhaul-data/x", "--to=/longhaul/x", "host:/longhaul/x", "/me/longhaul/x", "root://h:1094//longhaul/x"]"#;
        let named = named_from_top(json, Path::new("/longhaul"));
        assert_eq!(
            named,
            r#"["target/release/longhaul", "/longhaul-data/x", "--to=x", "host:x", "/me/longhaul/x", "root://h:1094/x"]"#
        );
    }

    #[test]
    fn the_table_of_kept_records_is_of_all_of_them() {
        let kept = crate::workspace().join("benches/results");
        let directories = fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path());
        let is_io =
            |path: &PathBuf| path.is_dir() && path.file_name().unwrap().to_string_lossy().starts_with("io-");
        let mut records: Vec<PathBuf> =
            directories.filter(is_io).map(|directory| directory.join("results.json")).collect();
        records.sort_unstable();
        let table =
            longhaul_report::io::overview(&io_records(&records).unwrap(), longhaul_report::record::OURS);
        let shown = read(&kept.join("io.md")).unwrap();
        assert!(
            shown.ends_with(&table),
            "cargo xtask table benches/results/io-*/results.json says otherwise than io.md"
        );
    }
}
