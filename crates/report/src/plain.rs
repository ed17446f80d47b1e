//! A sheet for a terminal.

use std::fmt::Write;

use crate::sheet::{Cell, MARKS, Sheet, Table, Tone};

/// Of sentences; tables are as wide as they are.
const WIDTH: usize = 100;

/// A record. `details`: also the tables that are shown when they are asked for, every raw run among them.
#[must_use]
pub fn sheet(sheet: &Sheet, details: bool) -> String {
    let mut text = format!("{}\n{}\n\n", sheet.title, "=".repeat(sheet.title.chars().count().min(WIDTH)));
    let width = sheet.facts.iter().map(|fact| fact.0.len()).max().unwrap_or(0);
    for (name, value) in &sheet.facts {
        let lines = wrapped(&value.replace('`', ""), WIDTH - width - 2);
        for (place, line) in lines.iter().enumerate() {
            let name = if place == 0 { *name } else { "" };
            // A String takes everything here.
            let _ = writeln!(text, "{name:<width$}  {line}");
        }
    }
    list(&mut text, "", &sheet.summary);
    for part in &sheet.parts {
        let _ = writeln!(text, "\n{}\n{}", part.title, "-".repeat(part.title.chars().count().min(WIDTH)));
        for line in part.about.iter().flat_map(|line| wrapped(&line.replace('`', ""), WIDTH)) {
            let _ = writeln!(text, "{line}");
        }
        for each in part.tables.iter().filter(|table| details || !table.is_detail) {
            let _ = write!(text, "\n{}:\n\n{}", each.caption, table(each));
        }
        list(&mut text, "The emulator doubts its own link:", &part.doubts);
        list(&mut text, "", &part.notes);
    }
    if text.contains(['~', '†', '±']) {
        let _ = write!(text, "\n{}\n", wrapped(MARKS, WIDTH).join("\n"));
    }
    text
}

fn list(text: &mut String, head: &str, all: &[String]) {
    if all.is_empty() {
        return;
    }
    let _ = if head.is_empty() { writeln!(text) } else { writeln!(text, "\n{head}") };
    for each in all {
        for (place, line) in wrapped(&each.replace('`', ""), WIDTH - 2).iter().enumerate() {
            let _ = writeln!(text, "{} {line}", if place == 0 { "-" } else { " " });
        }
    }
}

/// Columns with two blanks between; the first one, and those with words, to the left. The best of a row or column bears a
/// star.
#[must_use]
pub fn table(table: &Table) -> String {
    let words = |cell: &Cell| match cell.tone {
        Tone::Best => format!("*{}", cell.words),
        _ => cell.words.replace('`', ""),
    };
    let rows: Vec<Vec<String>> = table.rows.iter().map(|row| row.iter().map(words).collect()).collect();
    let count = table.head.len();
    let widths: Vec<usize> = (0..count)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([table.head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let mut whole = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // The last column of raw runs and of commands is words, too.
            let is_words = column == 0 || (table.is_detail && column + 1 == count);
            let _ =
                if is_words { write!(whole, "{cell:<width$}  ") } else { write!(whole, "{cell:>width$}  ") };
        }
        text.push_str(whole.trim_end());
        text.push('\n');
    };
    line(&table.head);
    line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
    text
}

/// The same as Markdown.
#[must_use]
pub fn markdown(table: &Table) -> String {
    let head: Vec<&str> = table.head.iter().map(String::as_str).collect();
    let words = |row: &Vec<Cell>| row.iter().map(|cell| cell.words.clone()).collect();
    crate::table::markdown(&head, &table.rows.iter().map(words).collect::<Vec<_>>())
}

/// A whole sheet as Markdown.
#[must_use]
pub fn markdown_sheet(sheet: &Sheet) -> String {
    let mut text = format!("# {}\n\n", sheet.title);
    for (name, value) in &sheet.facts {
        let _ = writeln!(text, "- {name}: {value}");
    }
    let list = |text: &mut String, all: &[String]| {
        for (place, each) in all.iter().enumerate() {
            let _ = writeln!(text, "{}- {each}", if place == 0 { "\n" } else { "" });
        }
    };
    list(&mut text, &sheet.summary);
    for part in &sheet.parts {
        let _ = writeln!(text, "\n## {}", part.title);
        list(&mut text, &part.about);
        for table in &part.tables {
            let _ = write!(text, "\n{}\n\n{}", table.caption, markdown(table));
        }
        list(&mut text, &part.doubts);
        list(&mut text, &part.notes);
    }
    let _ = writeln!(text, "\n{MARKS}");
    text
}

/// Words in lines of this many characters; longer words have a line of their own.
#[must_use]
pub fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        let last = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(line) if last == 0 => line.push_str(word),
            Some(line) if last + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::Kept;
    use crate::record::tests::{run, scenario};
    use crate::record::{End, OURS};
    use crate::{Environment, Report};

    #[test]
    fn a_terminal_sees_words_figures_and_marks() {
        let mut report = Report::new("Copies", Environment::default());
        report.scenarios.push(scenario(vec![
            run(OURS, 1_000_000_000, 9.0, End::Complete),
            run("scp", 10_000_000, 60.0, End::Cut { projected_seconds: Some(6000.0) }),
        ]));
        let kept = Kept::Copies(report);
        let text = sheet(&kept.sheet("x"), false);
        assert!(text.starts_with("Copies\n======\n\nHost  not recorded\n"), "{text}");
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed.contains("longhaul *889 9.00 s 667 yes 1/1 1/1"), "{text}");
        assert!(squeezed.contains("scp ~1.33 ~6000 s"), "{text}");
        assert!(squeezed.contains("~ cut off at the limit") && !text.contains("Every run"), "{text}");
        assert!(sheet(&kept.sheet("x"), true).contains("Every run"));
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("longest", 3), ["longest"]);
        assert_eq!(wrapped("", 3), [""]);
    }
}
