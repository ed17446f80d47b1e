//! Links by name: those of published measurements, and typical ones to begin with.

use std::time::Duration;

use crate::delay::{Jitter, Shape};
use crate::dice::Probability;
use crate::loss::LossModel;
use crate::spec::LinkSpec;

/// A link with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// As on the command line.
    pub name: &'static str,
    /// What it is, and where its figures are from.
    pub about: &'static str,
    spec: fn() -> LinkSpec,
}

impl Preset {
    /// The link.
    #[must_use]
    pub fn spec(&self) -> LinkSpec {
        (self.spec)()
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

/// All of them.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "chofu-tsukuba",
        about: "1 Gbit/s x 3.3 ms: between two sites of JAXA, as the file system SRFS on Ether met it",
        spec: || path(GBIT, 3.3),
    },
    Preset {
        name: "chofu-tsukuba-vpn",
        about: "1 Gbit/s x 4.0 ms: the same through a VPN",
        spec: || path(GBIT, 4.0),
    },
    Preset {
        name: "tokyo-kek",
        about: "1 Gbit/s x 3 ms: University of Tokyo to KEK, the near path of the ICEPP test, 2004",
        spec: || path(GBIT, 3.0),
    },
    Preset {
        name: "tokyo-cern",
        about: "1 Gbit/s x 300 ms: University of Tokyo to CERN, the far path of the same test",
        spec: || path(GBIT, 300.0),
    },
    Preset {
        name: "tokyo-us",
        about: "10 Gbit/s x 200 ms: Japan to the United States, as UsadaFox downloaded over it, 2010",
        spec: || path(10 * GBIT, 200.0),
    },
    Preset {
        name: "transatlantic-10g",
        about: "10 Gbit/s x 90 ms: typical of Europe to North America",
        spec: || path(10 * GBIT, 90.0),
    },
    Preset {
        name: "geostationary",
        about: "50 Mbit/s to near, 5 Mbit/s back, x 600 ms: typical of a satellite 35,786 km up, which light alone \
                reaches and leaves twice in 477 ms",
        spec: || LinkSpec { rate_bps: [Some(5_000_000), Some(50_000_000)], ..path(GBIT, 600.0) },
    },
    Preset {
        name: "wifi",
        about: "50 Mbit/s x 6 ms with jitter and losses in bursts: typical of a crowded wireless network",
        spec: || LinkSpec {
            jitter: [Some(WIFI_JITTER), Some(WIFI_JITTER)],
            loss: [Some(wifi_loss()); 2],
            ..path(50_000_000, 6.0)
        },
    },
];

const GBIT: u64 = 1_000_000_000;

const WIFI_JITTER: Jitter = Jitter {
    spread: Duration::from_millis(2),
    shape: Shape::Pareto,
    correlation: Probability::ZERO,
    overtakes: false,
};

/// Bursts of three on average.
fn wifi_loss() -> LossModel {
    let p = |p| Probability::try_from(p).unwrap_or_default();
    LossModel::GilbertElliott { fail: p(0.002), recover: p(0.3), bad: p(1.0), good: p(0.0) }
}

fn path(rate_bps: u64, rtt_ms: f64) -> LinkSpec {
    let one_way = Duration::from_secs_f64(rtt_ms / 2e3);
    LinkSpec { delay: [Some(one_way); 2], rate_bps: [Some(rate_bps); 2], ..LinkSpec::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_links() {
        for preset in PRESETS {
            preset.spec().resolve().unwrap();
            assert_eq!(Preset::named(preset.name).map(|found| found.about), Some(preset.about));
        }
        assert_eq!(
            Preset::named("tokyo-cern").unwrap().spec().resolve().unwrap().rtt(),
            Duration::from_millis(300)
        );
        let mean = wifi_loss().mean();
        assert!((mean - 0.0066).abs() < 0.0001, "{mean}");
        assert!(Preset::named("nowhere").is_none());
    }
}
