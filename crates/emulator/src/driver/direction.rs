//! One direction of a link while it runs: the models of its traffic, and what is on its way.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::capture::Tap;
use crate::dice::Dice;
use crate::driver::agenda::Agenda;
use crate::link::{Cause, Counters, Link, LinkConfig, Nanos, Outcome, Run, bytes_held_max};
use crate::packet::Train;
use crate::report::{DirectionReport, Lateness, RuleReport};
use crate::rules::{Classifier, Rule};
use crate::trace::Trace;

/// What one direction of a link does with packets: all of them, and those that fit a rule.
#[derive(Clone, Debug)]
pub(crate) struct Treatment {
    /// For packets that fit no rule.
    pub(crate) link: LinkConfig,
    /// In the order in which rules are tried.
    pub(crate) rules: Vec<(String, Rule, LinkConfig)>,
}

/// One direction: its links, and what is on its way. `P` names a packet to the engine.
#[derive(Debug)]
pub(crate) struct Direction<P> {
    dice: Dice,
    /// The link of packets that fit no rule, then that of each rule.
    links: Vec<Link<P>>,
    rules: Vec<(String, Rule)>,
    classifier: Classifier,
    /// Links that keep packets in queues of their own.
    fair: Vec<usize>,
    /// Of all links.
    pub(crate) shortest_delay: Duration,
    agenda: Agenda<(P, Run)>,
    lateness_us: Histogram<u64>,
    /// Packets dropped for want of room, or refused by the kernel.
    pub(crate) own_drops: u64,
    /// Packets of many segments that were dropped whole although a real queue would have taken a part.
    coarse_drops: u64,
    out: Outcome<P>,
    /// Where packets are recorded.
    pub(crate) tap: Option<Tap>,
}

impl Treatment {
    /// Bytes in flight and queued at the most.
    pub(crate) fn bytes_held_max(&self) -> u64 {
        bytes_held_max(std::iter::once(&self.link).chain(self.rules.iter().map(|(_, _, config)| config)))
    }
}

impl<P: Copy + PartialEq> Direction<P> {
    pub(crate) fn new(treatment: Treatment, dice: Dice, tap: Option<Tap>) -> Self {
        let mut direction = Self {
            dice,
            links: vec![Link::new(treatment.link, dice)],
            rules: Vec::new(),
            classifier: Classifier::default(),
            fair: Vec::new(),
            shortest_delay: Duration::ZERO,
            agenda: Agenda::new(),
            lateness_us: new_histogram(),
            own_drops: 0,
            coarse_drops: 0,
            out: Outcome::with_drops(tap.is_some()),
            tap,
        };
        direction.add_rules(treatment.rules);
        direction
    }

    fn add_rules(&mut self, rules: Vec<(String, Rule, LinkConfig)>) {
        for (name, rule, config) in rules {
            // Each rule's link has dice of its own: its flows are numbered from 1 again.
            let dice = self.dice.branch(self.links.len() as u64);
            self.links.push(Link::new(config, dice));
            self.rules.push((name, rule));
        }
        let rules: Vec<Rule> = self.rules.iter().map(|(_, rule)| *rule).collect();
        self.classifier = Classifier::new(&rules);
        self.look_over();
    }

    fn look_over(&mut self) {
        self.fair = (0..self.links.len()).filter(|at| self.links[*at].is_fair()).collect();
        self.shortest_delay = self.shortest();
    }

    /// Changes the links; their rules stay.
    pub(crate) fn set(&mut self, now: Nanos, treatment: Treatment) {
        let configs =
            std::iter::once(treatment.link).chain(treatment.rules.into_iter().map(|(_, _, config)| config));
        for (link, config) in self.links.iter_mut().zip(configs) {
            if *link.config() != config {
                link.set(now, config, &mut self.out);
            }
        }
        self.look_over();
    }

    /// The shortest delay of any of its packets, jitter apart.
    fn shortest(&self) -> Duration {
        let of = |link: &Link<P>| {
            let config = link.config();
            config.trace.as_ref().and_then(Trace::delay_min).map_or(config.delay, |min| min.min(config.delay))
        };
        self.links.iter().map(of).min().unwrap_or_default()
    }

    /// The link of packets that fit no rule.
    pub(crate) fn config(&self) -> &LinkConfig {
        self.links[0].config()
    }

