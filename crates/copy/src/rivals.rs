//! Two copies that want to write the same file: the later one waits a moment, and takes over from one whose client
//! has gone.
//!
//! A client that is killed leaves its session behind at the server, which keeps it for minutes, because a link may be
//! down for so long. But its connections are closed by its kernel at once. So a copy that has no lane any more lets go
//! of a file that a newer copy wants. What it has stored stays, and the newer copy goes on from there.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use longhaul_files::{Dir, Name};

use crate::partial::held_by_another;
use crate::target::Target;

/// Copies for clients of this process that receive files.
static RECEIVING: Mutex<Vec<Weak<Target>>> = Mutex::new(Vec::new());

/// How often a waiting copy looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Makes a copy one of those that may have to let go.
pub(crate) fn enter(target: &Arc<Target>) {
    let mut receiving = RECEIVING.lock().unwrap_or_else(PoisonError::into_inner);
    receiving.retain(|other| other.strong_count() > 0);
    receiving.push(Arc::downgrade(target));
}

/// Waits, for no longer than `patience`, until no other copy writes the file called `name`. Returns how long it took;
/// whether it is free then, opening it will show.
pub(crate) fn wait_for_turn(dir: &Dir, name: &Name, patience: Duration) -> io::Result<Duration> {
    let began = Instant::now();
    while let Some(part) = held_by_another(dir, name)? {
        if began.elapsed() >= patience {
            break;
        }
        let others = RECEIVING.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().filter_map(Weak::upgrade).for_each(|other| other.let_go(part));
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(began.elapsed())
}
