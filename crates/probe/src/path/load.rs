//! Tests of load as the client makes them, one way or both ways at once: its halves of them, and what both ends have counted
//! meanwhile and at the end.
//!
//! What the server has counted is asked for while the load goes on, and its answer is not waited for: where it takes longer than an
//! interval, intervals keep their length.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::io;
use std::mem::take;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::client::{Both, Flows, ProbeError, Prober};
use super::half::Half;
use super::message::Ask;
use super::test::{Seen, Way, What, Wish};
use crate::limits::{LOOKS_UNDER_WAY_MAX, STEP_TIMEOUT};
use crate::traffic::{Role, Socket};

/// How loads are followed.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    /// Of the beginning, what does not count.
    pub start: Duration,
    /// How often it is told what has been counted. A server ends a test that it is not asked about for ten seconds.
    pub every: Duration,
}

/// When it was that something had been counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since the beginning, by this host's clock.
    pub at: Duration,
    /// The end of the load.
    pub is_last: bool,
}

/// Loads that are over.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads {
    /// Of each: what had been counted after the start that does not count, and at the end.
    pub counted: Vec<(Both, Both)>,
    /// They ended before their time, because they were told to.
    pub stopped: bool,
}

/// Is told what has been counted: of each load, in their order.
pub type Each<'a> = dyn FnMut(Moment, &[Both]) + Send + 'a;

/// A test, by its number, and how many flows it has.
type Test = (u32, usize);

/// One that runs.
struct Load {
    wish: Wish,
    test: Test,
    half: Half,
}

/// What has been asked of the server, the earliest first.
#[derive(Default)]
struct Looks(VecDeque<Look>);

struct Look {
    at: Duration,
    near: Vec<Seen>,
    far: JoinHandle<Result<Vec<Seen>, ProbeError>>,
}

impl Looks {
    /// The next answer; none comes where nothing was asked. May be dropped and called again.
    async fn next(&mut self) -> Result<(Duration, Vec<Both>), ProbeError> {
        let Some(front) = self.0.front_mut() else { return pending().await };
        let far = (&mut front.far).await.map_err(io::Error::other)??;
        let Some(Look { at, near, .. }) = self.0.pop_front() else { return pending().await };
        Ok((at, pairs(near, far)))
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.0.iter().for_each(|look| look.far.abort());
    }
}

/// What is known of loads that run.
struct Course {
    looks: Looks,
    first: Option<Vec<Both>>,
    newest: Option<Vec<Both>>,
}

