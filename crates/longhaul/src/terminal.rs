//! What the person at the terminal sees while something runs: one line of progress, or a picture of several lines, and messages above
//! it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use longhaul_copy::{Progress, ProgressNow};
use tracing_subscriber::fmt::MakeWriter;

use crate::units::{show_rate, show_size};

/// Standard error, shared by messages and what is drawn below them.
#[derive(Clone, Debug)]
pub(crate) struct Terminal {
    bars: MultiProgress,
    is_terminal: bool,
    /// The lines of a picture, the cursor below them.
    picture: Arc<Mutex<Vec<String>>>,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        Self { bars, is_terminal: io::stderr().is_terminal(), picture: Arc::default() }
    }

    /// Whether what was drawn can be drawn over.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    /// Whether standard output goes to the same one.
    pub(crate) fn has_standard_output(&self) -> bool {
        let (out, err) =
            (rustix::fs::fstat(rustix::stdio::stdout()), rustix::fs::fstat(rustix::stdio::stderr()));
        let is_same = out.is_ok_and(|out| err.is_ok_and(|err| out.st_rdev == err.st_rdev));
        self.is_terminal && io::stdout().is_terminal() && is_same
    }

    /// Prints a line above what is drawn.
    pub(crate) fn say(&self, line: &str) {
        let mut text = line.to_owned();
        text.push('\n');
        // Nobody can be told that standard error is closed.
        let _ = self.write_above(text.as_bytes());
    }

    fn write_above(&self, text: &[u8]) -> io::Result<()> {
        let picture = self.lines_of_picture();
        if picture.is_empty() {
            return self.bars.suspend(|| io::stderr().write_all(text));
        }
        let text = String::from_utf8_lossy(text);
        let frame = format!("{}{CLEAR_BELOW}{text}{}", up(&picture, Size::now()), lines(&picture));
        io::stderr().write_all(frame.as_bytes())
    }

    fn lines_of_picture(&self) -> MutexGuard<'_, Vec<String>> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
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
            // That nobody reads standard error any more would be said there, which panics.
            .log_internal_errors(false)
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
        self.0.write_above(bytes)?;
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

/// What a terminal has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) lines: usize,
    /// Of a line, without its last place: terminals differ in what they do after a letter there.
    pub(crate) letters: usize,
}

impl Size {
    /// Where there is no terminal, or it does not tell.
    const USUAL: Self = Self { lines: 24, letters: 79 };

    /// Of standard error's: it may change.
    fn now() -> Self {
        match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 1 => {
                Self { lines: size.ws_row.into(), letters: usize::from(size.ws_col) - 1 }
            }
            _ => Self::USUAL,
        }
    }
}

const CLEAR_LINE_ON: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// To the first line of a picture, from below its last. A terminal that has become narrower has broken its lines.
fn up(picture: &[String], size: Size) -> String {
    let rows =
        picture.iter().map(|line| line.chars().count().div_ceil(size.letters + 1).max(1)).sum::<usize>();
    if rows == 0 { String::new() } else { format!("\r\x1b[{rows}A") }
}

fn lines(picture: &[String]) -> String {
    picture.iter().map(|line| format!("{line}{CLEAR_LINE_ON}\r\n")).collect()
}

/// Lines that are drawn again and again, in place.
#[derive(Debug)]
pub(crate) struct Picture(Surface);

#[derive(Debug)]
enum Surface {
    Terminal(Terminal),
    /// Once, when it is whole: nothing can be drawn over.
    Plain,
    #[cfg(test)]
    Nowhere,
}

impl Picture {
    pub(crate) fn new(terminal: &Terminal) -> Self {
        Self(if terminal.is_terminal() { Surface::Terminal(terminal.clone()) } else { Surface::Plain })
    }

    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self(Surface::Nowhere)
    }

    /// What `draw` makes of the room there is, over what was drawn before. It stays as it is when it is the last.
    pub(crate) fn show(&self, draw: &dyn Fn(Size) -> Vec<String>, is_last: bool) {
        // Nobody can be told that standard error is closed.
        let _ = match &self.0 {
            Surface::Terminal(terminal) => {
                let (mut picture, size) = (terminal.lines_of_picture(), Size::now());
                let before = std::mem::replace(&mut *picture, draw(size));
                // At once, or it would flicker.
                let frame = format!("{}{}{CLEAR_BELOW}", up(&before, size), lines(&picture));
                if is_last {
                    picture.clear();
                }
                io::stderr().write_all(frame.as_bytes())
            }
            Surface::Plain if is_last => {
                let text: String = draw(Size::USUAL).iter().map(|line| format!("{line}\n")).collect();
                io::stderr().write_all(text.as_bytes())
            }
            _ => Ok(()),
        };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_drawn_over_from_its_first_line() {
        let picture = ["a".repeat(79), String::new(), "b".to_owned()];
        let size = |letters| Size { lines: 24, letters };
        assert_eq!(up(&picture, size(79)), "\r\x1b[3A");
        // Broken in two by a narrower terminal; and in four.
        assert_eq!(up(&picture, size(59)), "\r\x1b[4A");
        assert_eq!(up(&picture, size(19)), "\r\x1b[6A");
        assert_eq!(up(&[], size(79)), "");
        assert_eq!(lines(&picture[1..]), "\x1b[K\r\nb\x1b[K\r\n");
    }
}
