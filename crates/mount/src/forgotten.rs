//! Nodes that the kernel has forgotten. The server is told of many at a time: nothing depends on when.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use longhaul_files::Remote;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    /// How often the server has told of each.
    times: Mutex<HashMap<u64, u64>>,
    some: Notify,
}

/// In one message: 20 bytes each.
const AT_ONCE: usize = 2048;

/// Others may follow.
const PAUSE: Duration = Duration::from_millis(50);

impl Forgotten {
    pub(crate) fn add(&self, node: u64, times: u64) {
        if node != longhaul_files::TOP && times > 0 {
            *self.times.lock().unwrap_or_else(PoisonError::into_inner).entry(node).or_default() += times;
            self.some.notify_one();
        }
    }

    fn take(&self) -> Vec<(u64, u64)> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes: Vec<u64> = times.keys().copied().take(AT_ONCE).collect();
        nodes.into_iter().filter_map(|node| times.remove_entry(&node)).collect()
    }

    /// Tells the server, for ever.
    pub(crate) async fn tell(&self, remote: &Remote) {
        loop {
            self.some.notified().await;
            tokio::time::sleep(PAUSE).await;
            loop {
                let nodes = self.take();
                if nodes.is_empty() {
                    break;
                }
                remote.forget(nodes).await;
            }
        }
    }
}
