//! What the person at the terminal sees while a copy runs: one line of progress, and messages above it.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use longhaul_copy::{Progress, ProgressNow};
use tracing_subscriber::fmt::MakeWriter;

use crate::units::{show_rate, show_size};

/// Standard error, shared by messages and the progress line.
#[derive(Clone, Debug)]
pub(crate) struct Terminal {
    bars: MultiProgress,
    is_terminal: bool,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        Self { bars, is_terminal: io::stderr().is_terminal() }
    }

    /// Prints a line above the progress.
    pub(crate) fn say(&self, line: &str) {
        let mut text = line.to_owned();
        text.push('\n');
        // Nobody can be told that standard error is closed.
        self.bars.suspend(|| drop(io::stderr().write_all(text.as_bytes())));
    }

    /// Begins to log what libraries tell; `verbosity` 0: warnings.
    pub(crate) fn log(&self, verbosity: u8) {
        let level = match verbosity {
            0 => tracing::Level::WARN,
            1 => tracing::Level::INFO,
            _ => tracing::Level::DEBUG,
        };
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_target(false)
            .without_time()
            .with_ansi(self.is_terminal)
            .with_writer(self.clone());
        // Set once, at the start of the program.
        let _ = tracing::subscriber::set_global_default(subscriber.finish());
    }
}

impl<'a> MakeWriter<'a> for Terminal {
    type Writer = LogLine<'a>;
    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(self)
    }
}

/// One event of the log.
pub(crate) struct LogLine<'a>(&'a Terminal);

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bars.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message without what would make a terminal do more than show it: it may quote a far host, or a name.
pub(crate) fn harmless(text: &str) -> String {
    let escape =
        |c: char| if c.is_control() && c != '\n' { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// The progress of one copy.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    bar: Option<ProgressBar>,
    terminal: Terminal,
    progress: Arc<Progress>,
    began: Instant,
    /// The rate of the last seconds, and what it was measured from.
    rate: f64,
    last: (Instant, u64),
    last_plain: Instant,
}

/// How often a line is printed where no line can be redrawn.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

impl ProgressLine {
    pub(crate) fn new(terminal: &Terminal, progress: Arc<Progress>) -> Self {
        let bar = terminal.is_terminal.then(|| {
            let style = ProgressStyle::with_template("{bar:24.cyan/dim} {msg}")
                .unwrap_or(ProgressStyle::default_bar());
            terminal.bars.add(ProgressBar::new(0).with_style(style))
        });
        let now = Instant::now();
        Self {
            bar,
            terminal: terminal.clone(),
            progress,
            began: now,
            rate: 0.0,
            last: (now, 0),
            last_plain: now,
        }
    }

    /// Shows how far it is. Call a few times a second.
    pub(crate) fn tick(&mut self, lanes: usize) {
        let now = self.progress.now();
        let elapsed = self.last.0.elapsed().as_secs_f64();
        if elapsed > 0.2 {
            let rate = (now.done_bytes - self.last.1) as f64 / elapsed;
            // Over about three seconds; at the beginning over what there is.
            let weight = (elapsed / self.began.elapsed().as_secs_f64().min(3.0)).min(1.0);
            self.rate += (rate - self.rate) * weight;
            self.last = (Instant::now(), now.done_bytes);
        }
        let text = self.text(&now, lanes);
        match &self.bar {
            Some(bar) => {
                bar.set_length(now.found_bytes.max(1));
                bar.set_position(now.done_bytes + now.skipped_bytes);
                bar.set_message(text);
            }
            None if self.last_plain.elapsed() >= PLAIN_INTERVAL => {
                self.last_plain = Instant::now();
                self.terminal.say(&text);
            }
            None => {}
        }
    }

    fn text(&self, now: &ProgressNow, lanes: usize) -> String {
        let here = now.done_bytes + now.skipped_bytes;
        let more = if now.all_found { "" } else { "+" };
        let left = now.found_bytes.saturating_sub(here);
        let eta = match (now.all_found, self.rate) {
            (true, rate) if rate > 0.0 => show_seconds((left as f64 / rate) as u64),
            _ => "--:--".to_owned(),
        };
        let percent = (here * 100).checked_div(now.found_bytes).unwrap_or(0);
        format!(
            "{percent:>3} %  {}/{}{more}  {}  ETA {eta}  {}/{}{more} files  {lanes} lanes",
            show_size(here),
            show_size(now.found_bytes),
            show_rate(self.rate * 8.0),
            now.done_files + now.skipped_files,
            now.found_files,
        )
    }

    /// Takes the line away.
    pub(crate) fn clear(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `3:07`, `1:02:03`.
pub(crate) fn show_seconds(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}
