//! Every bound of a copy, with its derivation.

use longhaul_transport::limits::{FRAME_PAYLOAD_MAX, LANES_MAX};

/// Files up to this size travel in bundles: a frame then holds at least four, and most of a source tree's files.
pub const BUNDLED_FILE_MAX: u64 = 60 << 10;

/// A bundle is one frame at the most.
pub const BUNDLE_BYTES_MAX: usize = FRAME_PAYLOAD_MAX;

/// Entries in one offer: with names of 30 bytes ~20 KiB.
pub const OFFER_ENTRIES_MAX: usize = 256;

/// Bytes of entries in one offer: below the control channel's 64 KiB with a full entry to spare.
pub const OFFER_BYTES_MAX: usize = 24 << 10;

/// Offers without an answer at a time: 32,768 files, so that 300 ms away 100,000 files a second can pass.
pub const OFFERS_OPEN_MAX: usize = 128;

/// What a sender has offered, the receiver wants, and is not there yet, in KiB of entries (each at least 1): at 300 ms
/// 218,000 small files a second can pass. With what is kept beside it an entry takes ~1 KiB more at either end, so
/// below 128 MiB.
pub const UNDER_WAY_KIB_MAX: usize = 64 << 10;

/// The same at a receiver, where offers that the sender has not had answered yet come to it; twice over.
pub const WANTED_KIB_MAX: usize = 2 * UNDER_WAY_KIB_MAX;

/// What the extended attributes of directories under way may take: as much as their files' entries.
pub const DIR_XATTR_BYTES_MAX: usize = 64 << 20;

/// Directories whose end has not come: each ~0.3 KiB without extended attributes. A walk has no more than its depth; a list of files may name as
/// many.
pub const DIRS_OPEN_MAX: usize = 1 << 20;

/// Large files begun and not finished at a receiver: each lane (256) may have begun one, and each place before and at
/// the finishers holds one; twice over. Each takes up to three descriptors.
pub const PARTIALS_OPEN_MAX: usize = 2 * (LANES_MAX + FINISHING_MAX + FINISHERS);

/// Files remembered as given up, so that what still comes of them is declined; of more it is passed over.
pub const REFUSED_FILES_MAX: usize = 1 << 20;

/// Names tried for what replaces something else: of 64 random bits, so that a second is never needed.
pub const TEMPORARY_NAME_ATTEMPTS: usize = 16;

/// Entries between the thread that walks the source and the offers.
pub const WALKED_ENTRIES_MAX: usize = 2048;

/// Names of a directory that are read and sorted at a time: 64 KiB of names and numbers.
pub const SORTED_NAMES_MAX: usize = 1024;

/// Source files held open at a time; more are closed and opened again.
pub const OPEN_SOURCES_MAX: usize = 256;

/// Files that are worth a journal: below it a new run sends them again, which costs less than the bookkeeping.
pub const JOURNALED_FILE_MIN: u64 = 8 << 20;

/// How long one copy waits in all for files that other copies are writing: the connections of a client that was killed
/// close within a few round trips, after what its kernel still sends has arrived.
pub(crate) const RIVALS_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Files written past the page cache where the disk is better off with it: below it their pages fit easily.
pub const DIRECT_FILE_MIN: u64 = 32 << 20;

/// A journal this long covers 20 TiB in frames of 256 KiB (24 bytes each); what is beyond is sent again.
pub const JOURNAL_BYTES_MAX: u64 = 2 << 30;

/// Ranges of a file that are offered, or of all files in an offer that are asked for, one by one: up to 22 bytes each,
/// 22 KiB of a message. What has more holes or gaps is sent from the first to the last of the rest as one.
pub const RANGES_MAX: usize = 1024;

/// Gaps in a file under way: all of the ranges that may be offered, and on a path of 10 Gbit/s x 300 ms what is in flight in
/// pieces of 64 KiB, twice over. At ~50 bytes each, 0.8 MiB a file.
pub const GAPS_MAX: usize = 16 << 10;

/// Buffered writes of a file are handed to the disk after so many bytes, so that the end does not wait for all.
pub const WRITE_BACK_BYTES: u64 = 32 << 20;

/// Problems told one by one; beyond it they are counted.
pub const PROBLEMS_TOLD_MAX: u64 = 10_000;

/// Bytes of a problem's path, and of its reason, that travel: PATH_MAX. Of a longer path the end does.
pub const PROBLEM_TEXT_MAX: usize = 4096;

/// Problems in one message: with a full one to spare below the control channel's 64 KiB.
pub const PROBLEM_BYTES_MAX: usize = 32 << 10;

/// Names of a list of files in one message: with a full one to spare below the control channel's 64 KiB.
pub const LISTED_BYTES_MAX: usize = 48 << 10;

/// Messages that such a list may take: 48 MiB of names.
pub const LISTED_PARTS_MAX: usize = 1024;

/// Names in such a list: each takes 32 bytes beside itself, so 64 MiB.
pub const LISTED_PATHS_MAX: usize = 2 << 20;

/// Threads that finish large files (sync and rename) of one copy.
pub const FINISHERS: usize = 4;

/// Finished files that may wait for a finisher.
pub const FINISHING_MAX: usize = 64;

/// Hard links whose first name has not arrived yet.
pub const HARD_LINKS_WAITING_MAX: usize = 1 << 20;

/// Bytes of a symbolic link's target (PATH_MAX).
pub const LINK_TARGET_BYTES_MAX: usize = 4096;

/// Patterns of one copy: understood, each is ~6 KiB, so 6 MiB.
pub const EXCLUDES_MAX: usize = 1024;

/// Bytes of one pattern (PATH_MAX).
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Braces within braces in a pattern: whoever understands them does so by recursion, so that each costs stack.
pub const PATTERN_DEPTH_MAX: usize = 16;

/// Sources named in one copy.
pub const SOURCES_MAX: usize = 4096;

/// How long a finished copy waits for the acknowledgements of its last pieces, which only its counters need: several
/// round trips of the longest paths (300 ms), and a retransmission.
pub(crate) const LAST_ACKS_WAIT: std::time::Duration = std::time::Duration::from_secs(3);
