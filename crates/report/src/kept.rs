//! A record of any kind, recognised by what it says of itself.

use crate::plain;
use crate::record::{ReadError, schema_of};
use crate::series::Series;
use crate::sheet::{self, Sheet};
use crate::trace::{Sample, TraceError};
use crate::{
    Emulator, Io, Path, Report, Reports, Targets, Trace, emulator, io, path, record, reports, table, targets,
};

/// One kept record.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    /// Copies beside each other.
    Copies(Report),
    /// What longhaul promises.
    Targets(Targets),
    /// The emulated link itself.
    Emulator(Emulator),
    /// File I/O by the length of a call.
    Io(Io),
    /// The reports' own experiments.
    Reports(Box<Reports>),
    /// What a path carries.
    Path(Box<Path>),
    /// A copy over time.
    Trace(Trace),
}

/// Why a file is no record that can be shown.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// It is compressed.
    #[error("it is compressed; unpack it first: `zcat FILE.gz > FILE`")]
    Compressed,
    /// It is nothing that longhaul has written.
    #[error(
        "no record of measurements: neither JSON with a `schema` (a results.json, `longhaul bench ... --json`) nor \
         what `longhaul cp --trace` writes"
    )]
    Foreign,
    /// It has a schema, and that is another one.
    #[error(
        "its schema is `{0}`, and this program shows {known}",
        known = SCHEMAS.map(|name| format!("`{name}`")).join(", ")
    )]
    Schema(String),
    /// It is of a known kind, and broken.
    #[error(transparent)]
    Broken(#[from] ReadError),
    /// It is a trace, and broken.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Every schema that can be read.
pub const SCHEMAS: [&str; 6] =
    [record::SCHEMA, targets::SCHEMA, emulator::SCHEMA, io::SCHEMA, path::SCHEMA, reports::SCHEMA];

/// How gzip(1)'s files begin (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

impl Kept {
    /// Reads a record; what is derived in it is computed anew.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn read(bytes: &[u8]) -> Result<Self, KeptError> {
        if bytes.starts_with(&GZIP) {
            return Err(KeptError::Compressed);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| KeptError::Foreign)?;
        match schema_of(text) {
            Ok(schema) => Self::of_schema(schema, text),
            Err(_) if is_trace(text) => Ok(Self::Trace(Trace::parse(text)?)),
            // Cut short, as by a full disk, it still begins with its name: then where it breaks off helps most.
            Err(error) if SCHEMAS.iter().any(|name| text.contains(name)) => Err(error.into()),
            Err(_) => Err(KeptError::Foreign),
        }
    }

    fn of_schema(schema: String, text: &str) -> Result<Self, KeptError> {
        match schema.as_str() {
            record::SCHEMA => {
                let mut report = Report::from_json(text)?;
                report.scenarios.iter_mut().for_each(record::Scenario::derive);
                Ok(Self::Copies(report))
            }
            targets::SCHEMA => {
                let mut targets = Targets::from_json(text)?;
                targets.cases.iter_mut().for_each(targets::Case::derive);
                Ok(Self::Targets(targets))
            }
            emulator::SCHEMA => {
                let mut emulator = Emulator::from_json(text)?;
                emulator.cases.iter_mut().for_each(emulator::Case::derive);
                Ok(Self::Emulator(emulator))
            }
            io::SCHEMA => Ok(Self::Io(Io::from_json(text)?)),
            reports::SCHEMA => Ok(Self::Reports(Box::new(Reports::from_json(text)?))),
            path::SCHEMA => Ok(Self::Path(Box::new(Path::from_json(text)?))),
            _ => Err(KeptError::Schema(schema)),
        }
    }

    /// What is to be shown of it, `name` being that of its file.
    #[must_use]
    pub fn sheet(&self, name: &str) -> Sheet {
        match self {
            Self::Copies(report) => sheet::copies::sheet(report),
            Self::Targets(targets) => sheet::targets::sheet(targets),
            Self::Emulator(emulator) => sheet::emulator::sheet(emulator),
            Self::Io(io) => sheet::io::sheet(io),
            Self::Reports(reports) => sheet::reports::sheet(reports),
            Self::Path(path) => sheet::path::sheet(path),
            Self::Trace(trace) => sheet::trace::sheet(trace, name),
        }
    }

    /// All its figures, a value for each run.
    #[must_use]
    pub fn series(&self) -> Vec<Series> {
        match self {
            Self::Copies(report) => sheet::copies::series(report),
            Self::Targets(targets) => sheet::targets::series(targets),
            Self::Emulator(emulator) => sheet::emulator::series(emulator),
            Self::Io(io) => sheet::io::series(io),
            Self::Reports(reports) => sheet::reports::series(reports),
            Self::Path(path) => sheet::path::series(path),
            Self::Trace(trace) => sheet::trace::series(trace),
        }
    }

    /// As Markdown, whole.
    #[must_use]
    pub fn markdown(&self, name: &str) -> String {
        match self {
            Self::Copies(report) => table::report(report),
            Self::Targets(targets) => targets.markdown(),
            Self::Emulator(emulator) => emulator.markdown(),
            Self::Io(io) => io.markdown(),
            Self::Reports(reports) => plain::markdown_sheet(&sheet::reports::sheet(reports)),
            Self::Path(path) => path.markdown(),
            Self::Trace(trace) => sheet::trace::markdown(trace, name),
        }
    }

    /// Its schema, as it names it itself; a trace has none.
    #[must_use]
    pub fn schema(&self) -> Option<&'static str> {
        match self {
            Self::Copies(_) => Some(record::SCHEMA),
            Self::Targets(_) => Some(targets::SCHEMA),
            Self::Emulator(_) => Some(emulator::SCHEMA),
            Self::Io(_) => Some(io::SCHEMA),
            Self::Reports(_) => Some(reports::SCHEMA),
            Self::Path(_) => Some(path::SCHEMA),
            Self::Trace(_) => None,
        }
    }
}