impl Prober {
    /// Makes one test of load: what both ends had counted after `start`, and at its end.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn load(&self, wish: &Wish, start: Duration) -> Result<(Both, Both), ProbeError> {
        let follow = Follow { start, every: Duration::from_secs(1) };
        let loads = self.loads(std::slice::from_ref(wish), follow, pending(), &mut |_, _| {}).await?;
        loads.counted.into_iter().next().ok_or(ProbeError::Answer)
    }

    /// Makes tests of load at once, which all take the same time and send the same: one, or one each way. They end before their time
    /// when `stop` is ready; `each` is told what has been counted.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn loads(
        &self,
        wishes: &[Wish],
        follow: Follow,
        stop: impl Future<Output = ()> + Send,
        each: &mut Each<'_>,
    ) -> Result<Loads, ProbeError> {
        let mut stop = std::pin::pin!(stop);
        let opened = tokio::select! {
            opened = self.open_all(wishes) => opened?,
            // They end with the session.
            () = &mut stop => return Err(ProbeError::Stopped),
        };
        let tests = opened.iter().map(|flows| (flows.test, flows.sockets.len())).collect::<Vec<Test>>();
        let result = self.run(wishes, &tests, opened, follow, stop, each).await;
        if result.is_err() {
            let _ = self.of_all(&tests, Ask::End).await; // the first error says more
        }
        result
    }

    async fn run(
        &self,
        wishes: &[Wish],
        tests: &[Test],
        opened: Vec<Flows>,
        follow: Follow,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
        each: &mut Each<'_>,
    ) -> Result<Loads, ProbeError> {
        let mut loads = self.start(wishes, tests, opened).await?;
        let began = Instant::now();
        let mut course = Course { looks: Looks::default(), first: None, newest: None };
        let stopped = tokio::select! {
            over = self.follow(&mut loads, &mut course, follow, each) => {
                over?;
                false
            }
            () = &mut stop => true,
        };
        let at = began.elapsed();
        let end = self.end_all(&mut loads, &mut course, follow, at, stopped, each);
        let last = if stopped {
            // Somebody waits for it. Where the path does not let it end, or ssh has been told to stop as well, what is known will do.
            let last = tokio::time::timeout(STEP_TIMEOUT, end).await;
            last.unwrap_or(Err(ProbeError::Late(STEP_TIMEOUT))).or_else(|error| course.newest.ok_or(error))?
        } else {
            end.await?
        };
        tokio::task::spawn_blocking(move || drop(loads)).await.map_err(io::Error::other)?;
        let first = course.first.unwrap_or_else(|| vec![Both::default(); last.len()]);
        Ok(Loads { counted: first.into_iter().zip(last).collect(), stopped })
    }

    /// Opens all of them at once: a server does not wait long for one.
    async fn open_all(&self, wishes: &[Wish]) -> Result<Vec<Flows>, ProbeError> {
        let open = |wish: &Wish| {
            let (prober, wish) = (self.clone(), wish.clone());
            tokio::spawn(async move { prober.open(&wish).await })
        };
        let opening: Vec<_> = wishes.iter().map(open).collect();
        let (mut opened, mut failed) = (Vec::new(), None);
        for flows in opening {
            match flows.await.map_err(io::Error::other)? {
                Ok(flows) => opened.push(flows),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let Some(error) = failed else { return Ok(opened) };
        for Flows { test, sockets } in opened {
            let _ = self.end(test, sockets.len()).await; // the connection's error says more
        }
        Err(error)
    }

    async fn start(
        &self,
        wishes: &[Wish],
        tests: &[Test],
        opened: Vec<Flows>,
    ) -> Result<Vec<Load>, ProbeError> {
        let mut sockets: Vec<Vec<Socket>> = opened.into_iter().map(|flows| flows.sockets).collect();
        // Who receives must be there before the first byte.
        let mut receiving = Vec::new();
        for (wish, sockets) in wishes.iter().zip(&mut sockets) {
            let receives = wish.way == Way::ToClient;
            receiving.push(if receives { Some(half(wish, take(sockets))?) } else { None });
        }
        for begun in self.of_all(tests, Ask::Begin).await? {
            if let Some(why) = begun.over {
                return Err(ProbeError::Ended(why));
            }
        }
        let mut loads = Vec::new();
        for (((wish, test), sockets), receiving) in wishes.iter().zip(tests).zip(sockets).zip(receiving) {
            let half = receiving.map_or_else(|| half(wish, sockets), Ok)?;
            loads.push(Load { wish: wish.clone(), test: *test, half });
        }
        Ok(loads)
    }

    /// Until their time is over; TCP's words are kept meanwhile.
    async fn follow(
        &self,
        loads: &mut [Load],
        course: &mut Course,
        follow: Follow,
        each: &mut Each<'_>,
    ) -> Result<(), ProbeError> {
        let began = Instant::now();
        let milliseconds = loads.iter().map(|load| load.wish.milliseconds).max().unwrap_or(0);
        let time = Duration::from_millis(milliseconds.into());
        let every = follow.every.max(NOTE_EVERY);
        let mut next = if follow.start.is_zero() { every } else { follow.start };
        loop {
            for load in &mut *loads {
                load.half.note();
                if let Some(error) = load.half.failure() {
                    return Err(error.into());
                }
            }
            let now = began.elapsed();
            // The last interval would be a short one.
            let is_end = next > follow.start && next + every / 2 >= time;
            if now >= time {
                return Ok(());
            }
            if now >= next && !is_end {
                // Else the next interval is a longer one.
                if course.looks.0.len() < LOOKS_UNDER_WAY_MAX {
                    self.ask(&mut course.looks, loads, next);
                }
                while next <= now {
                    next += every;
                }
            }
            let until = if is_end { time } else { time.min(next) };
            let left = until.saturating_sub(began.elapsed()).min(NOTE_EVERY);
            tokio::select! {
                counted = course.looks.next() => {
                    let (at, both) = counted?;
                    course.tell(Moment { at, is_last: false }, &both, follow.start, each);
                }
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Notes what has been counted here, and asks for what has been there.
    fn ask(&self, looks: &mut Looks, loads: &[Load], at: Duration) {
        let tests: Vec<Test> = loads.iter().map(|load| load.test).collect();
        let (near, prober) = (loads.iter().map(|load| load.half.seen()).collect(), self.clone());
        let far = tokio::spawn(async move { prober.look_all(&tests).await });
        looks.0.push_back(Look { at, near, far });
    }

    /// Has them end in order: the last counts.
    async fn end_all(
        &self,
        loads: &mut [Load],
        course: &mut Course,
        follow: Follow,
        at: Duration,
        stopped: bool,
        each: &mut Each<'_>,
    ) -> Result<Vec<Both>, ProbeError> {
        let is_udp = loads.iter().any(|load| load.wish.what == What::Udp);
        self.ask(&mut course.looks, loads, at);
        let sent_until = Instant::now();
        if is_udp {
            loads.iter_mut().for_each(|load| load.half.stop_sending());
        }
        let mut last = Vec::new();
        while !course.looks.0.is_empty() {
            let (at, mut both) = course.looks.next().await?;
            let is_last = course.looks.0.is_empty();
            for (load, both) in
                loads.iter().zip(&mut both).filter(|(load, _)| load.sends_on(stopped && is_last))
            {
                cut_short(&load.wish, both, at);
            }
            course.tell(Moment { at, is_last }, &both, follow.start, each);
            last = both;
        }
        if is_udp {
            let drained = self.drain(loads, stopped, sent_until).await?;
            for ((load, last), drained) in loads.iter().zip(&mut last).zip(drained) {
                if !load.sends_on(stopped) {
                    *last = drained;
                }
            }
        }
        loads.iter_mut().for_each(|load| load.half.stop_sending());
        let tests: Vec<Test> = loads.iter().map(|load| load.test).collect();
        let ended = self.of_all(&tests, Ask::End).await?;
        for ((load, last), end) in loads.iter().zip(&mut last).zip(ended) {
            if is_udp && load.wish.way == Way::ToClient && !stopped {
                // The sender's own count of all.
                last.far = Seen { processor: last.far.processor, ..end };
            }
        }
        Ok(last)
    }

    /// Waits until nothing comes any more: what stands in queues belongs to the test.
    async fn drain(
        &self,
        loads: &[Load],
        stopped: bool,
        sent_until: Instant,
    ) -> Result<Vec<Both>, ProbeError> {
        let came = |boths: &[Both]| {
            let ended = loads.iter().zip(boths).filter(|(load, _)| !load.sends_on(stopped));
            ended.map(|(load, both)| both.receiver(load.wish.way).bytes()).fold(0, u64::saturating_add)
        };
        let limit = sent_until + DRAIN_MAX;
        tokio::time::sleep_until((sent_until + self.rtt() + QUIET).into()).await;
        let mut boths = self.boths(loads).await?;
        loop {
            let before = came(&boths);
            tokio::time::sleep(QUIET).await;
            boths = self.boths(loads).await?;
            if came(&boths) == before || Instant::now() > limit {
                return Ok(boths);
            }
        }
    }

    async fn boths(&self, loads: &[Load]) -> Result<Vec<Both>, ProbeError> {
        let near = loads.iter().map(|load| load.half.seen()).collect();
        let tests: Vec<Test> = loads.iter().map(|load| load.test).collect();
        Ok(pairs(near, self.look_all(&tests).await?))
    }

    async fn look_all(&self, tests: &[Test]) -> Result<Vec<Seen>, ProbeError> {
        let mut seen = self.of_all(tests, Ask::Look).await?;
        match seen.iter_mut().find_map(|seen| seen.over.take()) {
            Some(why) => Err(ProbeError::Ended(why)),
            None => Ok(seen),
        }
    }

    /// Asks the same about all of them at once.
    async fn of_all(&self, tests: &[Test], question: fn(u32) -> Ask) -> Result<Vec<Seen>, ProbeError> {
        let ask = |(test, flows): &Test| {
            let (prober, test, flows) = (self.clone(), *test, *flows);
            tokio::spawn(async move { prober.seen(question(test), flows).await })
        };
        let asked: Vec<_> = tests.iter().map(ask).collect();
        let mut seen = Vec::new();
        for answer in asked {
            seen.push(answer.await.map_err(io::Error::other)??);
        }
        Ok(seen)
    }
}

impl Course {
    fn tell(&mut self, moment: Moment, both: &[Both], start: Duration, each: &mut Each<'_>) {
        if moment.at <= start {
            self.first = Some(both.to_vec());
        } else {
            each(moment, both);
            self.newest = Some(both.to_vec());
        }
    }
}

impl Load {
    /// Its sender goes on until the test is ended, `stopped` before its time: the server does not know of that.
    fn sends_on(&self, stopped: bool) -> bool {
        stopped && self.wish.way == Way::ToClient
    }
}

/// The server sends until it hears of the end. What had come here by then was sent in the time until then, and what is still on
/// its way is not lost.
fn cut_short(wish: &Wish, both: &mut Both, at: Duration) {
    both.far.seconds = both.far.seconds.min(at.as_secs_f64());
    if wish.what == What::Udp {
        for (sent, came) in both.far.flows.iter_mut().zip(&both.near.flows) {
            sent.packets = sent.packets.min(came.packets);
        }
    }
}

fn half(wish: &Wish, sockets: Vec<Socket>) -> io::Result<Half> {
    let role = if wish.way == Way::ToServer { Role::Sends } else { Role::Receives };
    let flows = sockets.into_iter().map(|socket| (socket, role)).collect();
    Half::start(flows, &wish.plan(role))
}

fn pairs(near: Vec<Seen>, far: Vec<Seen>) -> Vec<Both> {
    near.into_iter().zip(far).map(|(near, far)| Both { near, far }).collect()
}

const NOTE_EVERY: Duration = Duration::from_millis(100);
/// Nothing has come for so long: longer than one packet takes at 100 kbit/s.
const QUIET: Duration = Duration::from_millis(120);
/// Longer than that no queue is waited for.
const DRAIN_MAX: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::super::test::FlowSeen;
    use super::*;
    use crate::traffic::Options;

    #[test]
    fn what_a_sender_sent_after_the_end_is_not_lost() {
        let wish = |what| Wish {
            what,
            way: Way::ToClient,
            milliseconds: 60_000,
            streams: 1,
            length: 100,
            rate: None,
            options: Options::default(),
        };
        let seen = |seconds, packets| Seen {
            seconds,
            flows: vec![FlowSeen { packets, bytes: 100 * packets, ..FlowSeen::default() }],
            ..Seen::default()
        };
        let counted = Both { near: seen(2.3, 200), far: seen(2.6, 260) };
        let mut both = counted.clone();
        cut_short(&wish(What::Udp), &mut both, Duration::from_secs(2));
        assert_eq!((both.far.seconds, both.far.flows[0].packets), (2.0, 200));
        assert_eq!(both.near, counted.near);
        // One that the server itself has ended by then.
        let mut both = Both { far: seen(1.5, 150), ..counted };
        cut_short(&wish(What::Tcp), &mut both, Duration::from_secs(2));
        assert_eq!((both.far.seconds, both.far.flows[0].packets), (1.5, 150));
    }
}
