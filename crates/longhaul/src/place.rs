//! Where a path on the command line is: here, on a server, or on a host that is reached by ssh.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use longhaul_transport::DEFAULT_PORT;

/// A file's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this host.
    Here(PathBuf),
    /// `longhaul://host[:port]/export/path`.
    Server { host: String, port: u16, path: Vec<u8> },
    /// `[user@]host:path`.
    Ssh { destination: String, path: Vec<u8> },
}

const SCHEME: &[u8] = b"longhaul://";

impl Place {
    /// Reads a path as `cp`, `scp` and `rsync` would: what has a colon before its first slash is on another host.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let shown = text.to_string_lossy();
        if let Some(rest) = bytes.strip_prefix(SCHEME) {
            let slash = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let (host, path) = rest.split_at(slash);
            let host = std::str::from_utf8(host).map_err(|_| format!("`{shown}`: the host is not UTF-8"))?;
            let (host, port) = split_port(host).map_err(|reason| format!("`{shown}`: {reason}"))?;
            if path.len() < 2 {
                return Err(format!("`{shown}` names no export: write longhaul://{host}/EXPORT/PATH"));
            }
            return Ok(Self::Server { host, port, path: path.to_vec() });
        }
        let first_slash = bytes.iter().position(|&b| b == b'/').unwrap_or(bytes.len());
        // A bracketed IPv6 address has colons of its own.
        let bracket = bytes[..first_slash].iter().position(|&b| b == b']');
        let colon = bytes[..first_slash].iter().skip(bracket.unwrap_or(0)).position(|&b| b == b':');
        let Some(colon) = colon.map(|at| at + bracket.unwrap_or(0)).filter(|&at| at > 0) else {
            return Ok(Self::Here(PathBuf::from(OsString::from_vec(bytes.to_vec()))));
        };
        let destination =
            std::str::from_utf8(&bytes[..colon]).map_err(|_| format!("`{shown}`: the host is not UTF-8"))?;
        if destination.starts_with('-') {
            return Err(format!("`{destination}` is not a host"));
        }
        // As scp: nothing after the colon is the home directory.
        let path = if bytes[colon + 1..].is_empty() { b".".to_vec() } else { bytes[colon + 1..].to_vec() };
        Ok(Self::Ssh { destination: destination.to_owned(), path })
    }

    /// A host without a path: `host`, `host:port`, or `user@host`, which is reached by ssh. `port` is that of an option.
    pub(crate) fn host_alone(text: &str, port: Option<u16>) -> Result<Self, String> {
        if text.contains('@') {
            if text.starts_with('-') {
                return Err(format!("`{text}` is not a host"));
            }
            return Ok(Self::Ssh { destination: text.to_owned(), path: Vec::new() });
        }
        // An IPv6 address without brackets has no port.
        let (host, own) = match text.parse::<std::net::Ipv6Addr>() {
            Ok(_) => (text.to_owned(), DEFAULT_PORT),
            Err(_) => split_port(text).map_err(|reason| format!("`{text}`: {reason}"))?,
        };
        Ok(Self::Server { host, port: port.unwrap_or(own), path: Vec::new() })
    }

    /// A host, as [`host_alone`](Self::host_alone), and perhaps a directory there: `host:/export/path`, as longhaul://host/export/path,
    /// and `user@host:path`. Without one, its path is empty.
    pub(crate) fn host_and_directory(text: &OsStr, port: Option<u16>) -> Result<Self, String> {
        let shown = || text.to_string_lossy();
        if text.as_bytes().starts_with(SCHEME) {
            return match (Self::parse(text)?, port) {
                (Self::Server { host, path, .. }, Some(port)) => Ok(Self::Server { host, port, path }),
                (place, _) => Ok(place),
            };
        }
        let utf8 =
            |bytes| std::str::from_utf8(bytes).map_err(|_| format!("`{}`: the host is not UTF-8", shown()));
        let bytes = text.as_bytes();
        let slash = bytes.iter().position(|&b| b == b'/').unwrap_or(bytes.len());
        // An IPv6 address without brackets is all host.
        let address = bytes[..slash].rsplit(|&b| b == b'@').next().unwrap_or_default();
        let is_address = utf8(address)?.parse::<std::net::Ipv6Addr>().is_ok();
        if bytes[..slash].contains(&b'@') {
            return match Self::parse(text)? {
                ssh @ Self::Ssh { .. } if !is_address => Ok(ssh),
                _ => Self::host_alone(utf8(bytes)?, port),
            };
        }
        match bytes[..slash].split_last() {
            Some((b':', host)) if slash < bytes.len() && !host.is_empty() => {
                let Self::Server { host, port, .. } = Self::host_alone(utf8(host)?, port)? else {
                    return Err(format!("`{}` is not a host and a directory", shown()));
                };
                Ok(Self::Server { host, port, path: bytes[slash..].to_vec() })
            }
            _ if slash < bytes.len() => Err(format!(
                "`{}` is no host: a directory there is HOST:/EXPORT/DIR, one here goes with --disk",
                shown()
            )),
            _ => Self::host_alone(utf8(bytes)?, port),
        }
    }

    /// The path of a place that is remote.
    pub(crate) fn remote_path(&self) -> &[u8] {
        match self {
            Self::Here(_) => &[],
            Self::Server { path, .. } | Self::Ssh { path, .. } => path,
        }
    }

    /// The host part of a remote place; two with the same one can share a session.
    pub(crate) fn host(&self) -> Option<String> {
        match self {
            Self::Here(_) => None,
            Self::Server { host, port, .. } => Some(format!("longhaul://{host}:{port}")),
            Self::Ssh { destination, .. } => Some(destination.clone()),
        }
    }
}

