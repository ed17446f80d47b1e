//! What is copied: a file of random bytes, or what is there; how much of it has arrived, and whether the copy is equal.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use anyhow::Context;
use longhaul_report::Amount;
use rustix::fs::{Advice, SeekFrom, fadvise};
use rustix::io::Errno;

use crate::file::remove;
use crate::limited::check_interrupt;

/// A file or a tree to copy.
#[derive(Clone, Debug)]
pub struct Data {
    name: String,
    about: String,
    source: PathBuf,
    tree: bool,
    amount: Amount,
}

/// A directory in memory for one of the benchmarks, where the source for fast links is: reading a disk while writing it
/// is not what is measured. Whoever uses it removes it: others need that memory.
pub fn memory(benchmark: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/longhaul-{benchmark}"))
}

/// What a tool makes of symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// A link is copied as a link.
    Kept,
    /// What they lead to is copied in their place.
    Followed,
    /// They are not copied.
    LeftOut,
}

impl Data {
    /// What is at `source`.
    pub fn of(name: &str, about: &str, source: &Path) -> anyhow::Result<Self> {
        let source = source.canonicalize().with_context(|| format!("cannot find {}", source.display()))?;
        let tree = source.is_dir();
        let amount = amount(&source, &|file| file.metadata().map(|m| m.len()))?;
        Ok(Self { name: name.to_owned(), about: about.to_owned(), source, tree, amount })
    }

    /// A file of random bytes in `directory`; one of the same size that is there is used again.
    pub fn random(directory: &Path, bytes: u64) -> anyhow::Result<Self> {
        let path = directory.join(format!("random-{bytes}.bin"));
        if fs::metadata(&path).map(|m| m.len()).ok() != Some(bytes) {
            fs::create_dir_all(directory)?;
            let part = path.with_extension("part");
            let mut random = File::open("/dev/urandom")?.take(bytes);
            let written = File::create(&part)
                .and_then(|mut file| io::copy(&mut random, &mut file))
                .and_then(|_| fs::rename(&part, &path));
            if let Err(error) = written {
                remove(&part)?;
                return Err(error)
                    .with_context(|| format!("cannot write {bytes} bytes to {}", path.display()));
            }
        }
        Self::of("big", "one file of random bytes", &path)
    }

    /// Short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Whether it is in that directory.
    pub fn is_below(&self, directory: &Path) -> bool {
        self.source.starts_with(directory)
    }

    /// Whether it is a directory.
    pub fn is_tree(&self) -> bool {
        self.tree
    }

    /// Its files and bytes.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// The last part of the source's name.
    pub fn file_name(&self) -> String {
        self.source.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The directory that servers serve.
    pub fn parent(&self) -> &Path {
        self.source.parent().unwrap_or(Path::new("/"))
    }

    /// Reads all of it once, so that every run finds it in memory, and memory that a virtual machine has seen before.
    pub fn warm(&self) -> anyhow::Result<()> {
        amount(&self.source, &|mut file| io::copy(&mut file, &mut io::sink())).map(drop)
    }

    /// For the record.
    pub fn record(&self, destination: &Path) -> longhaul_report::Data {
        longhaul_report::Data {
            name: self.name.clone(),
            about: self.about.clone(),
            files: self.amount.files,
            bytes: self.amount.bytes,
            source: self.source.display().to_string(),
            destination: destination.display().to_string(),
        }
    }
}

/// Regular files below `path` (or at it), each counted as `count` does.
fn amount(path: &Path, count: &dyn Fn(File) -> io::Result<u64>) -> anyhow::Result<Amount> {
    let mut sum = Amount::default();
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        check_interrupt()?;
        let kind = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // renamed this instant
            other => other.with_context(|| format!("cannot read {}", path.display()))?.file_type(),
        };
        if kind.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
                left.push(entry?.path());
            }
        } else if kind.is_file() {
            let bytes = File::open(&path)
                .and_then(count)
                .with_context(|| format!("cannot read {}", path.display()))?;
            sum.files += 1;
            sum.bytes += bytes;
        }
    }
    Ok(sum)
}

/// What has arrived below `directory`, under whatever names. Holes and space that is only reserved don't count: tools
/// that fill a file from several places reach its full length with the first byte at its end.
pub fn arrived(directory: &Path) -> anyhow::Result<Amount> {
    amount(directory, &bytes_of_data)
}

fn bytes_of_data(file: File) -> io::Result<u64> {
    let (mut bytes, mut at) = (0, 0);
    loop {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(bytes),
            other => other?,
        };
        at = rustix::fs::seek(&file, SeekFrom::Hole(data))?;
        bytes += at - data;
    }
}

/// How a copy differs from its source.
#[derive(Debug, Default)]
pub struct Comparison {
    /// In words, the first few.
    pub differences: Vec<String>,
    /// Symbolic links in the source.
    pub links: u64,
}

/// Differences told one by one.
const DIFFERENCES_MAX: usize = 4;

impl Comparison {
    /// Compares names, kinds and every byte; of links what the tool should have made of them.
    pub fn of(source: &Path, copy: &Path, links: Links) -> anyhow::Result<Self> {
        let mut comparison = Self::default();
        let mut left = vec![(source.to_owned(), copy.to_owned())];
        while let Some((source, copy)) = left.pop() {
            check_interrupt()?;
            if comparison.differences.len() >= DIFFERENCES_MAX {
                break;
            }
            comparison.compare(&source, &copy, links, &mut left)?;
        }
        Ok(comparison)
    }

