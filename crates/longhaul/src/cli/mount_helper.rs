//! `mount.longhaul`: what mount(8) runs for `mount -t longhaul` and for lines of fstab, in words of `longhaul mount`.
//!
//! mount(8), "External helpers": `mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name under which this program is that helper.
const NAME: &str = "mount.longhaul";

/// What the helper is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// Run this program with these arguments.
    Mount(Vec<OsString>),
    /// `-f`: everything but that.
    Pretend,
}

/// Options with a value, which are options of the command itself there.
const WITH_VALUE: [(&str, &str); 7] = [
    ("identity", "--identity"),
    ("known_hosts", "--known-hosts"),
    ("cache_mem", "--cache-mem"),
    ("timeout", "--timeout"),
    ("rate", "--rate"),
    ("lanes", "--lanes"),
    ("remote_program", "--remote-program"),
];

/// `None`: this program was not started as the helper.
pub(crate) fn helper(mut arguments: impl Iterator<Item = OsString>) -> Option<Result<Helper, String>> {
    let program = arguments.next()?;
    (Path::new(&program).file_name() == Some(OsStr::new(NAME))).then(|| translated(arguments))
}

fn translated(arguments: impl Iterator<Item = OsString>) -> Result<Helper, String> {
    let mut words: Vec<OsString> = vec!["mount".into()];
    let mut places = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let mut value = |what: &str| arguments.next().ok_or_else(|| format!("{what} takes a value"));
        match argument.as_bytes() {
            b"-o" => options(&value("-o")?, &mut words)?,
            b"-t" => drop(value("-t")?),
            b"-N" => return Err("-N: mounting in another namespace is not possible".to_owned()),
            [b'-', letters @ ..] if !letters.is_empty() => {
                for letter in letters {
                    match letter {
                        b'f' => return Ok(Helper::Pretend),
                        b'v' => words.push("-v".into()),
                        b'r' => words.extend(["-o", "ro"].map(OsString::from)),
                        // Nothing is written to mtab, and unknown options are told of.
                        b'n' | b's' | b'w' => {}
                        other => return Err(format!("there is no option -{}", char::from(*other))),
                    }
                }
            }
            _ => places.push(argument),
        }
    }
    let [source, directory] = <[OsString; 2]>::try_from(places)
        .map_err(|_| format!("usage: {NAME} SOURCE DIR [-fnrsvw] [-o OPTION,...]"))?;
    // A source may look like an option; mount(8) has checked neither.
    words.extend(["--".into(), source, directory]);
    Ok(Helper::Mount(words))
}

fn options(list: &OsStr, words: &mut Vec<OsString>) -> Result<(), String> {
    let list = list.to_str().ok_or("options are text")?;
    for option in list.split(',').filter(|option| !option.is_empty()) {
        // Words for others than file systems (mount(8)).
        if option.starts_with("x-") || option.starts_with("X-") || option.starts_with("comment=") {
            continue;
        }
        let Some((name, value)) = option.split_once('=') else {
            words.extend(["-o", option].map(OsString::from));
            continue;
        };
        let Some((_, own)) = WITH_VALUE.iter().find(|(known, _)| *known == name) else {
            return Err(format!("there is no option `{name}=`"));
        };
        words.push(format!("{own}={value}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Option<Result<Helper, String>> {
        helper(line.split(' ').map(OsString::from))
    }

    fn mount(line: &str) -> String {
        match told(line) {
            Some(Ok(Helper::Mount(words))) => {
                words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_of_fstab_become_commands() {
        assert_eq!(told("/usr/bin/longhaul mount a b"), None);
        assert_eq!(mount("/sbin/mount.longhaul far:/data /mnt"), "mount -- far:/data /mnt");
        assert_eq!(
            mount(
                "mount.longhaul longhaul://far/data /mnt -n -o rw,_netdev,x-systemd.automount,identity=/k,cache_mem=1GiB"
            ),
            "mount -o rw -o _netdev --identity=/k --cache-mem=1GiB -- longhaul://far/data /mnt"
        );
        assert_eq!(mount("mount.longhaul far:/d /mnt -rv -t fuse.longhaul"), "mount -o ro -v -- far:/d /mnt");
        assert_eq!(told("mount.longhaul far:/d /mnt -sfn"), Some(Ok(Helper::Pretend)));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for line in ["-o", "/mnt -o secret=1", "-N 7 /mnt", "-q /mnt", "/mnt three"] {
            assert!(matches!(told(&format!("mount.longhaul far:/d {line}")), Some(Err(_))), "{line}");
        }
    }
}