/// Every field of a sample may be missing: two of them tell that it is one.
fn is_trace(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.contains("\"seconds\"")
        && first.contains("\"done_bytes\"")
        && serde_json::from_str::<Sample>(first).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::record::tests::{run, scenario};
    use crate::record::{End, OURS};

    fn told(bytes: &[u8]) -> String {
        Kept::read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_record_is_known_by_its_own_word() {
        let environment = Environment::default;
        let mut copies = Report::new("c", environment());
        copies.scenarios.push(scenario(vec![run(OURS, 1_000_000_000, 9.0, End::Complete)]));
        let json = copies.to_json().unwrap();
        assert_eq!(Kept::read(json.as_bytes()).unwrap(), Kept::Copies(copies));
        let io = Io::new("i", environment());
        assert_eq!(Kept::read(io.to_json().unwrap().as_bytes()).unwrap(), Kept::Io(io));
        let trace = "{\"seconds\":0.1,\"done_bytes\":0}\n{\"seconds\":0.2,\"done_bytes\":9}\n";
        assert!(matches!(Kept::read(trace.as_bytes()), Ok(Kept::Trace(_))));
    }

    #[test]
    fn what_is_no_record_is_told_why() {
        assert!(told(b"\x1f\x8b\x08").contains("zcat"));
        assert!(told(b"\xff\xfe").starts_with("no record of measurements"));
        assert!(told(b"# A title\n").starts_with("no record of measurements"));
        assert!(told(b"{\"seconds\": 1}").starts_with("no record of measurements"));
        assert!(told(b"").starts_with("no record of measurements"));
        let names = told(br#"{"schema": "longhaul-names/1"}"#);
        assert!(names.contains("`longhaul-names/1`") && names.contains("`longhaul-io/1`"), "{names}");
        let short = told(br#"{"schema": "longhaul-io/1", "title": "#);
        assert!(short.contains("EOF") && short.contains("line 1"), "{short}");
        assert!(told(b"{\"seconds\":1,\"done_bytes\":1}\n").contains("fewer than two samples"));
    }
}
