//! A mount whose command returns when the files are there: the same command goes on as a process of its own.
//!
//! Whoever reads the command's standard error by a pipe or a connection (`2>&1 | tee`, ssh, another program) waits for its end, and so for
//! all that hold it: the process in the background, and ssh if it has started that. These get a pipe of ours instead, which is passed on until the
//! files are there. What is said later goes to the system's log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, Command, ExitCode, Stdio};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::retry_on_intr;
use rustix::stdio::{dup2_stderr, stderr};

use crate::cli::print_out;

/// What the process in the background says when the files are there.
const READY: &str = "mounted\n";

/// Runs the same command in the background, and waits until it has mounted.
pub(super) fn start() -> anyhow::Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    let mut words = std::env::args_os().skip(1);
    // Behind the name of the command: there may be a `--`.
    command.args(words.next()).args(["--foreground", "--tell-ready"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if is_waited_for() {
        command.stderr(Stdio::piped());
    }
    // A group of its own: Ctrl-C at the terminal is meant for others.
    let mut child = command.process_group(0).spawn().context("cannot start the program in the background")?;
    let mut stdout = child.stdout.take().context("its output is piped")?;
    if let Some(said) = child.stderr.take() {
        pass_on(said, stdout.as_fd())?;
    }
    let mut ready = [0; READY.len()];
    if stdout.read_exact(&mut ready).is_ok() && ready == *READY.as_bytes() {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    // It has said why.
    Ok(ExitCode::from(
        status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code > 0).unwrap_or(2),
    ))
}

/// Tells the process that has started this one that the files are there.
pub(super) fn ready() -> io::Result<()> {
    if is_waited_for() {
        let log =
            system_log().or_else(|_| File::options().write(true).open("/dev/null").map(OwnedFd::from))?;
        dup2_stderr(log)?;
    }
    print_out(READY)
}

/// Whether somebody may wait for the end of standard error.
fn is_waited_for() -> bool {
    let kind = fstat(stderr()).map(|there| FileType::from_raw_mode(there.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Passes on what the process in the background says, until it has said something on its standard output, or is gone: what it said before is there by
/// then.
fn pass_on(mut said: ChildStderr, stdout: BorrowedFd<'_>) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let mut ends = [PollFd::new(&said, PollFlags::IN), PollFd::from_borrowed_fd(stdout, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ends, None))?;
        if !ends[0].revents().contains(PollFlags::IN) {
            return Ok(());
        }
        let length = said.read(&mut bytes)?;
        let _ = io::stderr().write_all(&bytes[..length]); // nobody can be told that it is closed
    }
}

/// What is written to it are lines of the system's log (logger(1)), until this process has ended.
fn system_log() -> io::Result<OwnedFd> {
    let mut logger = Command::new("logger");
    logger.args(["--tag", "longhaul", "--priority", "daemon.warning"]);
    logger.arg(format!("--id={}", std::process::id()));
    logger.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let lines = logger.process_group(0).spawn()?.stdin.take();
    lines.map(OwnedFd::from).ok_or_else(|| io::Error::other("its input is piped"))
}
