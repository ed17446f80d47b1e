//! The signals that tell a program to end in order.

use tokio::signal::unix::{SignalKind, signal};

/// Until Ctrl-C, SIGTERM, or SIGHUP: the terminal has gone.
pub(crate) async fn until_told_to_stop() {
    // Listening to a signal would undo what nohup did.
    let stays = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status));
    until_signal(!stays).await;
}

async fn until_signal(or_hangup: bool) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    let mut hangup = if or_hangup { signal(SignalKind::hangup()).ok() } else { None };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        Some(_) = async { hangup.as_mut()?.recv().await } => {}
    }
}

/// Whether a process was started to ignore SIGHUP, by its `/proc/PID/status`.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is signal 1, SIGHUP.
    ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_terminal_that_has_gone_stops_a_program() {
        let mut stop = pin!(until_signal(true));
        // It listens from the first look on; before that the signal would end the tests.
        let stopped = poll_fn(|context| Poll::Ready(stop.as_mut().poll(context).is_ready())).await;
        assert!(!stopped);
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        tokio::time::timeout(Duration::from_secs(60), stop).await.unwrap();
    }

    #[test]
    fn a_program_under_nohup_is_known() {
        assert!(ignores_hangup("Name:\tlonghaul\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hangup(""));
    }
}
