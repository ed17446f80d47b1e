//! The users a server lets in: one key a line, with options before it, as OpenSSH's `authorized_keys`.
//!
//! ```text
//! ssh-ed25519 AAAA... alice@example
//! user="alice",export="data",export="scratch" ssh-ed25519 AAAA... alice@example
//! export="public",ro,no-probe ssh-ed25519 AAAA... guest
//! user="root",root-squash,map-user="1000:2000",map-group="100:100:50" ssh-ed25519 AAAA... cluster
//! ```

use std::path::Path;

use super::known_hosts::read_limited;
use super::{KeyError, PublicKey};

/// What one key may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The local user in whose name the server acts; `None`: the user who runs the server.
    pub user: Option<String>,
    /// The exports it may use; empty: all.
    pub exports: Vec<String>,
    /// Nothing may be changed.
    pub read_only: bool,
    /// The path may not be measured.
    pub no_probe: bool,
    /// Of a mount for all users of a client: its root is nobody here.
    pub root_squash: bool,
    /// Likewise: numbers of users there and here; none: they are the same.
    pub users: Vec<IdRange>,
    /// And of groups.
    pub groups: Vec<IdRange>,
}

/// Numbers of users or groups at a client, one after the other, and what they are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first one there.
    pub there: u32,
    /// The first one here.
    pub here: u32,
    /// How many.
    pub count: u32,
}

impl IdRange {
    /// `THERE:HERE`, or `THERE:HERE:COUNT`.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u32> = text.split(':').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let (there, here, count) = match numbers[..] {
            [there, here] => (there, here, 1),
            [there, here, count] if count > 0 => (there, here, count),
            _ => return None,
        };
        // The last two numbers that there are mean "none" and "unknown".
        let fits = |first: u32| first.checked_add(count).is_some_and(|end| end < u32::MAX);
        (fits(there) && fits(here)).then_some(Self { there, here, count })
    }

    fn overlaps(&self, other: &Self) -> bool {
        let meets = |one: u32, another: u32| one < another + other.count && another < one + self.count;
        meets(self.there, other.there) || meets(self.here, other.here)
    }
}

/// Adds a range of numbers, none of which may be in another.
fn add_range(ranges: &mut Vec<IdRange>, text: &str) -> Result<(), String> {
    let range = IdRange::parse(text)
        .ok_or_else(|| format!("`{}` is not THERE:HERE or THERE:HERE:COUNT", super::key::shorten(text)))?;
    if ranges.iter().any(|other| range.overlaps(other)) {
        return Err(format!("`{text}` has numbers that another range has"));
    }
    if ranges.len() >= ID_RANGES_MAX {
        return Err(format!("more than {ID_RANGES_MAX} ranges of numbers"));
    }
    ranges.push(range);
    Ok(())
}

/// As the kernel has of a namespace of users. They travel in one message.
const ID_RANGES_MAX: usize = 340;

impl Grant {
    /// Whether the export called `name` may be used.
    #[must_use]
    pub fn allows_export(&self, name: &str) -> bool {
        self.exports.is_empty() || self.exports.iter().any(|e| e == name)
    }
}

/// The file's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizedKeys {
    lines: Vec<(PublicKey, Grant)>,
}

/// A line that cannot be understood. All of the file is refused then: a mistyped option must not widen a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl AuthorizedKeys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError::Io`], and [`KeyError::BadLine`] for the first line that cannot be understood.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let text = read_limited(path).map_err(|source| KeyError::Io {
            action: "read",
            path: path.into(),
            source,
        })?;
        Self::parse(&text).map_err(|e| KeyError::BadLine(format!("{}, {e}", path.display())))
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// [`BadLine`].
    pub fn parse(text: &str) -> Result<Self, BadLine> {
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            lines.push(parse_line(line).map_err(|reason| BadLine { line: index + 1, reason })?);
        }
        Ok(Self { lines })
    }

    /// What `key` may do; `None`: nothing. The first line counts.
    #[must_use]
    pub fn grant(&self, key: &PublicKey) -> Option<&Grant> {
        self.lines.iter().find(|(k, _)| k == key).map(|(_, grant)| grant)
    }

    /// All grants.
    pub fn grants(&self) -> impl Iterator<Item = (&PublicKey, &Grant)> {
        self.lines.iter().map(|(key, grant)| (key, grant))
    }
}

