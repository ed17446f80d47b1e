//! The whole binary: real processes, a long link between two hosts, and faults.
//!
//! Every test sets up its own [`stage`]: two hosts in network namespaces with an emulated link, scratch directories,
//! a server, a client. What a test needs of the machine (root, tools) it asks for with [`require!`]; a test that
//! cannot run says so by name (see [`stage::needs`]), and where `CI` is set fails.
//!
//! Nothing here measures speed: bounds of time are structural (round trips, not milliseconds) and generous.

#[macro_use]
mod stage;

#[path = "whole/ahead.rs"]
mod ahead;
#[path = "whole/bench_reports.rs"]
mod bench_reports;
#[path = "whole/coherence.rs"]
mod coherence;
#[path = "whole/confinement.rs"]
mod confinement;
#[path = "whole/corruption.rs"]
mod corruption;
#[path = "whole/disk_full.rs"]
mod disk_full;
#[path = "whole/doctor.rs"]
mod doctor;
#[path = "whole/emulation.rs"]
mod emulation;
#[path = "whole/fidelity.rs"]
mod fidelity;
#[path = "whole/garbage.rs"]
mod garbage;
#[path = "whole/interruption.rs"]
mod interruption;
#[path = "whole/locking.rs"]
mod locking;
#[path = "whole/making.rs"]
mod making;
#[path = "whole/mapping.rs"]
mod mapping;
#[path = "whole/mounting.rs"]
mod mounting;
#[path = "whole/names.rs"]
mod names;
#[path = "whole/order.rs"]
mod order;
#[path = "whole/outage.rs"]
mod outage;
#[path = "whole/page_cache.rs"]
mod page_cache;
#[path = "whole/path.rs"]
mod path;
#[path = "whole/probe.rs"]
mod probe;
#[path = "whole/report.rs"]
mod report;
#[path = "whole/restart.rs"]
mod restart;
#[path = "whole/rights.rs"]
mod rights;
#[path = "whole/selection.rs"]
mod selection;
#[path = "whole/sessions.rs"]
mod sessions;
#[path = "whole/source_change.rs"]
mod source_change;
#[path = "whole/spares.rs"]
mod spares;
#[path = "whole/ssh.rs"]
mod ssh;
#[path = "whole/topology.rs"]
mod topology;
#[path = "whole/trust.rs"]
mod trust;
#[path = "whole/udp_blocked.rs"]
mod udp_blocked;
#[path = "whole/writing.rs"]
mod writing;
