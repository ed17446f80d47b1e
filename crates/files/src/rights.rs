//! Acting with a user's own rights. A server that runs as root lets each session's threads act as its user; the kernel
//! then judges every access.
//!
//! Such a thread has the user as effective user (and so for the file system), the user's groups, and no capabilities.
//! Its real and saved user stay root: the processes of whoever these are may send signals to the thread (kill(2)), and
//! a `kill -9` of one thread ends the whole server. Nor may processes of the user trace it or change its limits
//! (ptrace(2), prlimit(2)).
//!
//! What this does not give:
//! - A wall inside the process. With root as saved user a thread could become root again, without capabilities; and
//!   other threads of the same memory are root's anyway. Nothing in longhaul goes back.
//! - The user's processes may still change the thread's priority and its CPUs, as the kernel looks at the effective
//!   user for these.
//! - A FUSE file system of the user's without `allow_other` is out of reach, as for root.
//! - `access(2)` would ask for the real user, root: longhaul does not use it.

use std::ffi::CString;
use std::io;

use nix::unistd::{ResGid, ResUid, User, getgrouplist, getresgid, getresuid};
use rustix::fs::{Gid, Uid};
// Of one thread: the C library's functions would change the whole process.
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// A local user, with all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRights {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

const NO_CAPABILITIES: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

impl UserRights {
    /// Looks a user up; `None`: there is none of that name.
    ///
    /// # Errors
    /// When the system's databases cannot be read.
    pub fn of(name: &str) -> io::Result<Option<Self>> {
        let Some(user) = User::from_name(name)? else { return Ok(None) };
        let c_name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
        let groups = getgrouplist(&c_name, user.gid)?;
        Ok(Some(Self {
            uid: Uid::from_raw(user.uid.as_raw()),
            gid: Gid::from_raw(user.gid.as_raw()),
            groups: groups.into_iter().map(|group| Gid::from_raw(group.as_raw())).collect(),
        }))
    }

    /// Lets the calling thread act as the user, if it does not do so already: threads start with the rights of the
    /// thread that starts them. A thread that acts as one user cannot come to act as another.
    ///
    /// # Errors
    /// When the process may not: it does not run as root. The thread must not go on then; it may have a part of the
    /// rights.
    pub fn take_on(&self) -> io::Result<()> {
        if self.has_thread() {
            return Ok(());
        }
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        set_thread_res_uid(Uid::ROOT, self.uid, Uid::ROOT)?;
        if !self.uid.is_root() {
            // The effective ones went with the effective user; who came back to root would have the others.
            set_capabilities(None, NO_CAPABILITIES)?;
        }
        Ok(())
    }

    /// Whether the calling thread acts as the user already: only `take_on` makes threads of these users and groups.
    /// For another name of root one cannot tell; it is done anew then.
    fn has_thread(&self) -> bool {
        let (uid, gid) = (self.uid.as_raw().into(), self.gid.as_raw().into());
        let root = nix::unistd::Uid::from(0);
        let uids = ResUid { real: root, effective: uid, saved: root };
        let gids = ResGid { real: gid, effective: gid, saved: gid };
        !self.uid.is_root() && getresuid() == Ok(uids) && getresgid() == Ok(gids)
    }
}

/// Has quotas bind the calling thread, whoever it acts as: it writes for others, and who these are it is not told with each write. They
/// would not, as the kernel lets root exceed them (`CAP_SYS_RESOURCE`); its own NFS server gives that up, too.
///
/// # Errors
/// As `capset(2)`, which refuses nobody to give up what a thread has.
pub(crate) fn obey_quotas() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    let all = [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable];
    all.into_iter().for_each(|set| set.remove(CapabilitySet::SYS_RESOURCE));
    Ok(set_capabilities(None, sets)?)
}

