//! What experiments over emulated links are made of: networks that are up for one run, servers, tools and file systems with keys of
//! their own, commands under a time limit, and the machine's own description.
//!
//! `longhaul bench reports` and the development benches (`cargo xtask bench`) are made of it. Whoever measures runs the program
//! `longhaul` as its users do, beside rivals as their packages bring them. Errors are for the person who has started the
//! experiment, and nobody else; what goes wrong with a tool is a result.
//!
//! Invariants: every command has a limit of time, and a process group that ends with it; every network ends when it is dropped, with
//! all processes on its hosts; after [`limited::note_interrupts`] Ctrl-C and SIGTERM end a series at its next step, in order.

pub mod course;
pub mod data;
pub mod environment;
pub mod experiment;
pub mod file;
pub mod file_system;
pub mod iperf3;
pub mod limited;
pub mod link;
pub mod memory_to_memory;
pub mod mounted;
mod nfs;
pub mod pair;
pub mod profile;
pub mod rerun;
pub mod server;
pub mod tool;
pub mod turn;
pub mod usage;
