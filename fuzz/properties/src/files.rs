//! Names, paths and attributes that a peer gives.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use longhaul_files::attr::{read_xattrs, set_mode, set_modified, set_xattr};
use longhaul_files::fuzzing;
use longhaul_files::{Exports, Name, RelPath, Time, Xattr};
use longhaul_transport::identity::Grant;
use rustix::fs::MemfdFlags;

use crate::assert_stable;
use crate::script::Script;

/// A path below a directory: it never leads out of it, and reads the same when it is written again. In an export it
/// is found by the export's name only.
pub fn relative_path(data: &[u8]) {
    if let Ok(path) = RelPath::new(data) {
        assert!(path.names().iter().all(|name| Name::new(name.as_bytes()).is_ok()));
        let written = path.to_path_buf();
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        assert!(written.components().all(inside), "{written:?}");
        assert_eq!(RelPath::new(written.as_os_str().as_bytes()), Ok(path));
    }
    if let Ok(name) = Name::new(data) {
        assert_eq!(Path::new(name.as_os_str()).file_name(), Some(name.as_os_str()));
    }
    let mut exports = Exports::default();
    exports.add("data", &std::env::temp_dir(), true).expect("the directory for temporary files is there");
    let grant = Grant::default();
    assert!(exports.resolve(data, &grant, true).is_err(), "writing to a read-only export");
    if let Ok((_, below)) = exports.resolve(data, &grant, false) {
        let whole = RelPath::new(data.strip_prefix(b"/").unwrap_or(data)).expect("it was resolved");
        assert_eq!(whole.names()[0].as_bytes(), b"data");
        assert_eq!(whole.names()[1..], *below.names());
    }
}

/// Requests, replies and notices about files: what is understood means the same when it is written again, and errors are
/// numbers that a kernel takes from a file system.
pub fn file_messages(data: &[u8]) {
    assert_stable(data, fuzzing::request);
    assert_stable(data, fuzzing::notice);
    assert!(fuzzing::reply_errors(data).iter().all(|error| (0..512).contains(error)));
}

/// Events of the kernel's: none is about more than what is watched, and its names.
pub fn fanotify_events(data: &[u8]) {
    assert!(fuzzing::events(data).is_none_or(|files| files <= 4));
}

/// Attributes of a file, set as a peer says: taken or refused, and an extended attribute that is taken is there.
pub fn file_attributes(data: &[u8]) {
    let mut script = Script::new(data);
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory for a file");
    let modified = Time { seconds: script.u64().cast_signed(), nanos: script.u32() };
    let _ = set_modified(&file, modified); // the kernel may refuse
    set_mode(&file, script.u32()).expect("any mode will do");
    let length = script.u8().into();
    let name = script.take(length).to_vec();
    let xattr = Xattr { name, value: script.rest().to_vec() };
    let taken = set_xattr(&file, &xattr).is_ok();
    // The kernel keeps these as they are; others have a meaning, and a form, to it.
    let plain = xattr.name.starts_with(b"user.") || xattr.name.starts_with(b"trusted.");
    if taken && plain {
        let there = read_xattrs(&file).expect("attributes that were just set");
        assert!(there.contains(&xattr), "{xattr:?} is not in {there:?}");
    }
}