fn parse_line(line: &str) -> Result<(PublicKey, Grant), String> {
    let (options, key) = if line.starts_with("ssh-") { ("", line) } else { split_options(line)? };
    let key = PublicKey::from_openssh(key).map_err(|e| e.to_string())?;
    let mut grant = Grant::default();
    let mut rest = options;
    while !rest.is_empty() {
        let (option, after) = next_option(rest)?;
        match option {
            ("ro", None) => grant.read_only = true,
            ("no-probe", None) => grant.no_probe = true,
            ("root-squash", None) => grant.root_squash = true,
            ("map-user", Some(range)) => add_range(&mut grant.users, range)?,
            ("map-group", Some(range)) => add_range(&mut grant.groups, range)?,
            ("user", Some(name)) if grant.user.is_none() && !name.is_empty() => {
                grant.user = Some(name.to_owned())
            }
            ("export", Some(name)) if !name.is_empty() => grant.exports.push(name.to_owned()),
            (name, _) => {
                return Err(format!("option `{}` is unknown, empty or repeated", super::key::shorten(name)));
            }
        }
        rest = after;
    }
    // Else they would promise what they do not do: of any other user's key all is done as that user.
    let is_for_all = grant.root_squash || !grant.users.is_empty() || !grant.groups.is_empty();
    if is_for_all && grant.user.as_deref() != Some("root") {
        return Err("root-squash, map-user and map-group want user=\"root\"".to_owned());
    }
    Ok((key, grant))
}

/// Splits at the first white space outside quotes.
fn split_options(line: &str) -> Result<(&str, &str), String> {
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => return Ok((&line[..at], line[at..].trim_start())),
            _ => {}
        }
    }
    Err("no key follows the options".to_owned())
}

/// An option and its value.
type NameValue<'a> = (&'a str, Option<&'a str>);

/// Takes one `name` or `name="value"` and the comma after it.
fn next_option(text: &str) -> Result<(NameValue<'_>, &str), String> {
    let end = text.find([',', '=']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let (value, rest) = match rest.strip_prefix("=\"") {
        Some(rest) => {
            let (value, rest) = rest.split_once('"').ok_or("a quote is not closed")?;
            (Some(value), rest)
        }
        None if rest.starts_with('=') => return Err(format!("write {name}=\"...\", with quotes")),
        None => (None, rest),
    };
    match rest.strip_prefix(',') {
        Some("") => Err("a comma ends the options".to_owned()),
        Some(rest) => Ok(((name, value), rest)),
        None if rest.is_empty() => Ok(((name, value), rest)),
        None => Err("a comma must stand between options".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Identity;
    use super::*;

    #[test]
    fn options_are_read() {
        let key = Identity::ephemeral().public();
        let k = key.to_openssh();
        let grant = |options: &str| {
            AuthorizedKeys::parse(&format!("# c\n\n{options}{k} joe\n"))
                .map(|a| a.grant(&key).unwrap().clone())
        };
        assert_eq!(grant("").unwrap(), Grant::default());
        assert!(grant("ro ").unwrap().read_only && !grant("ro ").unwrap().no_probe);
        assert!(grant("ro,no-probe ").unwrap().no_probe);
        let full = grant("user=\"al ice\",export=\"a,b\",export=\"c\",ro ").unwrap();
        assert_eq!(full.user.as_deref(), Some("al ice"));
        assert!(full.allows_export("a,b") && full.allows_export("c") && !full.allows_export("d"));
        assert!(Grant::default().allows_export("anything"));
        let for_all = grant(
            "user=\"root\",root-squash,map-user=\"1000:2000\",map-user=\"0:5:1000\",map-group=\"1:1:9\" ",
        );
        let for_all = for_all.unwrap();
        assert!(for_all.root_squash);
        let range = |there, here, count| IdRange { there, here, count };
        assert_eq!(for_all.users, [range(1000, 2000, 1), range(0, 5, 1000)]);
        assert_eq!(for_all.groups, [range(1, 1, 9)]);
    }

    #[test]
    fn a_line_that_is_not_understood_refuses_the_file() {
        let k = Identity::ephemeral().public().to_openssh();
        for bad in [
            "ro, ",
            "r0 ",
            "user=alice ",
            "user=\"a ",
            "user=\"\" ",
            "user=\"a\"ro ",
            "export ",
            "ro=\"\" ",
            "root-squash ",
            "user=\"a\",root-squash ",
            "user=\"a\",map-user=\"1:2\" ",
            "user=\"root\",map-user=\"1\" ",
            "user=\"root\",map-user=\"1:2:0\" ",
            "user=\"root\",map-user=\"1:2:3:4\" ",
            "user=\"root\",map-user=\"1:x\" ",
            "user=\"root\",map-user=\"1:4294967295\" ",
            "user=\"root\",map-user=\"1:1:5\",map-user=\"5:9\" ",
            "user=\"root\",map-group=\"1:1:5\",map-group=\"9:5\" ",
        ] {
            let error = AuthorizedKeys::parse(&format!("{k}\n{bad}{k}\n")).unwrap_err();
            assert_eq!(error.line, 2, "{bad}");
        }
        assert!(AuthorizedKeys::parse("ro\n").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[ -~\\n\"]{0,200}") {
            let _ = AuthorizedKeys::parse(&text);
        }
    }
}
