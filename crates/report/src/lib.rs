//! Results of measurements: records in one JSON schema, Markdown tables and plots.
//!
//! Everything here is pure, no file, clock or process, but [`picture`] reads the system's fonts. Whoever measures fills a [`Report`] with raw runs; what is
//! derived from them ([`Summary`](summary::Summary)) is computed here and nowhere else, so that a record can be read
//! back and shown anew.
//!
//! Every kind of record comes down to a [`Sheet`](sheet::Sheet), which a terminal ([`plain`]) and a page ([`page`]) show, and to
//! [`Series`](series::Series), of which tables for other programs are made; [`Kept`] reads any of them.
//!
//! Invariants: raw runs are never thrown away; a run that was cut off at its time limit is never shown as if it had
//! ended; every figure bears the word of the emulator on whether it can be trusted.

pub mod chart;
pub mod compare;
pub mod emulator;
pub mod io;
pub mod kept;
pub mod markup;
pub mod page;
pub mod palette;
pub mod path;
pub mod picture;
pub mod plain;
pub mod plot;
pub mod published;
pub mod record;
pub mod reports;
pub mod series;
pub mod sheet;
pub mod summary;
pub mod table;
pub mod targets;
pub mod trace;
pub mod traffic;

pub use emulator::Emulator;
pub use io::Io;
pub use kept::Kept;
pub use path::Path;
pub use record::{
    Amount, Data, End, Environment, LeftOut, Link, Program, Report, Run, SCHEMA, Said, Scenario, Usage,
    Verdict,
};
pub use reports::Reports;
pub use summary::Summary;
pub use targets::Targets;
pub use trace::Trace;
