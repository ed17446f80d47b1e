//! The disks at both ends of a path: how a server measures its own for a client, and what becomes of both in a record.

use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use longhaul_report::path::{Disk, Side};
use rustix::fs::{Mode, OFlags};
use tokio::sync::oneshot;

use super::client::{ProbeError, Prober, ask};
use super::message::{Answer, Ask, DiskAsk};
use crate::disk::{DiskError, Measured, measure};
use crate::limits::DISK_LATE_MAX;

/// The directories of a server of which one client may have the disk measured: those that it may write to.
pub trait Directories: Send + Sync + 'static {
    /// Opens the one that the client names so, in the client's name: on a thread that does nothing else, and may take on the rights of a
    /// user.
    ///
    /// # Errors
    /// In words for the client.
    fn open(&self, path: &[u8]) -> Result<Box<dyn AsFd>, String>;
}

impl fmt::Debug for dyn Directories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Directories")
    }
}

/// Measures a disk at a server on a thread of its own, which lasts no longer than the disk makes it wait once the session is `over`, and
/// has `held` as long.
///
/// # Errors
/// The disk is late.
pub(super) async fn in_time(
    directories: Arc<dyn Directories>,
    path: Bytes,
    time: Duration,
    over: Arc<AtomicBool>,
    held: impl Send + 'static,
) -> Result<Result<Measured, String>, String> {
    let (done, outcome) = oneshot::channel();
    let job = move || {
        let is_wanted = || !over.load(SeqCst);
        let measured = directories
            .open(&path)
            .and_then(|directory| measure(directory, time, &is_wanted).map_err(|error| error.to_string()));
        drop(held);
        let _ = done.send(measured); // nobody waits any more: the session is over, or the disk late
    };
    let thread = std::thread::Builder::new().name("disk".to_owned()).spawn(job);
    thread.map_err(|error| format!("it cannot start a thread: {error}"))?;
    let late = 2 * time + DISK_LATE_MAX;
    match tokio::time::timeout(late, outcome).await {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(_)) => Err("the measurement of its disk failed".to_owned()),
        Err(_) => Err(format!("its disk has not answered for {} s", late.as_secs())),
    }
}

impl Prober {
    /// Has the disk of a directory at the server measured, for `time` each of writing and reading.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn disk(&self, directory: &Path, time: Duration) -> Result<Measured, ProbeError> {
        match ask(self.session(), Ask::Disk(DiskAsk::new(directory.as_os_str().as_bytes(), time))).await? {
            Answer::Disk(disk) => disk.outcome().ok_or(ProbeError::Answer)?.map_err(ProbeError::Disk),
            _ => Err(ProbeError::Answer),
        }
    }
}

/// Measures the disk of a directory of this host.
pub(super) async fn here(directory: &Path, time: Duration) -> Result<Measured, ProbeError> {
    let directory = directory.to_owned();
    let job = move || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::open(directory, flags, Mode::empty()).map_err(DiskError::from);
        open.and_then(|directory| measure(directory, time, &|| true))
    };
    let outcome = tokio::task::spawn_blocking(job).await.map_err(std::io::Error::other)?;
    outcome.map_err(|error| ProbeError::Disk(error.to_string()))
}

/// For the record.
pub(super) fn disk(side: Side, directory: &Path, measured: &Measured) -> Disk {
    Disk {
        side,
        directory: directory.to_string_lossy().into_owned(),
        write_mbps: measured.write.mbps(),
        read_mbps: measured.read.mbps(),
        direct: measured.direct,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// One directory, whatever it is called; but for one name.
    struct One(std::path::PathBuf);

    impl Directories for One {
        fn open(&self, path: &[u8]) -> Result<Box<dyn AsFd>, String> {
            if path == b"secret" {
                return Err("not for you".to_owned());
            }
            Ok(Box::new(std::fs::File::open(&self.0).map_err(|error| error.to_string())?))
        }
    }

    /// Tells when it is dropped.
    struct Place(Option<oneshot::Sender<()>>);

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = self.0.take().map(|freed| freed.send(())); // who waits for it may be gone
        }
    }

    #[tokio::test]
    async fn a_disk_is_left_alone_when_the_session_is_over() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let directories: Arc<dyn Directories> = Arc::new(One(temp.path().to_owned()));
        let over = Arc::new(AtomicBool::new(false));
        let (freed, is_freed) = oneshot::channel();
        let (began, hour) = (Instant::now(), Duration::from_secs(3600));
        let place = Place(Some(freed));
        let session = Arc::clone(&over);
        let measured = in_time(Arc::clone(&directories), "data".into(), hour, session, place);
        let end = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            over.store(true, SeqCst);
        };
        let (outcome, ()) = tokio::join!(measured, end);
        // A fast disk may have written its 8 GiB by then, but hardly have read them.
        assert_eq!(outcome, Ok(Err("the measurement was ended".to_owned())));
        is_freed.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(600));
        let over = Arc::default();
        let refused = in_time(directories, "secret".into(), Duration::from_millis(1), over, ()).await;
        assert_eq!(refused, Ok(Err("not for you".to_owned())));
    }
}
