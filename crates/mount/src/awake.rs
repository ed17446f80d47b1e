//! Keeps this host's CPUs awake while many requests come.
//!
//! A call on a mount wakes one of FUSE's readers, a task, and the program again. Between these its CPUs have nothing to do for some
//! microseconds and go to sleep, and waking takes longer than the call: some 100 us from the deep states of a bare machine (cpuidle's own `latency`), some tens in
//! a guest that halts, for then its hypervisor has to run. Power management's latency requests keep them from that for as long as
//! /dev/cpu_dma_latency is open (Documentation/power/pm_qos_interface.rst of the kernel), which takes root; without it they sleep as ever.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Requests of which the time is looked at.
const BURST: u64 = 64;

/// So many requests within this time are a program that waits for each: 1280 a second. One that moves much with each call makes fewer.
const BURST_TIME: Duration = Duration::from_millis(50);

/// CPUs stay awake for so long after a burst.
const LINGER: Duration = Duration::from_millis(200);

/// Of the states of a bare machine's CPUs those are left that take no longer to wake from: C1. With 0 they would run hot.
const BARE_US: i32 = 2;

/// In a guest each halt gives the CPU up.
const GUEST_US: i32 = 0;

/// Learns of requests, and holds the latency request while they come in bursts; drop it, and nothing is held.
#[derive(Debug)]
pub(crate) struct Awake {
    /// When the last [`BURST`] of requests was complete.
    burst: Mutex<Instant>,
    bursts: watch::Sender<()>,
}

impl Awake {
    pub(crate) fn new(runtime: &Handle) -> Self {
        let (bursts, seen) = watch::channel(());
        runtime.spawn(keep_awake(seen, hold));
        Self { burst: Mutex::new(Instant::now()), bursts }
    }

    /// The `number`th request has come.
    pub(crate) fn request(&self, number: u64) {
        if number.is_multiple_of(BURST) {
            let now = Instant::now();
            let last =
                std::mem::replace(&mut *self.burst.lock().unwrap_or_else(PoisonError::into_inner), now);
            if now - last <= BURST_TIME {
                self.bursts.send_replace(());
            }
        }
    }
}

/// Has what `hold` returns from a burst on until there was none for [`LINGER`].
async fn keep_awake<T>(mut bursts: watch::Receiver<()>, hold: impl Fn() -> io::Result<T>) {
    while bursts.changed().await.is_ok() {
        let held = match hold() {
            Ok(held) => held,
            Err(error) => {
                tracing::debug!(%error, "CPUs sleep between requests: /dev/cpu_dma_latency cannot be had");
                return;
            }
        };
        while let Ok(Ok(())) = tokio::time::timeout(LINGER, bursts.changed()).await {}
        drop(held);
    }
}

/// CPUs stay awake while this is open.
fn hold() -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
    let latency = if is_guest() { GUEST_US } else { BARE_US };
    file.write_all(&latency.to_ne_bytes())?;
    Ok(file)
}

/// The driver haltpoll is for nothing else (Documentation/virt/guest-halt-polling.rst of the kernel).
fn is_guest() -> bool {
    std::fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver")
        .is_ok_and(|driver| driver.trim() == "haltpoll")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn many_requests_in_a_short_time_are_a_burst() {
        let (bursts, seen) = watch::channel(());
        let awake = Awake { burst: Mutex::new(Instant::now() - 2 * BURST_TIME), bursts };
        (1..=BURST).for_each(|number| awake.request(number));
        assert!(!seen.has_changed().unwrap(), "they took long");
        *awake.burst.lock().unwrap() = Instant::now() + BURST_TIME; // however slow this machine is
        (BURST + 1..2 * BURST).for_each(|number| awake.request(number));
        assert!(!seen.has_changed().unwrap(), "one is missing");
        awake.request(2 * BURST);
        assert!(seen.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn held_from_a_burst_until_there_was_none_for_a_while() {
        let (bursts, seen) = watch::channel(());
        let here = Arc::new(());
        let held = Arc::clone(&here);
        let task = tokio::spawn(keep_awake(seen, move || Ok(Arc::clone(&held))));
        let holders = || Arc::strong_count(&here) - 2;
        let pass = async |time| tokio::time::sleep(time).await;
        pass(LINGER).await;
        assert_eq!(holders(), 0);
        for _ in 0..3 {
            bursts.send_replace(());
            pass(LINGER / 2).await;
            assert_eq!(holders(), 1);
        }
        pass(LINGER).await;
        assert_eq!(holders(), 0);
        bursts.send_replace(());
        pass(LINGER / 2).await;
        assert_eq!(holders(), 1, "again");
        drop(bursts);
        task.await.unwrap();
        assert_eq!(Arc::strong_count(&here), 1, "all is let go with the mount");
    }

    #[tokio::test]
    async fn without_the_right_to_nothing_is_held() {
        let (bursts, seen) = watch::channel(());
        bursts.send_replace(());
        keep_awake(seen, || Err::<(), _>(io::ErrorKind::PermissionDenied.into())).await;
        bursts.send_replace(()); // nobody listens any more
    }
}
