//! The threads of a test: which flows each moves, and how these end.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Plan, Role, Socket};
use crate::counts::Counters;
use crate::processor::Busy;
use crate::tcp::{self, Block, Budget};
use crate::udp;

/// How a flow has ended by itself: told by its thread, once.
#[derive(Debug, Default)]
pub(super) struct End {
    over: AtomicBool,
    failure: Mutex<Option<io::Error>>,
}

impl End {
    fn tell(&self, ended: io::Result<()>) {
        *self.failure() = ended.err();
        self.over.store(true, SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// Why, if there is something that nobody has been told of.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.failure().take()
    }

    fn failure(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flow, to its thread.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) socket: Arc<Socket>,
    pub(super) counters: Arc<Counters>,
    pub(super) end: Arc<End>,
}

/// A thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) role: Role,
    pub(super) plan: Plan,
    pub(super) block: Arc<Block>,
    pub(super) budget: Option<Arc<Budget>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) busy: Arc<Busy>,
    pub(super) flows: Vec<Work>,
}

impl Worker {
    /// Until all flows are over, or `stop`.
    pub(super) fn run(&self) {
        self.busy.begin();
        let Self { plan, stop, .. } = self;
        let budget = self.budget.as_deref();
        let mut streams = Vec::new();
        for Work { socket, counters, end } in &self.flows {
            match (&**socket, self.role) {
                (Socket::Tcp(stream), _) => streams.push((stream, &**counters, end)),
                (Socket::Udp(socket), Role::Sends) => {
                    let packets =
                        udp::Packets { length: plan.length, wide: plan.wide_numbers, rate: plan.rate };
                    end.tell(udp::send(socket, packets, budget, counters, stop));
                }
                (Socket::Udp(socket), Role::Receives) => {
                    end.tell(udp::receive(socket, plan.wide_numbers, counters, stop));
                }
            }
        }
        self.move_streams(&streams);
        self.busy.end();
    }

    fn move_streams(&self, streams: &[(&TcpStream, &Counters, &Arc<End>)]) {
        let Self { plan, block, stop, .. } = self;
        let over = |place: usize, ended| streams[place].2.tell(ended);
        let each = streams.iter();
        match self.role {
            Role::Sends => {
                let budget = self.budget.as_deref();
                let what = (&**block, plan.length);
                let sender = |&(stream, counters, _): &(_, _, _)| {
                    tcp::Sender::new(stream, what, plan.rate, budget, counters)
                };
                tcp::move_all(each.map(sender).collect(), stop, over);
            }
            Role::Receives => {
                let (length, rate_max, skip) = (plan.length, plan.receive_rate_max, plan.skip_receive_copy);
                let is_alone = streams.len() == 1;
                let receiver = |&(stream, counters, _): &(_, _, _)| {
                    tcp::Receiver::new((stream, is_alone), length, rate_max, skip, counters)
                };
                tcp::move_all(each.map(receiver).collect(), stop, over);
            }
        }
    }
}

impl Drop for Worker {
    /// Also of a thread that has panicked nobody waits for anything.
    fn drop(&mut self) {
        self.flows.iter().for_each(|work| work.end.over.store(true, SeqCst));
    }
}

/// Which flows share a thread, by their places: each of UDP has its own, streams that go the same way are dealt to half as many as
/// there are cores.
pub(super) fn deal(flows: &[(Socket, Role)], cores: usize) -> Vec<Vec<usize>> {
    let threads = (cores / 2).max(1);
    let mut dealt = BTreeMap::<(usize, usize), Vec<usize>>::new();
    let mut streams = [0, 0];
    for (place, (socket, role)) in flows.iter().enumerate() {
        let way = usize::from(*role == Role::Receives);
        let thread = match socket {
            Socket::Udp(_) => (2 + way, place),
            Socket::Tcp(_) => {
                streams[way] += 1;
                (way, streams[way] % threads)
            }
        };
        dealt.entry(thread).or_default().push(place);
    }
    dealt.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn streams_of_one_way_share_half_of_the_cores() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = || Socket::Tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let packets = || Socket::Udp(UdpSocket::bind("127.0.0.1:0").unwrap());
        let flows = [
            (stream(), Role::Sends),
            (packets(), Role::Sends),
            (stream(), Role::Receives),
            (stream(), Role::Sends),
            (stream(), Role::Sends),
            (packets(), Role::Sends),
        ];
        let dealt = |cores| deal(&flows, cores).into_iter().collect::<std::collections::BTreeSet<_>>();
        let (alone, own) = ([vec![0, 3, 4], vec![2]], [vec![1], vec![5]]);
        assert_eq!(dealt(1), alone.iter().chain(&own).cloned().collect());
        assert_eq!(dealt(3), dealt(1));
        assert_eq!(dealt(4), [vec![0, 4], vec![3], vec![2]].into_iter().chain(own).collect());
        assert_eq!(dealt(64).len(), flows.len());
    }
}
