//! Requests of a session that come after others: a client sends both at a time, and the network keeps no order between them.

use std::collections::VecDeque;

use tokio::sync::watch;

use crate::limits::{ORDER_WAIT_MAX, ORDERS_KNOWN_MAX};
use crate::message::Order;

/// What others wait for, or are going to, and has been carried out.
#[derive(Debug, Default)]
pub(super) struct CarriedOut {
    /// Numbers, the oldest first, and how many requests had it.
    numbers: watch::Sender<VecDeque<(u64, u32)>>,
}

impl CarriedOut {
    /// A request has been carried out, well or not.
    pub(super) fn add(&self, Order { number, after }: Order) {
        if number == 0 || after > 0 {
            return;
        }
        self.numbers.send_modify(|numbers| {
            if let Some((_, times)) = numbers.iter_mut().find(|(known, _)| *known == number) {
                *times = times.saturating_add(1);
                return;
            }
            // Those who were to come after it have gone another way.
            if numbers.len() >= ORDERS_KNOWN_MAX {
                numbers.pop_front();
            }
            numbers.push_back((number, 1));
        });
    }

    /// Waits until those before a request have been carried out; false: they do not come. Whoever has waited is the only one.
    pub(super) async fn wait(&self, Order { number, after }: Order) -> bool {
        if after == 0 {
            return true;
        }
        let mut changed = self.numbers.subscribe();
        let all = changed
            .wait_for(|numbers| numbers.iter().any(|&(known, times)| known == number && times >= after));
        if tokio::time::timeout(ORDER_WAIT_MAX, all).await.is_err() {
            return false;
        }
        self.numbers.send_if_modified(|numbers| {
            numbers.retain(|(known, _)| *known != number);
            false // nobody waits for fewer
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const BEFORE: Order = Order { number: 7, after: 0 };
    const AFTER_TWO: Order = Order { number: 7, after: 2 };

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_all_before_it() {
        let carried_out = Arc::new(CarriedOut::default());
        assert!(carried_out.wait(Order::default()).await, "it stands alone");
        carried_out.add(BEFORE);
        carried_out.add(Order { number: 8, after: 0 });
        carried_out.add(Order::default());
        let waiting = tokio::spawn({
            let carried_out = Arc::clone(&carried_out);
            async move { carried_out.wait(AFTER_TWO).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        carried_out.add(BEFORE);
        assert!(waiting.await.unwrap());
        // That has been used up.
        carried_out.add(AFTER_TWO);
        assert_eq!(*carried_out.numbers.borrow(), [(8, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_not_waited_for_for_ever() {
        let carried_out = CarriedOut::default();
        carried_out.add(BEFORE);
        let begun = tokio::time::Instant::now();
        assert!(!carried_out.wait(AFTER_TWO).await);
        assert_eq!(begun.elapsed(), ORDER_WAIT_MAX);
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let carried_out = CarriedOut::default();
        for number in 1..=ORDERS_KNOWN_MAX as u64 + 3 {
            carried_out.add(Order { number, after: 0 });
        }
        assert_eq!(carried_out.numbers.borrow().len(), ORDERS_KNOWN_MAX);
        assert_eq!(carried_out.numbers.borrow()[0], (4, 1));
    }
}
