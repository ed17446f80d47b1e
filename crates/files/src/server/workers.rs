//! Threads with a user's rights that carry out what may wait for a disk.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::Mode;
use rustix::io::Errno;
use tokio::sync::{Semaphore, oneshot};

use crate::access::Access;
use crate::limits::{WORK_WAITING_MAX, WORKERS_FOR_SYNCS, WORKERS_MAX};
use crate::rights::obey_quotas;

type Job = Box<dyn FnOnce() + Send>;

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    jobs: SyncSender<Job>,
    /// How many of the threads may sync.
    syncs: Arc<Semaphore>,
    /// And how many may read what nobody has asked for.
    ahead: Arc<Semaphore>,
}

impl Workers {
    /// Two for each core: most of the time they wait for a disk.
    pub(super) fn start(access: &Arc<dyn Access>) -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(WORK_WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let count =
            thread::available_parallelism().map_or(2, |cores| 2 * usize::from(cores)).min(WORKERS_MAX);
        for number in 0..count {
            let (access, waiting) = (Arc::clone(access), Arc::clone(&waiting));
            thread::Builder::new().name(format!("files{number}")).spawn(move || {
                enter_thread(&*access);
                // Permission bits are the client's: its umask has been taken off. The kernel keeps a umask for a
                // process, but for threads that ask for their own.
                match unshare(CloneFlags::CLONE_FS) {
                    Ok(()) => {
                        rustix::process::umask(Mode::empty());
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the server's own umask applies to what clients make")
                    }
                }
                work(&waiting);
            })?;
        }
        let part = || Arc::new(Semaphore::new(count / WORKERS_FOR_SYNCS));
        Ok(Self { jobs, syncs: part(), ahead: part() })
    }

    /// As [`run`](Self::run), for what waits until a disk has all that was written to a file: others find a thread
    /// meanwhile. Those that are too many wait in order.
    pub(super) async fn sync<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.run_in(&self.syncs, job).await
    }

    /// Likewise, for what reads many files that nobody waits for.
    pub(super) async fn ahead<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.run_in(&self.ahead, job).await
    }

    async fn run_in<T: Send + 'static>(
        &self,
        part: &Arc<Semaphore>,
        job: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let part = Arc::clone(part).acquire_owned().await.map_err(|_| Errno::IO)?;
        let job = move || {
            let _part = part; // as long as the thread is held, whoever waits for it still
            job()
        };
        self.run(job).await
    }

    /// Has `job` carried out. `EBUSY` when too many wait, `EIO` when it fails.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let (done, result) = oneshot::channel();
        let job = Box::new(move || {
            let _ = done.send(job()); // nobody waits any more: the session is over
        });
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Errno::BUSY,
            TrySendError::Disconnected(_) => Errno::IO,
        })?;
        result.await.unwrap_or(Err(Errno::IO))
    }
}

/// Takes on the rights with which a thread of a mount's touches files.
pub(super) fn enter_thread(access: &dyn Access) {
    access.enter_thread();
    if let Err(error) = obey_quotas() {
        tracing::error!(%error, "no quota binds a client that root mounts for all its users");
    }
}

fn work(waiting: &Mutex<Receiver<Job>>) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // One that fails leaves its asker without a result, which is an error there; the thread goes on.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::dir::Dir;
    use crate::name::RelPath;

    struct Nothing;

    impl Access for Nothing {
        fn resolve(&self, _path: &[u8], _to_write: bool) -> Result<(Dir, RelPath), String> {
            Err("there is nothing".to_owned())
        }
    }

    #[tokio::test]
    async fn whoever_does_not_sync_gets_through_while_all_syncs_hang() {
        let access: Arc<dyn Access> = Arc::new(Nothing);
        let workers = Arc::new(Workers::start(&access).unwrap());
        let (mut disks, mut syncs) = (Vec::new(), Vec::new());
        for number in 0..2 * WORKERS_MAX {
            let (disk, hanging) = mpsc::channel::<()>();
            let workers = Arc::clone(&workers);
            let job = move || {
                let _ = hanging.recv(); // until the disk is dropped
                Ok(number)
            };
            syncs.push(tokio::spawn(async move { workers.sync(job).await }));
            disks.push(disk);
        }
        // All have asked.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        for _ in 0..10 {
            let stat = tokio::time::timeout(Duration::from_secs(20), workers.run(|| Ok(7)));
            assert_eq!(stat.await.expect("it finds no thread"), Ok(7));
        }
        // The last first: they wait their turn.
        drop(disks.pop());
        drop(disks);
        for (number, sync) in syncs.into_iter().enumerate() {
            assert_eq!(sync.await.unwrap(), Ok(number));
        }
    }
}
