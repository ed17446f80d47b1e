//! Runs every property over its kept corpus: all that fuzzing has found once stays found.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use longhaul_fuzz_properties::{Property, TARGETS};

mod allocation;

/// Most memory that one input may cost at a time: a lane's two ends hold 2 MiB of what was said several times over,
/// and a pattern may take 2 MiB to understand; all else is far below.
const ALLOCATED_BYTES_MAX: usize = 24 << 20;

fn fuzz_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn replay(name: &str, property: Property) {
    let corpus = fuzz_directory().join("corpus").join(name);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut inputs = 0;
    for file in files {
        let path = file.unwrap().path();
        let data = fs::read(&path).unwrap();
        let (held, peak) = allocation::peak_of(|| catch_unwind(AssertUnwindSafe(|| property(&data))));
        assert!(held.is_ok(), "{name} breaks its promise for {}", path.display());
        assert!(peak <= ALLOCATED_BYTES_MAX, "{name} takes {peak} bytes for {}", path.display());
        inputs += 1;
    }
    assert!(inputs >= 5, "a corpus of {inputs} inputs for {name}");
}

macro_rules! replays {
    ($($name:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                replay(stringify!($name), longhaul_fuzz_properties::$name);
            }
        )*
    };
}

replays! {
    authorized_keys bundle control_frames copy_messages copy_offer emulated_link excludes fanotify_events file_attributes file_messages iperf3_messages
    journal known_hosts lane lane_frame packet path_messages private_key public_key ranges relative_path session_message tls_handshake
    tls_record udp_packets
}

#[test]
fn every_property_has_its_target_its_corpus_and_its_replay() {
    let names = |directory: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(fuzz_directory().join(directory)).unwrap();
        let name = |entry: fs::DirEntry| entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
        entries.map(|entry| name(entry.unwrap())).collect()
    };
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(known, REPLAYED.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(known, names("fuzz_targets"));
    assert_eq!(known, names("corpus"));
    let manifest = fs::read_to_string(fuzz_directory().join("Cargo.toml")).unwrap();
    for name in &known {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is not built");
    }
}

#[test]
fn an_input_that_costs_too_much_memory_is_seen() {
    let (_, peak) = allocation::peak_of(|| vec![1u8; 3 << 20].len());
    assert!((3 << 20..4 << 20).contains(&peak), "{peak}");
}
