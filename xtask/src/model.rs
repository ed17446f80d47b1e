//! `bench model`: what the emulator's pure model costs, by effect and by number of rules.
//!
//! No packet moves: the link is asked what it would do. All subjects are measured in turn, round by round, so that
//! whatever disturbs the machine disturbs them alike.

use std::fmt::Write;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use longhaul_emulator::LinkConfig;
use longhaul_emulator::aqm::Aqm;
use longhaul_emulator::delay::{Jitter, Shape};
use longhaul_emulator::dice::{Dice, Probability};
use longhaul_emulator::link::{Link, Outcome, Reorder};
use longhaul_emulator::loss::LossModel;
use longhaul_emulator::packet::{FlowKey, Train};
use longhaul_emulator::rules::{Classifier, Rule};
use longhaul_emulator::trace::{Step, Trace};
use serde::Serialize;

use crate::places::Places;
use crate::{environment, show};

/// Cost of the emulator's model for each packet: by effect of the link, and by number of rules
#[derive(Debug, Args)]
pub(crate) struct ModelBench {
    /// Times that each is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    #[command(flatten)]
    places: Places,
}

/// What something cost, in nanoseconds.
#[derive(Debug, Serialize)]
struct Cost {
    subject: String,
    unit: &'static str,
    median_ns: f64,
    rounds_ns: Vec<f64>,
}

/// Something to measure: it works once and tells how many units that was.
struct Subject {
    name: String,
    unit: &'static str,
    work: Box<dyn FnMut() -> u64>,
}

impl ModelBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let environment = environment::environment(&self.places.longhaul()?, &[]);
        let out = self.places.out("model", &environment)?;
        let mut subjects = links();
        subjects.extend(rules());
        let mut costs: Vec<Vec<f64>> = subjects.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.rounds.max(1) {
            for (subject, costs) in subjects.iter_mut().zip(&mut costs) {
                let began = Instant::now();
                let units = (subject.work)();
                costs.push(began.elapsed().as_nanos() as f64 / units as f64);
            }
        }
        let costs: Vec<Cost> = subjects
            .into_iter()
            .zip(costs)
            .map(|(Subject { name, unit, .. }, rounds_ns)| {
                let mut sorted = rounds_ns.clone();
                sorted.sort_unstable_by(f64::total_cmp);
                Cost { subject: name, unit, median_ns: sorted[sorted.len() / 2], rounds_ns }
            })
            .collect();
        let mut text = String::from("# Cost of the link model\n\n");
        writeln!(text, "{}; {}\n", environment.date, environment.command.join(" "))?;
        writeln!(text, "| what | of a | median, ns | all rounds, ns |\n| --- | --- | ---: | --- |")?;
        for Cost { subject, unit, median_ns, rounds_ns } in &costs {
            let all: Vec<String> = rounds_ns.iter().map(|ns| format!("{ns:.0}")).collect();
            writeln!(text, "| {subject} | {unit} | {median_ns:.1} | {} |", all.join(" "))?;
        }
        let record =
            serde_json::json!({"schema": "longhaul-model/1", "environment": environment, "costs": costs});
        show::record(&out.join("results.json"), &serde_json::to_string_pretty(&record)?)?;
        show::write(&out.join("results.md"), &text)?;
        show::print_out(&text)?;
        eprintln!("results are in {}", out.display());
        Ok(ExitCode::SUCCESS)
    }
}

const SEGMENTS: u32 = 45;
/// Long enough that a clock is exact, short enough that rounds alternate.
const PACKETS: u64 = 20_000;

fn train(port: u16, segments: u32) -> Train {
    let address = |last| IpAddr::from(Ipv4Addr::new(10, 77, 0, last));
    let flow = FlowKey::new(address(1), address(2), 6, (port, 5201));
    Train { flow, segments, header_bytes: 52, segment_bytes: 1448, last_bytes: 1448, traffic_class: 2 }
}

