use std::num::{NonZeroU32, NonZeroU64};

use super::*;
use crate::aqm::Aqm;
use crate::link::Reorder;
use crate::outage::Outage;

const MS: Duration = Duration::from_millis(1);

fn p(p: f64) -> Probability {
    Probability::try_from(p).unwrap()
}

fn path(config: &LinkConfig) -> String {
    Qdiscs::of(config).unwrap().path.join(" ")
}

fn link() -> LinkConfig {
    LinkConfig::with_delay(10 * MS)
}

#[test]
fn a_delay_alone_is_one_qdisc() {
    let qdiscs = Qdiscs::of(&link()).unwrap();
    assert_eq!(qdiscs.path.join(" "), "netem limit 200000 delay 10000.000us rate 0bit");
    assert_eq!((qdiscs.wire, qdiscs.table), (None, None));
}

#[test]
fn a_rate_has_a_queue_of_its_own() {
    let wire = |config: LinkConfig| Qdiscs::of(&config).unwrap().wire.unwrap().join(" ");
    let rate = LinkConfig { rate_bps: Some(10_000_000), ..link() };
    assert_eq!(wire(rate.clone()), "netem limit 200000 rate 10000000bit");
    let packets = LinkConfig { queue_packets: NonZeroU64::new(100), ..rate.clone() };
    assert_eq!(wire(packets), "netem limit 100 rate 10000000bit");
    let bytes = |bytes| LinkConfig { queue_bytes: Some(bytes), ..rate.clone() };
    assert_eq!(wire(bytes(15_380)), "netem limit 10 rate 10000000bit", "of full packets");
    assert_eq!(wire(bytes(100)), "netem limit 1 rate 10000000bit", "one always fits");
    assert_eq!(wire(bytes(1 << 40)), "netem limit 200000 rate 10000000bit");
}

#[test]
fn loss_models_keep_their_numbers() {
    let with = |loss| path(&LinkConfig { loss, ..LinkConfig::default() });
    let before = "netem limit 200000 delay 0.000us rate 0bit";
    let random = with(LossModel::Random(p(0.000_012_5)));
    assert_eq!(random, format!("{before} loss random 0.001250000%"));
    let two = LossModel::GilbertElliott { fail: p(0.01), recover: p(0.25), bad: p(0.9), good: p(0.001) };
    assert_eq!(
        with(two),
        format!("{before} loss gemodel 1.000000000% 25.000000000% 90.000000000% 0.100000000%")
    );
    let four = LossModel::Markov { p13: p(0.01), p31: p(0.3), p32: p(0.2), p23: p(0.4), p14: p(0.001) };
    let numbers = "1.000000000% 30.000000000% 20.000000000% 40.000000000% 0.100000000%";
    assert_eq!(with(four), format!("{before} loss state {numbers}"));
}

#[test]
fn jitter_goes_by_a_table() {
    let jitter = Jitter { spread: 2 * MS, shape: Shape::Normal, ..Jitter::NONE };
    let config = LinkConfig { jitter: Some(jitter.clone()), ..link() };
    let delay = "netem limit 200000 delay 10000.000us 2000.000us 0.000000000% distribution jitter";
    assert_eq!(path(&config), format!("{delay} rate 1tbit"), "a rate keeps the order");
    let free = Jitter { overtakes: true, ..jitter };
    assert_eq!(path(&LinkConfig { jitter: Some(free), ..link() }), format!("{delay} rate 0bit"));
}

