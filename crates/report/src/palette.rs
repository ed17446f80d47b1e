//! The colours of charts and pages.

use std::fmt::Write as _;

/// Colours that people with any kind of sight tell apart, after Okabe and Ito's, darker on white and lighter on black so
/// that thin lines have a contrast of 3:1 or more (WCAG 2.1, 1.4.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    pub(crate) ground: &'static str,
    ink: &'static str,
    quiet: &'static str,
    faint: &'static str,
    colours: [&'static str; COLOURS],
}

/// How many there are; the first is longhaul's.
pub const COLOURS: usize = 8;

/// On white.
pub const LIGHT: Palette = Palette {
    ground: "#ffffff",
    ink: "#1c2127",
    quiet: "#5d6673",
    faint: "#dfe3e8",
    colours: ["#0a6ab0", "#c24e0a", "#00795f", "#ab3f7a", "#866a00", "#2186bb", "#626b78", "#46378f"],
};

/// On black.
pub const DARK: Palette = Palette {
    ground: "#14171b",
    ink: "#e4e8ed",
    quiet: "#9aa4b1",
    faint: "#2e343c",
    colours: ["#5cb3f2", "#ff9a5c", "#3ecfa6", "#f09bc6", "#e3c34d", "#a6dcf7", "#a3adba", "#b5a9ff"],
};

/// Tools that are seen often, and their colours: the same in every record.
const KNOWN: [(&str, usize); 12] = [
    ("longhaul", 0),
    ("scp", 1),
    ("sshfs", 1),
    ("rclone", 2),
    ("rclone sftp", 2),
    ("rsync", 3),
    ("GlusterFS", 4),
    ("glusterfs", 4),
    ("aria2c", 5),
    ("xrdcp", 6),
    ("local", 6),
    ("xrdcp -S 15", 7),
];

/// A colour for each name: that which it always has, else the first that is free.
#[must_use]
pub fn colours(names: &[&str]) -> Vec<usize> {
    let known = |name: &str| KNOWN.iter().find(|known| known.0 == name).map(|known| known.1);
    let mut taken: Vec<usize> = names.iter().filter_map(|name| known(name)).collect();
    let mut all = Vec::with_capacity(names.len());
    for (place, name) in names.iter().enumerate() {
        all.push(known(name).unwrap_or_else(|| {
            let free = (1..COLOURS).find(|colour| !taken.contains(colour));
            let colour = free.unwrap_or(1 + place % (COLOURS - 1));
            taken.push(colour);
            colour
        }));
    }
    all
}

/// The rules for all classes of charts.
#[must_use]
pub fn style(palette: &Palette) -> String {
    let Palette { ground, ink, quiet, faint, colours } = palette;
    let mut text = format!(
        ".t{{fill:{ink}}}.q{{fill:{quiet}}}.b{{font-weight:600}}.g{{stroke:{faint};fill:none}}.x{{stroke:{ink};fill:none}}\
         .m{{stroke:{quiet};fill:none}}.d{{fill:{ground};stroke:{ink}}}.n{{fill:{faint}}}"
    );
    for (number, colour) in colours.iter().enumerate() {
        // A String takes it.
        let _ = write!(text, ".f{number}{{fill:{colour}}}.s{number}{{stroke:{colour};fill:none}}");
    }
    text
}

/// The colours themselves, for the rest of a page: ground, words, quiet words, lines, longhaul's, and that of doubts.
pub(crate) fn page_colours(palette: &Palette) -> [&'static str; 6] {
    let Palette { ground, ink, quiet, faint, colours } = palette;
    [ground, ink, quiet, faint, colours[0], colours[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_keeps_its_colour() {
        assert_eq!(colours(&["sshfs", "longhaul", "new", "rclone", "newer"]), [1, 0, 3, 2, 4]);
        let many: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(colours(&many).iter().all(|colour| (1..COLOURS).contains(colour)));
    }
}