/// Links that differ in what they do, on a wire that the packets fill.
fn links() -> Vec<Subject> {
    let p = |p: f64| Probability::try_from(p).unwrap_or_default();
    let ms = Duration::from_millis;
    let wire = LinkConfig {
        rate_bps: Some(1_000_000_000),
        queue_bytes: Some(25_000_000),
        ..LinkConfig::with_delay(ms(100))
    };
    let jitter = Jitter { spread: ms(1), shape: Shape::Normal, correlation: p(0.25), overtakes: false };
    let gilbert = LossModel::GilbertElliott { fail: p(0.0001), recover: p(0.3), bad: p(1.0), good: p(0.0) };
    let codel = Aqm::CoDel { target: ms(5), interval: ms(100), ecn: true };
    let fair = Aqm::FqCoDel { target: ms(5), interval: ms(100), ecn: true };
    let step =
        |i: u64| Step { at: ms(i), rate_bps: Some(990_000_000 + i % 2 * 20_000_000), ..Step::default() };
    let trace = Trace::new((0..100_000).map(step).collect(), Some(ms(100_000))).ok();
    let configs = [
        ("delay alone", LinkConfig::with_delay(ms(100))),
        ("delay, rate, queue in bytes", wire.clone()),
        ("and queue in packets", LinkConfig { queue_packets: NonZeroU64::new(16_000), ..wire.clone() }),
        ("and random loss", LinkConfig { loss: LossModel::Random(p(0.0001)), ..wire.clone() }),
        ("and Gilbert-Elliott loss", LinkConfig { loss: gilbert, ..wire.clone() }),
        (
            "and duplication, corruption, reordering",
            LinkConfig {
                duplicate: p(0.0001),
                corrupt: p(0.0001),
                reorder: Some(Reorder { probability: p(0.0001), gap: NonZeroU64::MIN }),
                ..wire.clone()
            },
        ),
        ("and normal jitter, correlated", LinkConfig { jitter: Some(jitter), ..wire.clone() }),
        ("and CoDel", LinkConfig { aqm: Some(codel), ..wire.clone() }),
        ("and FQ-CoDel", LinkConfig { aqm: Some(fair), ..wire.clone() }),
        ("and a trace of 100,000 steps", LinkConfig { trace, ..wire }),
    ];
    let mut subjects = Vec::new();
    for (name, config) in configs {
        for segments in [1, SEGMENTS] {
            let mut link = Link::new(config.clone(), Dice::new(1, 0));
            let (mut now, mut number) = (0u64, 0u32);
            let work = move || {
                let mut out = Outcome::default();
                for _ in 0..PACKETS {
                    // What a full packet takes on the wire.
                    now += u64::from(segments) * 12_304;
                    number = number.wrapping_add(1);
                    link.offer(now, &train((number % 16) as u16, segments), number, &mut out);
                    black_box(&out);
                    out.runs.clear();
                    out.gone.clear();
                }
                PACKETS * u64::from(segments)
            };
            let packet = if segments == 1 { "single packets" } else { "big packets" };
            subjects.push(Subject {
                name: format!("{name}, {packet}"),
                unit: "segment",
                work: Box::new(work),
            });
        }
    }
    subjects
}

/// Tables of rules of several shapes, which the packets do not fit but for the last one.
fn rules() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for count in [0u16, 1, 10, 100, 1000, 10_000] {
        let rule = |i: u16| {
            let other = format!("10.{}.{}.0/24", 100 + i / 256 % 100, i % 256).parse().ok();
            match i % 4 {
                _ if i + 1 == count => Rule { protocol: Some(6), to_port: Some(5201), ..Rule::default() },
                0 => Rule { from: other, ..Rule::default() },
                1 => Rule { to: other, protocol: Some(17), ..Rule::default() },
                2 => Rule { port: Some(6000 + i), protocol: Some(6), ..Rule::default() },
                _ => Rule { from: other, dscp: Some((i % 64) as u8), ..Rule::default() },
            }
        };
        let rules: Vec<Rule> = (0..count).map(rule).collect();
        for (flows, what) in [(16u32, "16 flows"), (u32::MAX, "a new flow each time")] {
            let mut classifier = Classifier::new(&rules);
            let mut number = 0u32;
            let work = move || {
                for _ in 0..PACKETS {
                    number = number.wrapping_add(1);
                    let source = Ipv4Addr::from_bits(0x0a00_0000 | (number % flows));
                    let flow =
                        FlowKey::new(source.into(), Ipv4Addr::new(10, 77, 0, 2).into(), 6, (40_000, 5201));
                    black_box(classifier.classify(&Train { flow, ..train(0, 1) }));
                }
                PACKETS
            };
            subjects.push(Subject {
                name: format!("{count} rules, {what}"),
                unit: "packet",
                work: Box::new(work),
            });
        }
    }
    subjects
}