/// Mean and standard deviation of what netem makes of a shape with a spread of 1.
fn moments(shape: &Shape) -> (f64, f64) {
    let stretch = stretch(shape);
    let values: Vec<f64> = table(shape)
        .lines()
        .map(|line| line.parse::<i16>().unwrap())
        .map(|sample| f64::from(sample) / TABLE_SCALE * stretch)
        .collect();
    assert_eq!(values.len(), TABLE_SAMPLES);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

#[test]
fn tables_have_their_distribution() {
    for (shape, deviation, error) in [
        (Shape::Uniform, 1.0 / 3f64.sqrt(), 0.001),
        (Shape::Normal, 1.0, 0.001),
        // The rarest values of a long tail are beyond the table.
        (Shape::Pareto, 1.0, 0.1),
        (Shape::Table(vec![0.0, 10.0]), 10.0 / 12f64.sqrt(), 0.001),
    ] {
        let (mean, found) = moments(&shape);
        let expected = if matches!(shape, Shape::Table(_)) { 5.0 } else { 0.0 };
        assert!(
            (mean - expected).abs() < 0.01 && (found - deviation).abs() < error,
            "{shape:?}: {mean} {found}"
        );
    }
    assert_eq!(stretch(&Shape::Normal), 1.0);
    let pareto = Jitter { spread: MS, shape: Shape::Pareto, ..Jitter::NONE };
    let path = path(&LinkConfig { jitter: Some(pareto), ..link() });
    assert!(path.contains(" delay 10000.000us 6900.604us "), "the spread is stretched for the tail: {path}");
}

#[test]
fn overtaking_goes_where_its_rules_are_the_same() {
    let reorder = |probability, gap| {
        let reorder = Reorder { probability: p(probability), gap: NonZeroU64::new(gap).unwrap() };
        LinkConfig { reorder: Some(reorder), ..link() }
    };
    assert!(path(&reorder(0.25, 1)).ends_with("reorder 25.000000000% gap 1"));
    assert!(path(&reorder(1.0, 5)).ends_with("reorder 100.000000000% gap 5"));
    assert!(Qdiscs::of(&reorder(0.25, 5)).is_err());
    assert!(!path(&LinkConfig { delay: Duration::ZERO, ..reorder(0.25, 1) }).contains("reorder"));
}

#[test]
fn what_netem_does_not_know_is_named() {
    let rate_bps = Some(1_000_000);
    let one = Some(Reorder { probability: p(0.5), gap: NonZeroU64::MIN });
    let length = NonZeroU32::MIN;
    for (config, option) in [
        (LinkConfig { corrupt: p(0.1), ..link() }, "--corrupt"),
        (LinkConfig { outage: Some(Outage { lasts: MS, ..Outage::NEVER }), ..link() }, "--outage"),
        (
            LinkConfig {
                rate_bps,
                aqm: Some(Aqm::Drd { min: 1, max: NonZeroU64::MIN, ecn: false }),
                ..link()
            },
            "--aqm",
        ),
        (LinkConfig { loss: LossModel::Burst { begin: p(0.1), length }, ..link() }, "--loss burst"),
        (LinkConfig { rate_bps, duplicate: p(0.1), ..link() }, "--duplicate with --rate"),
        (LinkConfig { rate_bps, reorder: one, ..link() }, "--reorder with --rate"),
    ] {
        let error = Qdiscs::of(&config).unwrap_err().to_string();
        assert!(error.contains(&format!("`{option}`")) && error.contains("--engine split"), "{error}");
    }
}

#[test]
fn statistics_become_counters() {
    let text = r#"[{"kind":"netem","handle":"1:","root":true,"refcnt":2,"options":{"limit":200000,"ecn":false,"gap":0},
        "bytes":15380,"packets":10,"drops":7,"overlimits":0,"requeues":2,"backlog":3076,"qlen":2},
        {"kind":"netem","handle":"2:","parent":"1:","options":{"limit":9},"bytes":0,"packets":10,"drops":4,
        "overlimits":0,"requeues":0,"backlog":1538,"qlen":1}]"#;
    let all: Vec<Counted> = serde_json::from_str(text).unwrap();
    let mut drops = PathDrops::default();
    drops.note(3, &LossModel::Random(p(0.1)));
    // Nothing was to be lost any more: it must have been for want of room.
    drops.note(5, &LossModel::default());
    let found = counters(&all[0], &all[1], drops);
    let expected = Counters {
        segments: 19,
        bytes: 18_000,
        dropped_queue: 4,
        lost: 3,
        reordered: 2,
        delivered: 10,
        delivered_bytes: 15_000,
        ..Counters::default()
    };
    assert_eq!((found, drops.own), (expected, 2));
}

#[test]
fn a_kernel_without_netem_is_told_from_other_refusals() {
    let asked = words("qdisc add dev near root handle 1: netem limit 5");
    let none = refusal(&asked, "Error: Specified qdisc kind is unknown.\n").to_string();
    assert!(none.starts_with("this kernel has no netem") && none.contains("--engine split"), "{none}");
    let other = refusal(&asked, "RTNETLINK answers: Operation not permitted\n").to_string();
    assert!(other.contains("`tc qdisc add dev near") && other.contains("not permitted"), "{other}");
}
