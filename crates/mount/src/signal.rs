//! Whether a thread that waits for the file system is to stop waiting.
//!
//! The kernel says so with a message that fuser answers by itself, and declines (0.18). A signal that waits for the
//! thread can be seen all the same: in proc_pid_status(5).

use std::time::Duration;

/// How often it is looked. A person who has typed Ctrl-C does not notice it.
const TICK: Duration = Duration::from_millis(100);

/// Waits until a signal that a thread does not block waits for it, or until the thread has gone. For ever, where the
/// thread cannot be seen from here.
pub(crate) async fn has_signal(thread: u32) {
    if thread == 0 {
        return std::future::pending().await; // of another namespace
    }
    loop {
        tokio::time::sleep(TICK).await;
        match std::fs::read_to_string(format!("/proc/{thread}/status")) {
            Ok(status) if is_signalled(&status) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(_) => return std::future::pending().await,
        }
    }
}

fn is_signalled(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_not_blocked_count() {
        let status = |own: u64, shared: u64, blocked: u64| {
            format!("Name:\tcat\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n")
        };
        assert!(!is_signalled(&status(0, 0, 0)));
        assert!(is_signalled(&status(2, 0, 0)));
        assert!(is_signalled(&status(0, 0x100, 2)));
        assert!(!is_signalled(&status(2, 2, 2)));
        assert!(!is_signalled("Name:\tcat\n"));
    }

    #[tokio::test]
    async fn a_thread_that_is_gone_does_not_wait() {
        has_signal(u32::MAX / 2).await;
    }
}
