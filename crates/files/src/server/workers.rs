//! Threads with a user's rights that carry out what may wait for a disk.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::Mode;
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::access::Access;
use crate::limits::{WORK_WAITING_MAX, WORKERS_MAX};

type Job = Box<dyn FnOnce() + Send>;

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    jobs: SyncSender<Job>,
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
                access.enter_thread();
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
        Ok(Self { jobs })
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

fn work(waiting: &Mutex<Receiver<Job>>) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // One that fails leaves its asker without a result, which is an error there; the thread goes on.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}
