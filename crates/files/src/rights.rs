//! Acting with a user's own rights. A server that runs as root gives each session's threads to its user, for good;
//! the kernel then judges every access.
#![allow(unsafe_code)] // credentials of single threads: libc's wrappers would change the whole process

use std::ffi::CString;
use std::io;

/// A local user, with all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRights {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl UserRights {
    /// Looks a user up; `None`: there is none of that name.
    ///
    /// # Errors
    /// When the system's databases cannot be read.
    pub fn of(name: &str) -> io::Result<Option<Self>> {
        let Some(user) = nix::unistd::User::from_name(name)? else { return Ok(None) };
        let c_name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
        let groups = nix::unistd::getgrouplist(&c_name, user.gid)?;
        Ok(Some(Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
        }))
    }

    /// The user's number.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Gives the calling thread to the user, if it is not the user's already: threads start with the rights of the
    /// thread that starts them. There is no way back.
    ///
    /// # Errors
    /// When the process may not: it does not run as root.
    pub fn take_on(&self) -> io::Result<()> {
        if self.has_thread() {
            return Ok(());
        }
        let check = |result: libc::c_long| {
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: plain system calls with valid arguments; they change only the calling thread.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()))?;
            check(libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid))?;
            check(libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid))
        }
    }

    /// Whether the calling thread is the user's, whichever way it looks.
    fn has_thread(&self) -> bool {
        // Only such a thread has three times this user and group, which is not root's: `take_on` has been here.
        let (mut uids, mut gids) = ([0; 3], [0; 3]);
        let [uid, effective, saved] = &mut uids;
        // SAFETY: three places of the kernel's type each, which outlive the call.
        let got_uids = unsafe { libc::syscall(libc::SYS_getresuid, uid, effective, saved) };
        let [gid, effective, saved] = &mut gids;
        // SAFETY: as above.
        let got_gids = unsafe { libc::syscall(libc::SYS_getresgid, gid, effective, saved) };
        got_uids == 0 && got_gids == 0 && self.uid != 0 && uids == [self.uid; 3] && gids == [self.gid; 3]
    }
}

/// The name of the user who runs this process, where the system knows one.
#[must_use]
pub fn own_name() -> Option<String> {
    nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten().map(|user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_given_to_a_user_alone() {
        if !nix::unistd::Uid::effective().is_root() {
            skipped("a_thread_is_given_to_a_user_alone", "root", "run the tests as root");
            return;
        }
        let nobody = UserRights::of("nobody").unwrap().unwrap();
        assert_eq!(UserRights::of("no-such-user-here").unwrap(), None);
        let inner = std::thread::spawn(move || {
            nobody.take_on().unwrap();
            // A thread of this one is nobody's from the start.
            std::thread::scope(|scope| scope.spawn(|| nobody.take_on()).join().unwrap()).unwrap();
            let root = UserRights::of("root").unwrap().unwrap();
            assert!(root.take_on().is_err(), "there is no way back");
            std::fs::read("/etc/shadow").is_ok()
        });
        assert!(!inner.join().unwrap(), "nobody reads what is root's");
        assert!(nix::unistd::Uid::effective().is_root(), "other threads keep theirs");
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
