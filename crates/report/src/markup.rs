//! Words of records, which anybody may have written, as text of SVG and HTML.

/// Safe between tags and inside of quoted attributes. What XML has no place for becomes U+FFFD.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' => safe.push(' '),
            c if c.is_control() || is_unfit(c) => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// No character of XML 1.0, or one that makes the words around it read as others than they are.
fn is_unfit(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        assert_eq!(
            escaped("<script>\"'&\n\u{1b}[2J\u{202e}"),
            "&lt;script&gt;&quot;&#39;&amp; \u{fffd}[2J\u{fffd}"
        );
        assert_eq!(escaped("1 Gbit/s × 3.3 ms"), "1 Gbit/s × 3.3 ms");
    }
}