/// `host`, `host:port`, `[v6]`, `[v6]:port`.
fn split_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a `[` without `]`")?;
            (host, after.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("there is no host".to_owned());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => {
            port.parse().ok().filter(|p| *p > 0).ok_or_else(|| format!("`{port}` is not a port"))?
        }
    };
    Ok((host.to_owned(), port))
}

/// How a server is named in `known_hosts`: as OpenSSH does.
pub(crate) fn known_host_name(host: &str, port: u16) -> String {
    if port == DEFAULT_PORT { host.to_owned() } else { format!("[{host}]:{port}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Place, String> {
        Place::parse(OsStr::new(text))
    }

    #[test]
    fn places_are_told_apart_as_scp_does() {
        let here = |p: &str| Ok(Place::Here(PathBuf::from(p)));
        let ssh = |d: &str, p: &str| Ok(Place::Ssh { destination: d.into(), path: p.into() });
        let server = |h: &str, port, p: &str| Ok(Place::Server { host: h.into(), port, path: p.into() });
        assert_eq!(parse("a/b:c"), here("a/b:c"));
        assert_eq!(parse("./a:b"), here("./a:b"));
        assert_eq!(parse(":x"), here(":x"));
        assert_eq!(parse("host:data/x"), ssh("host", "data/x"));
        assert_eq!(parse("me@host:"), ssh("me@host", "."));
        assert_eq!(parse("me@[fe80::1]:/x"), ssh("me@[fe80::1]", "/x"));
        assert_eq!(parse("longhaul://far/data"), server("far", DEFAULT_PORT, "/data"));
        assert_eq!(parse("longhaul://[::1]:99/d/x y"), server("::1", 99, "/d/x y"));
        assert!(parse("longhaul://far").unwrap_err().contains("names no export"));
        assert!(parse("longhaul://far:x/d").is_err());
        assert!(parse("-oProxyCommand=x:y").is_err());
    }

    #[test]
    fn hosts_stand_alone() {
        let server = |h: &str, port| Ok(Place::Server { host: h.into(), port, path: Vec::new() });
        assert_eq!(Place::host_alone("far", None), server("far", DEFAULT_PORT));
        assert_eq!(Place::host_alone("far:99", None), server("far", 99));
        assert_eq!(Place::host_alone("::1", Some(98)), server("::1", 98));
        let ssh = Place::Ssh { destination: "me@far".into(), path: Vec::new() };
        assert_eq!(Place::host_alone("me@far", None), Ok(ssh));
        assert!(Place::host_alone("-oX@far", None).is_err());
    }

    #[test]
    fn a_host_may_come_with_a_directory() {
        let place = |text: &str| Place::host_and_directory(OsStr::new(text), None);
        let server = |h: &str, port, p: &str| Ok(Place::Server { host: h.into(), port, path: p.into() });
        let ssh = |d: &str, p: &str| Ok(Place::Ssh { destination: d.into(), path: p.into() });
        for alone in ["far", "far:99", "::1", "fe80::1", "[::1]:99", "me@far", "me@::1"] {
            assert_eq!(place(alone), Place::host_alone(alone, None), "{alone}");
        }
        assert_eq!(place("far:/data"), server("far", DEFAULT_PORT, "/data"));
        assert_eq!(place("far:99:/data/a:/b"), server("far", 99, "/data/a:/b"));
        assert_eq!(place("::1:/data"), server("::1", DEFAULT_PORT, "/data"));
        assert_eq!(place("[::1]:99:/data"), server("::1", 99, "/data"));
        assert_eq!(place("longhaul://far:99/data/x"), server("far", 99, "/data/x"));
        assert_eq!(place("me@far:/srv/x"), ssh("me@far", "/srv/x"));
        assert_eq!(place("me@far:"), ssh("me@far", "."));
        assert_eq!(place("me@[fe80::1]:x"), ssh("me@[fe80::1]", "x"));
        let other_port = Place::host_and_directory(OsStr::new("far:/data"), Some(98));
        assert_eq!(other_port, server("far", 98, "/data"));
        for bad in ["/data", "far/data", ":/data", "./a", "longhaul://far", "far:x:/data", "-oX@far:/x"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_are_named_as_in_openssh_s_files() {
        assert_eq!(known_host_name("far", DEFAULT_PORT), "far");
        assert_eq!(known_host_name("far", 99), "[far]:99");
    }

    proptest! {
        #[test]
        fn no_text_panics(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Place::parse(OsStr::from_bytes(&bytes));
            let _ = Place::host_and_directory(OsStr::from_bytes(&bytes), None);
        }
    }
}