    fn compare(
        &mut self,
        source: &Path,
        copy: &Path,
        links: Links,
        left: &mut Vec<(PathBuf, PathBuf)>,
    ) -> anyhow::Result<()> {
        let mut kind = fs::symlink_metadata(source)?.file_type();
        if kind.is_symlink() {
            self.links += 1;
            match links {
                Links::LeftOut => return Ok(()),
                Links::Kept => {
                    if fs::read_link(source).ok() != fs::read_link(copy).ok() {
                        self.differs(copy, "is not the same link");
                    }
                    return Ok(());
                }
                Links::Followed => match fs::metadata(source) {
                    Ok(behind) => kind = behind.file_type(),
                    Err(_) => return Ok(()), // leads nowhere
                },
            }
        }
        let Ok(there) = fs::symlink_metadata(copy) else {
            self.differs(copy, "is missing");
            return Ok(());
        };
        if kind.is_dir() != there.is_dir() || kind.is_file() != there.is_file() {
            self.differs(copy, "is of another kind");
        } else if kind.is_dir() {
            for name in names(source)? {
                left.push((source.join(&name), copy.join(&name)));
            }
            let extra =
                names(copy)?.into_iter().filter(|name| fs::symlink_metadata(source.join(name)).is_err());
            for name in extra {
                self.differs(&copy.join(name), "is not in the source");
            }
        } else if kind.is_file() && !same_bytes(source, copy)? {
            self.differs(copy, "has other bytes");
        }
        Ok(())
    }

    fn differs(&mut self, path: &Path, how: &str) {
        self.differences.push(format!("{} {how}", path.display()));
    }
}

fn names(directory: &Path) -> anyhow::Result<BTreeSet<std::ffi::OsString>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

/// Leaves nothing of `other` in the page cache: a virtual machine that frees much memory at once gives it back to its
/// host, which disturbs what is measured next.
fn same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    const PART: usize = 1 << 20;
    let mut at = 0;
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let length = one.metadata()?.len();
    if length != other.metadata()?.len() {
        return Ok(false);
    }
    let size = PART.min(length as usize + 1);
    let (mut a, mut b) = (vec![0; size], vec![0; size]);
    loop {
        let (n, m) = (fill(&mut one, &mut a)?, fill(&mut other, &mut b)?);
        if n != m || a[..n] != b[..n] {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
        at += m as u64;
        fadvise(&other, 0, NonZeroU64::new(at), Advice::DontNeed)?;
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut full = 0;
    while full < buffer.len() {
        match file.read(&mut buffer[full..])? {
            0 => break,
            n => full += n,
        }
    }
    Ok(full)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, symlink};

    use super::*;

    /// Two equal trees with a link, a directory and files.
    fn two_trees() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        for top in [&one, &other] {
            fs::create_dir_all(top.join("sub")).unwrap();
            fs::write(top.join("sub/file"), vec![7; 3 << 20]).unwrap();
            fs::write(top.join("empty"), "").unwrap();
            symlink("sub/file", top.join("link")).unwrap();
        }
        (dir, one, other)
    }

    fn differences(one: &Path, other: &Path, links: Links) -> Vec<String> {
        Comparison::of(one, other, links).unwrap().differences
    }

    #[test]
    fn equal_trees_are_equal_and_every_change_shows() {
        let (_dir, one, other) = two_trees();
        assert!(differences(&one, &other, Links::Kept).is_empty());
        let changes: [(&str, &dyn Fn()); 5] = [
            ("has other bytes", &|| {
                let file = File::options().write(true).open(other.join("sub/file")).unwrap();
                file.write_all_at(b"8", (3 << 20) - 1).unwrap();
            }),
            ("is missing", &|| fs::remove_file(other.join("empty")).unwrap()),
            ("is not in the source", &|| fs::write(other.join("more"), "").unwrap()),
            ("is not the same link", &|| {
                fs::remove_file(other.join("link")).unwrap();
                symlink("elsewhere", other.join("link")).unwrap();
            }),
            ("is of another kind", &|| {
                fs::remove_file(other.join("sub/file")).unwrap();
                fs::create_dir(other.join("sub/file")).unwrap();
            }),
        ];
        for (expected, change) in changes {
            change();
            let found = differences(&one, &other, Links::Kept);
            assert!(found.iter().any(|d| d.contains(expected)), "no `{expected}` in {found:?}");
        }
    }

    #[test]
    fn links_are_judged_by_what_the_tool_does_with_them() {
        let (_dir, one, other) = two_trees();
        fs::remove_file(other.join("link")).unwrap();
        assert!(differences(&one, &other, Links::LeftOut).is_empty());
        assert_eq!(differences(&one, &other, Links::Kept).len(), 1);
        assert_eq!(differences(&one, &other, Links::Followed).len(), 1);
        fs::copy(one.join("sub/file"), other.join("link")).unwrap();
        assert!(differences(&one, &other, Links::Followed).is_empty());
    }

    #[test]
    fn holes_have_not_arrived() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join(".part")).unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(arrived(dir.path()).unwrap(), Amount { files: 1, bytes: 0 });
        file.write_all_at(&[1; 1 << 20], 32 << 20).unwrap();
        assert_eq!(arrived(dir.path()).unwrap(), Amount { files: 1, bytes: 1 << 20 });
        fs::write(dir.path().join("small"), "12345").unwrap();
        assert_eq!(arrived(dir.path()).unwrap(), Amount { files: 2, bytes: (1 << 20) + 5 });
    }

    #[test]
    fn random_data_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::random(dir.path(), 100_000).unwrap();
        assert_eq!(data.amount(), Amount { files: 1, bytes: 100_000 });
        let bytes = fs::read(data.source()).unwrap();
        assert!(bytes.iter().filter(|byte| **byte == 0).count() < 1000, "random bytes are seldom 0");
        assert_eq!(fs::read(Data::random(dir.path(), 100_000).unwrap().source()).unwrap(), bytes);
    }
}
