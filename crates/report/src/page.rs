//! Sheets as one HTML page that needs nothing but itself: no network, no script, no font.
//!
//! Light or dark as the reader's system is, on a phone or a wide screen. Every word of a record is [`escaped`]: anybody
//! may have written it. The policy in the page's head forbids scripts and foreign content besides.

use std::fmt::Write;

use crate::chart::Chart;
use crate::markup::escaped;
use crate::palette::{DARK, LIGHT, Palette, page_colours, style};
use crate::sheet::{Cell, MARKS, Part, Sheet, Table, Tone};

/// A record and the name of its file.
pub type Named = (String, Sheet);

/// Everything in one page.
#[must_use]
pub fn page(records: &[Named]) -> String {
    let title = match records {
        [(_, only)] => only.title.clone(),
        all => format!("{} records of measurements", all.len()),
    };
    let mut body = format!(
        "<header><p class=\"over\">longhaul report</p><h1>{}</h1>{}</header>\n<main>",
        escaped(&title),
        if records.len() == 1 { String::new() } else { contents(records) }
    );
    for (number, (name, sheet)) in records.iter().enumerate() {
        body += &record(number, name, sheet, records.len() > 1);
    }
    let title = escaped(&title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}{}@media screen and (prefers-color-scheme:dark){{{}}}\n</style>\n</head>\n\
         <body>\n{body}</main>\n<footer><p>{}</p></footer>\n</body>\n</html>\n",
        colours(&LIGHT),
        CSS,
        colours(&DARK),
        escaped(MARKS),
    )
}

fn colours(palette: &Palette) -> String {
    let [ground, ink, quiet, faint, own, doubt] = page_colours(palette);
    // Rules of charts are for charts only.
    let charts = style(palette).replace('}', "}svg ");
    format!(
        ":root{{--ground:{ground};--ink:{ink};--quiet:{quiet};--faint:{faint};--own:{own};--doubt:{doubt}}}svg {}\n",
        charts.trim_end_matches("svg ")
    )
}

const CSS: &str = "\
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;max-width:76rem;padding:clamp(1.25rem,4vw,3rem) clamp(1rem,4vw,2.5rem);background:var(--ground);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;font-family:inherit;overflow:visible}
h1,h2,h3{line-height:1.2;font-weight:650;text-wrap:balance;overflow-wrap:anywhere;margin:0}
h1{font-size:clamp(1.6rem,1.2rem + 1.8vw,2.3rem);letter-spacing:-.015em}
h2{font-size:1.45rem;letter-spacing:-.01em}
h3{font-size:1.12rem}
p{margin:0 0 .5em}
a{color:var(--own);text-underline-offset:.15em}
code{font:.86em/1.5 ui-monospace,'DejaVu Sans Mono',Menlo,monospace;overflow-wrap:anywhere}
.over{color:var(--quiet);font-size:.85rem;margin:0 0 .35rem}
nav ol{margin:1rem 0 0;padding-left:1.4em}
.record{margin-top:3.5rem;padding-top:1.75rem;border-top:2px solid var(--ink)}
.record:first-child{margin-top:1.5rem;padding-top:0;border-top:0}
.short{margin:1.25rem 0 1.5rem;padding:1rem 1.25rem;border-left:3px solid var(--own);background:color-mix(in srgb,var(--own) 6%,transparent)}
.short ul,.doubts ul,.notes ul{margin:0;padding-left:1.1em}
.short li{margin:.2em 0}
.short li:first-child{font-weight:600}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.2rem 1.25rem;margin:0;font-size:.9rem}
dt{color:var(--quiet)}
dd{margin:0;overflow-wrap:anywhere}
.part{margin-top:2.75rem;padding-top:1.25rem;border-top:1px solid var(--faint)}
.about{color:var(--quiet);font-size:.9rem;margin:.4rem 0 1.25rem;max-width:95ch}
.about p{margin:0 0 .25em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:2rem 2.5rem;margin-bottom:1.5rem}
.charts:not(.three){grid-template-columns:repeat(auto-fill,minmax(min(100%,28rem),1fr))}
.beside{display:grid;grid-template-columns:minmax(0,1fr);gap:1.5rem 3rem}
figure{margin:0;max-width:29rem}
figcaption,caption{text-align:left;font-size:.88rem;font-weight:600;padding-bottom:.6rem}
.scroll{overflow-x:auto;margin-bottom:1.25rem}
table{border-collapse:collapse;font-size:.9rem;min-width:min(100%,24rem)}
th,td{padding:.38rem .8rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}
thead th{color:var(--quiet);font-weight:500;font-size:.82rem;border-bottom:1px solid var(--quiet);vertical-align:bottom}
th:first-child,td.words{text-align:left}
tbody th{font-weight:400;position:sticky;left:0;background:var(--ground);white-space:normal;min-width:7rem;max-width:22rem}
td.words{white-space:normal;min-width:15rem}
tr>:first-child{padding-left:0}
.best{font-weight:650}
.bad{color:var(--doubt);font-weight:600}
.doubts{margin:1rem 0;padding:.7rem 1rem;border-left:3px solid var(--doubt);font-size:.88rem}
.doubts p{font-weight:600}
.notes{font-size:.88rem;color:var(--quiet);margin:1rem 0}
details{margin:.35rem 0}
summary{cursor:pointer;color:var(--quiet);font-size:.88rem;padding:.25rem 0}
caption span{display:block;position:sticky;left:0;width:fit-content;max-width:min(100%,calc(100vw - 2rem))}
details caption{display:none}
footer{margin-top:3.5rem;padding-top:1rem;border-top:1px solid var(--faint);color:var(--quiet);font-size:.85rem}
@media(max-width:36rem){table{font-size:.84rem}th,td{padding:.35rem .5rem}dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:.4rem}}
@media(min-width:62rem){tbody th{min-width:14rem}.beside tbody th{min-width:6.5rem}.beside{grid-template-columns:minmax(0,24rem) minmax(0,1fr)}}
@media print{details>*{display:block}.scroll{overflow:visible}}
";

