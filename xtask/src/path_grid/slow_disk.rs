//! A disk that is slow: the kernel holds back what processes of a control group read and write on a real one (its `blkio` or `io`
//! controller, throttling). What goes through the page cache is not held back by version 1, so this is for what goes past it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// Bytes a second, each of reading and writing: a third of the links of these cases.
pub(super) const BYTES_PER_SECOND: u64 = 4_000_000;

const VERSION_1: &str = "/sys/fs/cgroup/blkio";
const VERSION_2: &str = "/sys/fs/cgroup";

/// A control group in which a disk is slow; it goes when this is dropped, after its processes.
pub(super) struct SlowDisk {
    group: PathBuf,
}

impl SlowDisk {
    /// The disk that `directory` is on.
    pub(super) fn of(directory: &Path) -> anyhow::Result<Self> {
        let device = device(directory)?;
        let name = format!("longhaul-path-grid-{}", std::process::id());
        let (above, settings) = if Path::new(VERSION_1).join("cgroup.procs").exists() {
            let each = format!("{device} {BYTES_PER_SECOND}");
            let files = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];
            (VERSION_1, files.map(|file| (file, each.clone())).to_vec())
        } else {
            let control = Path::new(VERSION_2).join("cgroup.subtree_control");
            fs::write(&control, "+io").with_context(|| {
                format!(
                    "no disk can be made slow: the kernel's io controller is needed ({})",
                    control.display()
                )
            })?;
            let each = format!("{device} rbps={BYTES_PER_SECOND} wbps={BYTES_PER_SECOND}");
            (VERSION_2, vec![("io.max", each)])
        };
        let slow = Self { group: Path::new(above).join(name) };
        fs::create_dir(&slow.group).with_context(|| format!("cannot make {}", slow.group.display()))?;
        for (file, value) in settings {
            let file = slow.group.join(file);
            fs::write(&file, &value).with_context(|| {
                format!(
                    "no disk can be made slow: `{value}` to {} (the kernel needs CONFIG_BLK_DEV_THROTTLING)",
                    file.display()
                )
            })?;
        }
        Ok(slow)
    }

    /// For a process, all its threads, and what it starts.
    pub(super) fn hold_back(&self, pid: u32) -> anyhow::Result<()> {
        let file = self.group.join("cgroup.procs");
        fs::write(&file, pid.to_string())
            .with_context(|| format!("cannot have {} hold back process {pid}", self.group.display()))
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // A group is there until the last of its processes is.
        let deadline = Instant::now() + Duration::from_secs(5);
        while let Err(error) = fs::remove_dir(&self.group) {
            if Instant::now() > deadline {
                eprintln!("{} stays: {error}", self.group.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The whole disk that holds a directory, as the kernel counts: only whole ones are held back.
fn device(directory: &Path) -> anyhow::Result<String> {
    let number = fs::metadata(directory)?.dev();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let found = Path::new("/sys/dev/block").join(&number);
    if !found.exists() {
        bail!(
            "no disk can be made slow: {} is not on one disk of this machine, but in memory, on several or on a network; choose another \
             with --scratch",
            directory.display()
        );
    }
    let whole = if found.join("partition").exists() { found.join("../dev") } else { found.join("dev") };
    // `..` is that of where the link leads.
    let text = fs::read_to_string(&whole).with_context(|| format!("cannot read {}", whole.display()))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_has_no_disk() {
        let error = device(Path::new("/proc")).unwrap_err().to_string();
        assert!(error.contains("/proc is not on one disk"), "{error}");
    }
}
