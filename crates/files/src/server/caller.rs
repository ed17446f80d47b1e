//! Making files for the client's users, where the server acts with root's rights and takes the client's word for who
//! they are.

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid};

use crate::message::Caller;

/// Runs `make` with the caller as the thread's user, so that what it makes is the caller's from the start. Whether the
/// caller may make it, the client's kernel has judged, which knows all of the caller's groups.
pub(super) fn as_caller<T>(
    acts_for_all: bool,
    caller: Caller,
    make: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    if !acts_for_all || (caller.uid == 0 && caller.gid == 0) {
        return make();
    }
    let _restored = Restored;
    set_thread_res_gid(Gid::ROOT, id(caller.gid).map(Gid::from_raw)?, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, id(caller.uid).map(Uid::from_raw)?, Uid::ROOT)?;
    // They have gone with the effective user, if it is not root still.
    let mut sets = capabilities(None)?;
    sets.effective = sets.permitted & (CapabilitySet::DAC_OVERRIDE | CapabilitySet::MKNOD);
    set_capabilities(None, sets)?;
    make()
}

/// -1 would mean "leave it".
fn id(raw: u32) -> Result<u32, Errno> {
    if raw == u32::MAX { Err(Errno::INVAL) } else { Ok(raw) }
}

/// Makes the thread root's again, however it comes to that.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        let restored = set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
            .and_then(|()| set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT))
            .and_then(|()| {
                let mut sets = capabilities(None)?;
                sets.effective = sets.permitted;
                set_capabilities(None, sets)
            });
        if let Err(error) = restored {
            // The next to use the thread would act as somebody else.
            tracing::error!(%error, "cannot take back a user's rights");
            std::process::abort();
        }
    }
}
