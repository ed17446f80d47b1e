//! The kernel's own NFS, where the kernel has it: its threads outlive whoever started them.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the kernel lacks to be server and client.
pub(crate) fn missing() -> Option<&'static str> {
    const WANTED: [(&str, &str); 2] = [("nfsd", "nfsd"), ("nfsv4", "nfs4")];
    for (module, _) in WANTED {
        // As a module it may be there and not yet loaded; what is missing is seen below.
        let mut load = Command::new("modprobe");
        let _ = load.args(["-q", module]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    let kinds = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has = |wanted: &str| kinds.lines().any(|line| line.split_whitespace().next_back() == Some(wanted));
    WANTED.into_iter().map(|(_, kind)| kind).find(|kind| !has(kind))
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
    fn what_the_kernel_lacks_is_a_kind_of_file_system() {
        let kinds = std::fs::read_to_string("/proc/filesystems").unwrap();
        assert!(missing().is_none_or(|kind| !kinds.lines().any(|line| line.ends_with(kind))));
    }

    #[test]
    fn scripts_of_the_server_are_shell() {
        let script = server(Path::new("/srv/data"));
        assert!(script.contains("'*:/srv/data'\n"), "{script}");
        let syntax = |text: &str| Command::new("sh").args(["-n", "-c", text]).status().unwrap().success();
        assert!(syntax(&script) && syntax(end().last().unwrap().to_str().unwrap()));
    }
}
