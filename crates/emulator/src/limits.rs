//! Every bound of the emulator, with its derivation.

use std::time::Duration;

/// The largest packet a TUN device hands over: a 64 KiB IP packet plus its vnet header.
pub const PACKET_BYTES_MAX: usize = 65_535 + 16;

/// MTU of the emulated hosts: Ethernet's.
pub const MTU: u32 = 1500;

/// Longest delay of a packet, jitter included: no path on Earth has more, and clocks hold it.
pub const DELAY_MAX: Duration = Duration::from_secs(3600);

/// What Ethernet adds to each IP packet on the wire: preamble and start 8, header 14, checksum 4, gap 12
/// (IEEE 802.3). With it, 1 Gbit/s carries 941 Mbit/s of TCP payload in 1500-byte packets with timestamps.
pub const ETHERNET_OVERHEAD_BYTES: u32 = 38;

/// A full packet on the wire.
pub const FULL_PACKET_BYTES: u64 = (MTU + ETHERNET_OVERHEAD_BYTES) as u64;

/// Packets further apart than this belong to no transfer under way: what the wire stands still between them is nobody's loss.
pub const IDLE_GAP_MAX: Duration = Duration::from_millis(100);

/// A GSO packet travels whole only while its time on the wire is below this; a slower link carries it in parts,
/// so that its receiver sees the rate of the link and not bursts.
pub const CARRY_WHOLE_MAX: Duration = Duration::from_millis(1);

/// Flows remembered per direction. A table row is ~64 bytes, so 4 MiB; more flows than this share rows.
pub const FLOWS_MAX: usize = 65_536;

/// Packets of a TUN device's own queue: a driver that stalls for 30 ms finds it full of 1500-byte packets at 10 Gbit/s.
/// The default of 500 drops bursts silently.
pub const TUN_QUEUE_PACKETS: u32 = 30_000;

/// Packets taken from one device before the other one, and what is due, get their turn: long enough to make up for the
/// clock that is read between, short enough that what is due waits for no more than a few full GSO packets.
pub const READ_BATCH: usize = 64;

/// Rate assumed for sizing packet memory where the link has none: above what TUN carries on today's machines.
pub const UNSHAPED_RATE_BPS: u64 = 25_000_000_000;

/// Packet memory beyond bandwidth x delay + queue: small packets take a chunk's tail, and a stalled host's 20 ms
/// at 25 Gbit/s is 62 MiB.
pub const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// Touched before the first packet at the most; beyond it memory is touched as it is first used.
pub const MEMORY_TOUCHED_BYTES_MAX: u64 = 1 << 30;

/// A message on the control socket: one JSON line. A link's description and statistics are a few KiB; a trace each way
/// has [`TRACE_STEPS_MAX`] steps of up to 120 bytes.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Steps of a trace: two minutes of a link that changes each millisecond.
pub const TRACE_STEPS_MAX: usize = 1 << 17;

/// Its shortest step: a packet at the lowest rate meets 120,000 of them.
pub const TRACE_STEP_MIN: Duration = Duration::from_micros(100);

/// What a trace must carry in the long run: a full packet takes 12 s then.
pub const TRACE_RATE_BPS_MIN: u64 = 1000;

/// Queues that FQ-CoDel spreads flows over (RFC 8290, section 5.2.2).
pub const FAIR_QUEUES: usize = 1024;

/// Packets in all of them where the link has no other limit (RFC 8290, section 5.2.3).
pub const FAIR_PACKETS_MAX: u64 = 10_240;

/// Packets that are dropped in one go where there are too many (RFC 8290, section 4.1).
pub const FAIR_DROP_BATCH: usize = 64;

/// How long a client of the control socket may take to ask, or to take the answer: it is on this machine.
pub const CONTROL_PATIENCE: Duration = Duration::from_secs(2);

/// What the kernel shows of a packet it holds: IPv6 and TCP headers with all options are 100 bytes.
pub const HELD_HEAD_BYTES: usize = 128;

/// Packets the kernel may hold for us in one direction: 10 Gbit/s x 200 ms are 4,000 of 64 KiB, but may be 170,000 of
/// 1500 bytes, or their acknowledgements the other way.
pub const HELD_PACKETS_MAX: u32 = 200_000;

/// Announcements of held packets that wait for the driver: with a KiB for each, a stall of 20 ms at 10 Gbit/s of
/// 1500-byte packets.
pub const NFQUEUE_SOCKET_BYTES: usize = 16 << 20;

/// From this rate on the copies of a TUN device cost more of the machine than a link's user can spare.
pub const HELD_FROM_RATE_BPS: u64 = 2_500_000_000;

/// A driver that has just worked rests for this fraction of the delay: 50 us at 100 ms one way, far below the jitter of
/// real paths of that length.
pub const QUANTA_PER_DELAY: u32 = 2000;

/// And for no longer than this: at 10 Gbit/s 80 full packets gather in it.
pub const QUANTUM_MAX: Duration = Duration::from_micros(100);

/// A shorter rest is not worth a timer.
pub const QUANTUM_MIN_NS: u64 = 10_000;

/// A driver that is never done pauses so often at the least.
pub const BREATH_EVERY_NS: u64 = 10_000_000;

/// Of that time it sleeps one part in so many: the kernel wants 5 % for others (sched_rt_runtime_us).
pub const BREATH_SHARE: u64 = 16;

/// A driver that has slept so long, or is to, has little to do: it need not save wakes, and may wait for a packet awake.
pub const IDLE_FROM_NS: u64 = 250_000;

/// It does so for no longer than this: two fifths of its time at the most.
pub const WAKES_LATE_MAX_NS: u64 = 100_000;

/// Hosts of a topology: each is a namespace, of some 100 KiB in the kernel.
pub const HOSTS_MAX: usize = 64;

/// Links of a topology: each has a thread and the memory of its packets, and a number in an IPv4 address.
pub const LINKS_MAX: usize = 200;

/// Rules of a link: each has a model of its own, of some KiB each way, and half a KiB in a report.
pub const RULES_MAX: usize = 10_000;

/// Of each packet a capture keeps so much: all headers, and what a person needs to know whose it is.
pub const CAPTURE_SNAP_BYTES: usize = 128;

/// Packets that wait to be written to a capture, some 200 bytes each: half a second at 1 Gbit/s.
pub const CAPTURE_QUEUE_PACKETS: usize = 65_536;
