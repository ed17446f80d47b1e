//! Debian's Linux sources: a tree of many small files that everybody can get.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::file::remove;
use crate::link::checked;

/// Debian's package of the Linux sources.
#[derive(Debug)]
pub(crate) struct LinuxSource {
    pub(crate) tarball: PathBuf,
    pub(crate) tree: PathBuf,
}

const SOURCE_PACKAGE: &str = "linux-source-6.1";

impl LinuxSource {
    /// In `cache`: fetched and unpacked unless it is there.
    pub(crate) fn in_cache(cache: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let tarball = cache.join(format!("{SOURCE_PACKAGE}.tar.xz"));
        if !tarball.exists() {
            fetch(cache, &tarball)?;
        }
        let tree = cache.join(SOURCE_PACKAGE);
        if !tree.exists() {
            eprintln!("unpacking {} ...", tarball.display());
            let part = cache.join("unpack");
            remove(&part)?;
            fs::create_dir_all(&part)?;
            // As an ordinary user would own it, whoever unpacks it.
            let mut tar = Command::new("tar");
            tar.args(["--no-same-owner", "-xJf"]).arg(&tarball).arg("-C").arg(&part);
            checked(&mut tar).context("cannot unpack the sources (tar and xz-utils are needed)")?;
            fs::rename(part.join(SOURCE_PACKAGE), &tree)
                .with_context(|| format!("{} does not hold {SOURCE_PACKAGE}", tarball.display()))?;
            remove(&part)?;
        }
        Ok(Self { tarball, tree })
    }
}

/// Debian's package without root: `apt-get download`, and the tarball out of it.
fn fetch(cache: &Path, tarball: &Path) -> anyhow::Result<()> {
    eprintln!("fetching Debian's package {SOURCE_PACKAGE} (~140 MB) ...");
    let part = cache.join("fetch");
    remove(&part)?;
    fs::create_dir_all(&part)?;
    let mut download = Command::new("apt-get");
    checked(download.args(["download", SOURCE_PACKAGE]).current_dir(&part)).context(
        "cannot fetch the sources; `apt-get update` may be needed, and on other systems than Debian 12 `--data DIR` \
         takes a directory of your own",
    )?;
    let package = fs::read_dir(&part)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("deb")));
    let Some(package) = package else { bail!("apt-get download has left no package in {}", part.display()) };
    let unpacked = part.join("unpacked");
    checked(Command::new("dpkg").arg("-x").arg(&package).arg(&unpacked))?;
    let inside = unpacked.join(format!("usr/src/{SOURCE_PACKAGE}.tar.xz"));
    fs::rename(&inside, tarball).with_context(|| format!("{} is not in the package", inside.display()))?;
    remove(&part)
}
