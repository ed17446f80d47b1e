//! Requests of a session that come after others: a client sends both at a time, and the network keeps no order between them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::limits::{ORDER_WAIT_MAX, ORDERS_KNOWN_MAX};
use crate::message::Order;

/// What others come after: by number, how many requests have been carried out, well or not.
#[derive(Debug, Default)]
pub(super) struct CarriedOut {
    numbers: Mutex<BTreeMap<u64, watch::Sender<u32>>>,
}

impl CarriedOut {
    fn numbers(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Sender<u32>>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, number: u64, act: impl FnOnce(&watch::Sender<u32>) -> T) -> T {
        let mut numbers = self.numbers();
        // What comes after the oldest has gone another way, or does.
        if numbers.len() >= ORDERS_KNOWN_MAX && !numbers.contains_key(&number) {
            numbers.pop_first();
        }
        act(numbers.entry(number).or_default())
    }

    /// A request has been carried out.
    pub(super) fn add(&self, Order { number, after }: Order) {
        if number != 0 && after == 0 {
            self.with(number, |times| times.send_modify(|times| *times = times.saturating_add(1)));
        }
    }

    /// Waits until those before a request have been carried out; false: they do not come. Nothing else comes after them.
    pub(super) async fn wait(&self, Order { number, after }: Order) -> bool {
        if after == 0 {
            return true;
        }
        let mut times = self.with(number, watch::Sender::subscribe);
        let all = times.wait_for(|times| *times >= after);
        let have_come = tokio::time::timeout(ORDER_WAIT_MAX, all).await.is_ok_and(|all| all.is_ok());
        self.numbers().remove(&number);
        have_come
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
        assert!(carried_out.numbers().keys().eq(&[8]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_not_waited_for_for_ever() {
        let carried_out = CarriedOut::default();
        carried_out.add(BEFORE);
        let begun = tokio::time::Instant::now();
        assert!(!carried_out.wait(AFTER_TWO).await);
        assert_eq!(begun.elapsed(), ORDER_WAIT_MAX);
        assert!(carried_out.numbers().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten_and_who_waits_for_it_is_told() {
        let carried_out = Arc::new(CarriedOut::default());
        let (first, begun) = (Order { number: 1, after: 1 }, tokio::time::Instant::now());
        let waiting = tokio::spawn({
            let carried_out = Arc::clone(&carried_out);
            async move { carried_out.wait(first).await }
        });
        tokio::task::yield_now().await;
        for number in 2..=ORDERS_KNOWN_MAX as u64 + 3 {
            carried_out.add(Order { number, after: 0 });
        }
        assert!(!waiting.await.unwrap());
        assert_eq!(begun.elapsed(), std::time::Duration::ZERO, "at once");
        let numbers = carried_out.numbers();
        assert_eq!(
            (numbers.len(), numbers.first_key_value().map(|(number, _)| *number)),
            (ORDERS_KNOWN_MAX, Some(4))
        );
    }
}