    /// Takes a packet. True where its segments wait in the link itself: each of them is then told by
    /// [`settle`](Self::settle) when it leaves.
    pub(crate) fn offer(&mut self, now: Nanos, train: &Train, packet: P) -> bool {
        let number = self.classifier.classify(train).map_or(0, |rule| rule + 1);
        let link = &mut self.links[number];
        link.offer(now, train, packet, &mut self.out);
        link.is_fair()
    }

    /// Takes a packet that cannot be cut: all of its segments arrive together or none. False: none does.
    pub(crate) fn offer_whole(&mut self, now: Nanos, train: &Train, packet: P) -> (bool, Run) {
        self.links[0].offer(now, train, packet, &mut self.out);
        let passed: u32 = self.out.runs.iter().map(|(_, run)| run.count).sum();
        self.coarse_drops += u64::from(train.segments > 1 && passed < train.segments && passed > 0);
        let last = self.agenda.last_due().unwrap_or(now);
        let deliver_at = self.out.runs.last().map_or(last, |(_, run)| run.deliver_at);
        self.out.runs.clear();
        // The share that gets through stays about right when the greater part decides.
        let arrives = passed * 2 >= train.segments;
        (arrives, Run { first: 0, count: train.segments, deliver_at, corrupt: None, mark: false })
    }

    /// Puts a run among those that wait.
    pub(crate) fn wait(&mut self, run: Run, packet: P) {
        self.agenda.add(run.deliver_at, (packet, run));
    }

    /// Has links send what waits in queues of their own.
    pub(crate) fn serve(&mut self, now: Nanos) {
        for at in &self.fair {
            self.links[*at].serve(now, &mut self.out);
        }
    }

    /// Puts what links have decided among what waits. Tells `hold` of each run, and `release` of each segment that has
    /// left a link's own queues; before that, `dropped` of each that does not arrive, where there is a capture.
    pub(crate) fn settle(
        &mut self,
        hold: impl Fn(P),
        release: impl Fn(P),
        dropped: impl Fn(&mut Tap, P, u32, Cause),
    ) {
        if let (Some(tap), Some(drops)) = (&mut self.tap, &mut self.out.drops) {
            drops.drain(..).for_each(|(packet, segment, cause)| dropped(tap, packet, segment, cause));
        }
        for (packet, run) in self.out.runs.drain(..) {
            hold(packet);
            self.agenda.add(run.deliver_at, (packet, run));
        }
        self.out.gone.drain(..).for_each(release);
    }

    /// What is to be delivered by `now`, one after the other.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Option<(P, Run)> {
        let (due, item) = self.agenda.take_due(now)?;
        self.lateness_us.saturating_record((now - due) / 1000);
        Some(item)
    }

    /// When something is to be done next.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let links = self.fair.iter().filter_map(|at| self.links[*at].due());
        self.agenda.next_due().into_iter().chain(links).min()
    }

    /// `unread_drops`: of the engine, before packets came here.
    pub(crate) fn report(&self, now: Nanos, unread_drops: u64) -> DirectionReport {
        let rules = self.rules.iter().zip(&self.links[1..]).map(|((name, rule), link)| RuleReport {
            name: name.clone(),
            rule: *rule,
            config: link.config().in_short(),
            counters: link.counters(),
            queue_bytes: link.queued_bytes(now),
        });
        DirectionReport {
            config: self.config().in_short(),
            trace: self.config().trace.as_ref().map(Trace::summary),
            counters: self.links.iter().map(Link::counters).fold(Counters::default(), Counters::and),
            queue_bytes: self.links.iter().map(|link| link.queued_bytes(now)).fold(0, u64::saturating_add),
            rules: rules.collect(),
            lateness: Lateness::of(&self.lateness_us),
            lateness_histogram: Lateness::classes(&self.lateness_us),
            own_drops: self.own_drops + unread_drops,
            coarse_drops: self.coarse_drops,
            not_captured: self.tap.as_ref().map_or(0, Tap::missed),
        }
    }
}

fn new_histogram() -> Histogram<u64> {
    // 1 us to 1 h, two digits: 13 KiB. The bounds are constants within the crate's rules.
    Histogram::new_with_bounds(1, Duration::from_secs(3600).as_micros() as u64, 2).expect("constant bounds")
}