/// A table with more columns has no room beside a chart.
const BESIDE_COLUMNS_MAX: usize = 7;

fn contents(records: &[Named]) -> String {
    let mut text = "<nav aria-label=\"Records\"><ol>".to_owned();
    for (number, (name, sheet)) in records.iter().enumerate() {
        // A String takes everything here.
        let _ = write!(
            text,
            "<li><a href=\"#record-{number}\">{}</a> <code>{}</code></li>",
            escaped(&sheet.title),
            escaped(name)
        );
    }
    text + "</ol></nav>"
}

fn record(number: usize, name: &str, sheet: &Sheet, is_titled: bool) -> String {
    let mut text = format!("<section class=\"record\" id=\"record-{number}\">\n");
    if is_titled {
        let _ = writeln!(text, "<h2>{}</h2>", escaped(&sheet.title));
    }
    if !sheet.summary.is_empty() {
        let _ = writeln!(text, "<div class=\"short\">{}</div>", list(&sheet.summary));
    }
    text += "<dl>";
    for (name, value) in &sheet.facts {
        let _ = write!(text, "<dt>{}</dt><dd>{}</dd>", escaped(name), with_code(value));
    }
    let _ = writeln!(text, "<dt>Record</dt><dd><code>{}</code></dd></dl>", escaped(name));
    for each in &sheet.parts {
        text += &part(each);
    }
    text + "</section>\n"
}

fn part(part: &Part) -> String {
    let mut text = format!("<section class=\"part\">\n<h3>{}</h3>\n", escaped(&part.title));
    if !part.about.is_empty() {
        let about: Vec<String> =
            part.about.iter().map(|line| format!("<p>{}</p>", with_code(line))).collect();
        let _ = writeln!(text, "<div class=\"about\">{}</div>", about.join(""));
    }
    let charts: String = part.charts.iter().map(figure).collect();
    let tables: String = part.tables.iter().filter(|table| !table.is_detail).map(table).collect();
    match part.charts.len() {
        0 => text += &tables,
        // A broad table has its own line.
        1 if part.tables.iter().all(|table| table.is_detail || table.head.len() <= BESIDE_COLUMNS_MAX) => {
            let _ = writeln!(text, "<div class=\"beside\">{charts}<div>{tables}</div></div>");
        }
        count => {
            let class = if count > 1 && count % 3 == 0 { "charts three" } else { "charts" };
            let _ = writeln!(text, "<div class=\"{class}\">{charts}</div>\n{tables}");
        }
    }
    if !part.doubts.is_empty() {
        let _ = writeln!(
            text,
            "<div class=\"doubts\"><p>The emulator doubts its own link</p>{}</div>",
            list(&part.doubts)
        );
    }
    if !part.notes.is_empty() {
        let _ = writeln!(text, "<div class=\"notes\">{}</div>", list(&part.notes));
    }
    for each in part.tables.iter().filter(|table| table.is_detail) {
        let _ =
            writeln!(text, "<details><summary>{}</summary>{}</details>", escaped(&each.caption), table(each));
    }
    text + "</section>\n"
}

fn figure(chart: &Chart) -> String {
    format!("<figure><figcaption>{}</figcaption>{}</figure>\n", escaped(chart.title()), chart.inline())
}