/// The name of the user who runs this process, where the system knows one.
#[must_use]
pub fn own_name() -> Option<String> {
    User::from_uid(nix::unistd::Uid::effective()).ok().flatten().map(|user| user.name)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::{Dir, Name, Time, attr::set_owner};

    /// Runs `job` on a thread that acts as nobody.
    fn as_nobody<T: Send>(job: impl FnOnce(&UserRights) -> T + Send) -> T {
        let nobody = UserRights::of("nobody").unwrap().unwrap();
        let job = || {
            nobody.take_on().unwrap();
            job(&nobody)
        };
        std::thread::scope(|scope| scope.spawn(job).join().unwrap())
    }

    fn is_root(test: &str) -> bool {
        let is_root = nix::unistd::Uid::effective().is_root();
        if !is_root {
            skipped(test, "root", "run the tests as root");
        }
        is_root
    }

    /// What the kernel says of the calling thread: its users (real, effective, saved, file system), and whether it has
    /// capabilities in any set that counts.
    fn credentials() -> (Vec<u32>, bool) {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap().split_whitespace().collect::<Vec<_>>()
        };
        let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(|set| field(set)[0]);
        let uids = field("Uid").into_iter().map(|uid| uid.parse().unwrap()).collect();
        (uids, sets.iter().any(|set| u64::from_str_radix(set, 16) != Ok(0)))
    }

    /// A directory of nobody's, in one that only root can go into: what is reached by descriptor needs no more.
    fn nobodys_dir() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("nobodys");
        std::fs::create_dir(&path).unwrap();
        let nobody = UserRights::of("nobody").unwrap().unwrap();
        let dir = Dir::open_path(&path).unwrap();
        set_owner(dir.fd().unwrap(), nobody.uid.as_raw(), nobody.gid.as_raw()).unwrap();
        (temp, dir)
    }

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn one_thread_acts_as_a_user() {
        if !is_root("one_thread_acts_as_a_user") {
            return;
        }
        assert_eq!(UserRights::of("no-such-user-here").unwrap(), None);
        as_nobody(|nobody| {
            let expected = (vec![0, nobody.uid.as_raw(), 0, nobody.uid.as_raw()], false);
            assert_eq!(credentials(), expected);
            std::thread::scope(|scope| {
                let started_here = scope.spawn(|| nobody.take_on().map(|()| credentials()));
                assert_eq!(started_here.join().unwrap().unwrap(), expected);
            });
            for other in ["root", "daemon"] {
                let other = UserRights::of(other).unwrap().unwrap();
                assert!(other.take_on().is_err(), "one user's thread becomes another's");
            }
            assert_eq!(credentials(), expected, "nor is anything of it changed by trying");
            // What the module says of the way back: there is one, but without capabilities.
            set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
            assert_eq!(credentials(), (vec![0; 4], false));
        });
        assert_eq!(credentials(), (vec![0; 4], true), "other threads keep theirs");
    }

    #[test]
    fn a_users_thread_reads_and_makes_what_the_user_may() {
        if !is_root("a_users_thread_reads_and_makes_what_the_user_may") {
            return;
        }
        let (temp, dir) = nobodys_dir();
        let path = temp.path().join("nobodys");
        std::fs::write(path.join("roots"), "r").unwrap();
        dir.set_mode(&name("roots"), 0o600).unwrap();
        let roots = Dir::open_path(temp.path()).unwrap();
        as_nobody(|_| {
            let denied = |error: io::Error| assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            denied(dir.open_file(&name("roots")).unwrap_err());
            denied(dir.set_mode(&name("roots"), 0o644).unwrap_err());
            denied(dir.set_owner(&name("roots"), 65534, 65534).unwrap_err());
            denied(roots.create_file(&name("f")).unwrap_err());
            denied(roots.rename(&name("nobodys"), &name("moved")).unwrap_err());

            dir.create_file(&name("f")).unwrap();
            dir.set_mode(&name("f"), 0o640).unwrap();
            dir.set_modified(&name("f"), Time { seconds: 5, nanos: 7 }).unwrap();
            dir.hard_link(&name("f"), &dir, &name("second")).unwrap();
            dir.rename(&name("f"), &name("renamed")).unwrap();
            dir.make_dir(&name("d"), 0o700).unwrap();
            dir.child(name("d")).create_file(&name("below")).unwrap();
            dir.make_link(&name("link"), b"renamed").unwrap();
            let unnamed = dir.create_unnamed().map(|file| dir.name_file(&file, &name("unnamed")).unwrap());
            let unsupported = Errno::OPNOTSUPP.raw_os_error();
            assert!(unnamed.is_ok() || unnamed.is_err_and(|e| e.raw_os_error() == Some(unsupported)));
            let nobody = UserRights::of("nobody").unwrap().unwrap();
            for entry in dir.entries().unwrap() {
                let attr = dir.attr(&entry.as_ref().unwrap().name).unwrap().unwrap();
                let owner = if entry.unwrap().name == name("roots") { 0 } else { nobody.uid.as_raw() };
                assert_eq!(attr.uid, owner);
            }
        });
        assert!(path.join("d/below").exists() && path.join("second").exists());
    }

    #[test]
    fn no_process_of_the_user_can_signal_its_threads() {
        use std::os::unix::process::CommandExt;
        use std::process::Command;
        if !is_root("no_process_of_the_user_can_signal_its_threads") {
            return;
        }
        let nobody = UserRights::of("nobody").unwrap().unwrap();
        let (uid, gid) = (nobody.uid.as_raw(), nobody.gid.as_raw());
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            nobody.take_on().unwrap();
            begun.send(rustix::thread::gettid()).unwrap();
            let _ = ends.recv(); // the test is over
        });
        let thread_id = begins.recv().unwrap().as_raw_nonzero().to_string();
        let kill_by = |uid, gid| {
            let mut command = Command::new("sh");
            command.args(["-c", "kill -0 $1", "sh", &thread_id]).env("LC_ALL", "C").current_dir("/");
            let output = command.uid(uid).gid(gid).output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        assert_eq!(kill_by(0, 0), (true, String::new()), "it is there");
        let (signalled, error) = kill_by(uid, gid);
        assert!(!signalled && error.contains("not permitted"), "{error}");
        drop(end);
        thread.join().unwrap();
    }

    /// As the tests of the whole binary tell it: by name, on standard error and in the list that `LONGHAUL_SKIPS` names;
    /// where nothing may be skipped it is a failure.
    fn skipped(test: &str, needs: &str, remedy: &str) {
        use std::io::Write;
        let strict = ["CI", "LONGHAUL_REQUIRE_ALL"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!strict, "{test} needs {needs}; {remedy}");
        let line = format!("SKIPPED {test}: needs {needs}; {remedy}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        if let Some(list) = std::env::var_os("LONGHAUL_SKIPS") {
            let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
            list.and_then(|mut list| list.write_all(line.as_bytes())).unwrap();
        }
    }
}
