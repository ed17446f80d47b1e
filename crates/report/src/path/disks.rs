//! Disks at the ends of a path.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Path, Table};
use crate::table::significant;

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The one who asked.
    Here,
    /// The server.
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "this host",
            Self::Server => "the server",
        })
    }
}

/// A disk: a file was written to it, and read again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Whose.
    pub side: Side,
    /// The directory, as it was named.
    pub directory: String,
    /// Until all was on the disk, Mbit/s.
    pub write_mbps: f64,
    /// Mbit/s.
    pub read_mbps: f64,
    /// Past the page cache; else through it, with the disk waited for.
    pub direct: bool,
}

impl Path {
    /// Of the disks; none where none was measured.
    pub(crate) fn disks_table(&self) -> Option<Table> {
        let rows: Vec<_> = self.disks.iter().map(Disk::row).collect();
        let caption = "Disks, Mbit/s, one file written and read".to_owned();
        let head = vec!["disk of", "directory", "write", "read", "past the page cache"];
        (!rows.is_empty()).then_some((caption, head, rows))
    }
}

impl Disk {
    fn row(&self) -> Vec<String> {
        vec![
            self.side.to_string(),
            self.directory.clone(),
            significant(self.write_mbps),
            significant(self.read_mbps),
            if self.direct { "yes" } else { "no" }.to_owned(),
        ]
    }
}