fn table(table: &Table) -> String {
    // Who has no mouse scrolls a wide table by its keys.
    let mut text = format!(
        "<div class=\"scroll\" tabindex=\"0\"><table><caption><span>{}</span></caption><thead><tr>",
        escaped(&table.caption)
    );
    for name in &table.head {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escaped(name));
    }
    text += "</tr></thead><tbody>\n";
    for row in &table.rows {
        text += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            text += &field(cell, column == 0, table.is_detail && column + 1 == row.len());
        }
        text += "</tr>\n";
    }
    text + "</tbody></table></div>\n"
}

fn field(cell: &Cell, is_head: bool, is_words: bool) -> String {
    let tone = match cell.tone {
        Tone::Plain => "",
        Tone::Best => "best",
        Tone::Bad => "bad",
    };
    let class = format!("{tone}{}", if is_words { " words" } else { "" });
    let class = if class.is_empty() { class } else { format!(" class=\"{}\"", class.trim()) };
    let words = with_code(&cell.words);
    if is_head {
        format!("<th scope=\"row\"{class}>{words}</th>")
    } else {
        format!("<td{class}>{words}</td>")
    }
}

fn list(all: &[String]) -> String {
    let items: Vec<String> = all.iter().map(|words| format!("<li>{}</li>", with_code(words))).collect();
    format!("<ul>{}</ul>", items.join("\n"))
}

/// Safe, and what is between backquotes as code. A last backquote without its fellow stays what it is.
fn with_code(words: &str) -> String {
    let parts: Vec<&str> = words.split('`').collect();
    let mut text = String::new();
    for (place, part) in parts.iter().enumerate() {
        let is_last = place + 1 == parts.len();
        let part = escaped(part);
        match (place % 2, is_last) {
            (1, false) => text += &format!("<code>{part}</code>"),
            (1, true) => text += &format!("`{part}"),
            _ => text += &part,
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::Kept;
    use crate::record::tests::{run, scenario};
    use crate::record::{End, LeftOut, OURS};
    use crate::{Environment, Report};

    const EVIL: &str = "</style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>`";

    /// A record all of whose words are somebody's attempt.
    fn evil() -> Report {
        let mut report = Report::new(EVIL, Environment::default());
        let words = || EVIL.to_owned();
        let machine = &mut report.environment;
        machine.date = words();
        machine.kernel = words();
        machine.cores = 2;
        machine.cpu = words();
        machine.sysctls.insert(words(), words());
        machine.rivals.insert(words(), words());
        machine.command = vec![words()];
        let mut doubted = run(OURS, 1_000_000_000, 9.0, End::Complete);
        doubted.link.trusted = false;
        doubted.link.doubts = vec![words()];
        doubted.remarks = vec![words()];
        let mut each = scenario(vec![doubted, run(EVIL, 0, 1.0, End::Failed { reason: words() })]);
        each.data.name = words();
        each.data.about = words();
        each.link.command = vec![words()];
        each.left_out = vec![LeftOut { tool: words(), reason: words() }];
        report.scenarios.push(each);
        report
    }

    #[test]
    fn words_of_records_stay_words() {
        let sheet = Kept::Copies(evil()).sheet(EVIL);
        let html = page(&[(EVIL.to_owned(), sheet.clone()), (EVIL.to_owned(), sheet)]);
        for tag in ["<script", "<img", "onerror=alert(1)>"] {
            assert!(!html.contains(tag), "{tag} in {html}");
        }
        assert_eq!(html.matches("</style>").count(), 1);
        assert!(html.contains("&lt;script&gt;"));
    }

    #[test]
    fn a_page_stands_alone_and_is_whole() {
        let mut report = Report::new("Copies", Environment::default());
        report.scenarios.push(scenario(vec![run(OURS, 1_000_000_000, 9.0, End::Complete)]));
        let html = page(&[("results.json".to_owned(), Kept::Copies(report).sheet("results.json"))]);
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
        for outside in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!html.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
        for tag in ["section", "table", "svg", "details", "div", "ul", "dl", "figure", "tr", "td", "th"] {
            let opened =
                html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        for part in
            ["prefers-color-scheme:dark", "<caption>", "<figcaption>", "scope=\"row\"", "longhaul 889 Mbit/s"]
        {
            assert!(html.contains(part), "{part}");
        }
        assert!(page(&[]).contains("0 records"));
    }

    #[test]
    fn code_needs_both_of_its_quotes() {
        assert_eq!(with_code("a `b<` c"), "a <code>b&lt;</code> c");
        assert_eq!(with_code("a ` b"), "a ` b");
    }
}
