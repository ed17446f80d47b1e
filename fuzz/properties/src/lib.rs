//! What each parser of untrusted bytes promises, as one function a parser: any bytes in, a panic where a promise is
//! broken.
//!
//! The same functions are run by the fuzz targets in `fuzz/fuzz_targets/` and, over the kept corpora, by this
//! package's test. `fuzz/README.md` lists the promises.

mod copy;
mod emulator;
mod files;
mod probe;
mod script;
mod transport;

pub use copy::{bundle, copy_messages, copy_offer, excludes, journal, ranges};
pub use emulator::{emulated_link, packet};
pub use files::{fanotify_events, file_attributes, file_messages, relative_path};
pub use probe::{iperf3_messages, path_messages, udp_packets};
pub use transport::{
    authorized_keys, control_frames, known_hosts, lane, lane_frame, private_key, public_key, session_message,
    tls_handshake, tls_record,
};

/// A promise about any bytes.
pub type Property = fn(&[u8]);

/// All of them, by the names of their fuzz targets and corpora.
pub const TARGETS: [(&str, Property); 25] = [
    ("authorized_keys", authorized_keys),
    ("bundle", bundle),
    ("control_frames", control_frames),
    ("copy_messages", copy_messages),
    ("copy_offer", copy_offer),
    ("emulated_link", emulated_link),
    ("excludes", excludes),
    ("fanotify_events", fanotify_events),
    ("file_attributes", file_attributes),
    ("file_messages", file_messages),
    ("iperf3_messages", iperf3_messages),
    ("journal", journal),
    ("known_hosts", known_hosts),
    ("lane", lane),
    ("lane_frame", lane_frame),
    ("packet", packet),
    ("path_messages", path_messages),
    ("private_key", private_key),
    ("public_key", public_key),
    ("ranges", ranges),
    ("relative_path", relative_path),
    ("session_message", session_message),
    ("tls_handshake", tls_handshake),
    ("tls_record", tls_record),
    ("udp_packets", udp_packets),
];

/// What is understood and written again is understood in the same way.
fn assert_stable(bytes: &[u8], reread: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    if let Some(again) = reread(bytes) {
        assert_eq!(reread(&again).as_ref(), Some(&again), "what was written again means something else");
    }
}

/// As text, where a file is read as text: one that is not UTF-8 is refused before any parser sees it.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}
