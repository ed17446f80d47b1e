//! Files to copy, and whether two trees are the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Writes a file of `bytes` that no compression or luck can guess; `seed` makes it unlike others.
pub(crate) fn write_random(path: &Path, bytes: u64, seed: u64) {
    let mut file = File::create(path).unwrap();
    // BLAKE3 as a generator: fast also in a build without optimisation.
    let mut random = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    let mut part = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(part.len() as u64) as usize;
        random.fill(&mut part[..now]);
        file.write_all(&part[..now]).unwrap();
        left -= now as u64;
    }
}

/// The BLAKE3 hash of a file's bytes.
pub(crate) fn hash(path: &Path) -> blake3::Hash {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut file).unwrap();
    hasher.finalize()
}

/// Fails the test unless both files have the same bytes.
#[track_caller]
pub(crate) fn assert_same_bytes(one: &Path, other: &Path) {
    assert_eq!(hash(one), hash(other), "{} and {} differ", one.display(), other.display());
}

/// Fails the test when an unfinished copy's own files are left anywhere below `dir`.
#[track_caller]
pub(crate) fn assert_no_leftovers(dir: &Path) {
    let left: Vec<PathBuf> = walk(dir).into_iter().filter(|path| is_leftover(path)).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

pub(crate) fn is_leftover(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".longhaul-"))
}

/// All that is below `dir`, without it.
pub(crate) fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What is compared of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: &'static str,
    /// Of a file its hash, of a link its target.
    content: String,
    mode: u32,
    modified: (i64, i64),
    /// The first of its names in the tree.
    same_as: PathBuf,
    xattrs: Vec<String>,
}

/// All of a tree, by the paths below it.
pub(crate) fn see(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut first_names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut seen = BTreeMap::new();
    for path in walk(top) {
        let meta = path.symlink_metadata().unwrap();
        let below = path.strip_prefix(top).unwrap().to_owned();
        let kind = meta.file_type();
        let (kind, content) = match () {
            () if kind.is_dir() => ("directory", String::new()),
            () if kind.is_symlink() => ("link", std::fs::read_link(&path).unwrap().display().to_string()),
            () if kind.is_fifo() => ("pipe", String::new()),
            () => ("file", hash(&path).to_hex().to_string()),
        };
        let first = match kind {
            "directory" => below.clone(),
            _ => first_names.entry((meta.dev(), meta.ino())).or_insert_with(|| below.clone()).clone(),
        };
        // The bits and times of links are nobody's business.
        let is_link = kind == "link";
        let entry = Seen {
            kind,
            content,
            mode: if is_link { 0 } else { meta.mode() & 0o7777 },
            modified: (meta.mtime(), meta.mtime_nsec()),
            same_as: first,
            xattrs: if is_link { Vec::new() } else { xattrs(&path) },
        };
        seen.insert(below, entry);
    }
    seen
}

fn xattrs(path: &Path) -> Vec<String> {
    let shown = std::process::Command::new("getfattr")
        .args(["--absolute-names", "-d", "-e", "hex"])
        .arg(path)
        .output();
    // Without getfattr no test sets any.
    let Ok(shown) = shown else { return Vec::new() };
    let text = String::from_utf8_lossy(&shown.stdout);
    text.lines().filter(|line| line.starts_with("user.")).map(str::to_owned).collect()
}

/// Fails the test unless both trees are the same in all that `cp -a` keeps.
#[track_caller]
pub(crate) fn assert_same_trees(one: &Path, other: &Path) {
    let (one, other) = (see(one), see(other));
    let names = |tree: &BTreeMap<PathBuf, Seen>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one), names(&other), "names");
    for (path, seen) in &one {
        assert_eq!(seen, &other[path], "{}", path.display());
    }
}

/// As [`assert_same_trees`], of names, kinds and bytes only.
#[track_caller]
pub(crate) fn assert_same_contents(one: &Path, other: &Path) {
    let content = |tree: BTreeMap<PathBuf, Seen>| -> Vec<_> {
        tree.into_iter().map(|(path, seen)| (path, seen.kind, seen.content)).collect()
    };
    assert_eq!(content(see(one)), content(see(other)));
}
