//! The kernel's own NFS, where the kernel has it: its threads outlive whoever started them.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the kernel lacks to be server and client.
pub(crate) fn missing() -> Option<&'static str> {
    for module in ["nfsd", "nfsv4"] {
        // As a module it may be there and not yet loaded; what is missing is seen below.
        let mut load = Command::new("modprobe");
        let _ = load.args(["-q", module]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    missing_among(&std::fs::read_to_string("/proc/filesystems").unwrap_or_default())
}

/// The same of the text of `/proc/filesystems`.
fn missing_among(kinds: &str) -> Option<&'static str> {
    let has = |wanted: &str| kinds.lines().any(|line| line.split_whitespace().next_back() == Some(wanted));
    ["nfsd", "nfs4"].into_iter().find(|kind| !has(kind))
}

/// Words that run others where nobody else sees what they mount.
pub(crate) fn with_own_mounts(words: &[OsString]) -> Vec<OsString> {
    ["unshare", "--mount", "--"].map(OsString::from).into_iter().chain(words.iter().cloned()).collect()
}

/// A shell's script that serves a directory and stays there. What the server keeps of its clients is in memory. Nothing has to be
/// on disk before its client is told of it (`async`), as with the other file systems.
pub(crate) fn server(directory: &Path) -> String {
    format!(
        "set -e\nmount -t tmpfs none /var/lib/nfs\ncd /var/lib/nfs\nmkdir sm sm.bak v4recovery rpc_pipefs\n\
         touch etab rmtab state xtab\nmount -t nfsd none /proc/fs/nfsd\n\
         exportfs -o rw,async,no_root_squash,no_subtree_check,fsid=0 '*:{}'\nrpc.mountd -N 2 -N 3\nrpc.nfsd -N 3 -V 4.2\n\
         echo Y >/proc/fs/nfsd/v4_end_grace\nexec sleep infinity\n",
        directory.display()
    )
}

/// Ends its threads.
pub(crate) fn end() -> Vec<OsString> {
    with_own_mounts(&["sh", "-c", "mount -t nfsd none /proc/fs/nfsd && exec rpc.nfsd 0"].map(OsString::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_both_ends_or_lacks_one() {
        assert_eq!(missing_among("nodev\tsysfs\n\text4\nnodev\tnfsd\nnodev\tnfs\nnodev\tnfs4\n"), None);
        assert_eq!(missing_among("\text4\nnodev\tnfsd\nnodev\tnfs\n"), Some("nfs4"));
        assert_eq!(missing_among("nodev\tnfs4\n"), Some("nfsd"));
        assert_eq!(missing_among(""), Some("nfsd"));
    }

    #[test]
    fn scripts_of_the_server_are_shell() {
        let script = server(Path::new("/srv/data"));
        assert!(script.contains("'*:/srv/data'\n"), "{script}");
        let syntax = |text: &str| Command::new("sh").args(["-n", "-c", text]).status().unwrap().success();
        assert!(syntax(&script) && syntax(end().last().unwrap().to_str().unwrap()));
    }
}
