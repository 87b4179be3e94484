//! A trace with the published figures of the public one, for when that isn't at hand.
//!
//! | figure | published | from |
//! |---|---|---|
//! | VMs there at a time, of all in 30 days | 1 in 13.9 (104,371,713 VM hours, 2,013,767 VMs) | AzurePublicDatasetV1.md |
//! | mean lifetime within 30 days | 51.8 h (the same) | AzurePublicDatasetV1.md |
//! | mean cores, by hours | 2.28 (237,815,104 core hours) | AzurePublicDatasetV1.md |
//! | lifetimes of 10 minutes or less | more than 15 % | Hadary et al., Protean (OSDI'20), as cited by Libra, section 5.2.3 |
//! | requests at night and at the peak | 10,000/h and 40,000/h | the same |
//! | lifetimes below a day | more than 90 % | Cortez et al., Resource Central (SOSP'17), section 3 |
//! | VMs of one or two cores | almost 80 % | the same |
//! | VMs with less than 4 GB | about 70 % | the same |
//! | VMs with a mean utilisation below 20 % | 60 % | the same |
//! | VMs with a P95 below 50 % | 40 % | the same |
//! | core hours of interactive and of delay-insensitive VMs | 28 % and 68 % | the same |
//! | deployments of one VM, and of up to five | 40 % and 80 % | the same |
//!
//! What isn't published is chosen: sizes are Azure's of the time (A and D series), VMs of a deployment are of one size, each VM's load has days of its own depth about its mean, and five minutes
//! differ by chance. Each VM has streams of its own, so a trace for more days has the same readings in its first.

use super::{Category, MONTH, Reading, STEP, Vm, VmId};
use crate::random::Stream;

/// What is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// VMs there at a time, in the mean.
    pub population: u32,
    /// For so long, s; up to 30 days.
    pub seconds: u64,
    /// What all is drawn from.
    pub seed: u64,
}

/// A trace's VMs, and their readings.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// In order of creation.
    pub vms: Vec<Vm>,
    seed: u64,
    seconds: u64,
    at: u64,
}

/// Of all VMs of a month, those that last for days.
const LONG: f64 = 0.09;
/// Of those, the ones that are there before it begins and after it ends.
const STAYS: f64 = 0.7;
/// All VMs of a month for each that is there at a time.
const TURNOVER: f64 = 13.9;
/// By a sine from 1 to 4 at its peak, its mean being 2.5.
const SWING: f64 = 0.6;

/// Cores and how many VMs have them.
const CORES: [(u32, f64); 5] = [(1, 0.52), (2, 0.29), (4, 0.12), (8, 0.055), (16, 0.015)];
/// GB by cores, and how many have them.
const SIZES: [&[(f64, f64)]; 5] = [
    &[(0.75, 0.15), (1.75, 0.60), (3.5, 0.25)],
    &[(3.5, 0.62), (7.0, 0.28), (14.0, 0.10)],
    &[(7.0, 0.60), (14.0, 0.30), (28.0, 0.10)],
    &[(14.0, 0.60), (28.0, 0.25), (56.0, 0.15)],
    &[(56.0, 0.40), (112.0, 0.60)],
];

/// Generates a trace.
pub fn generate(settings: &Settings) -> Trace {
    let month = (MONTH + STEP) as f64;
    let all = f64::from(settings.population) * TURNOVER;
    let mut draw = Stream::new(settings.seed, "trace", 0);
    let mut vms = Vec::new();
    let staying = f64::from(settings.population) * TURNOVER * LONG * STAYS;
    while (vms.len() as f64) < staying {
        deploy(settings, &mut draw, 0, true, &mut vms);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "there are that many of them already"
    )]
    vms.truncate(staying as usize);
    // Deployments come at random, at a rate that goes by the hour: thinned from that of the peak.
    let each = mean_deployment();
    let peak = all * (1.0 - LONG * STAYS) / month / each * (1.0 + SWING);
    let mut at = draw.exponential(1.0 / peak.max(1e-12));
    while at < settings.seconds as f64 {
        let now = (1.0 + SWING * day(at)) / (1.0 + SWING);
        if draw.chance(now) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is between bounds"
            )]
            let second = at as u64 / STEP * STEP;
            deploy(settings, &mut draw, second, false, &mut vms);
        }
        at += draw.exponential(1.0 / peak.max(1e-12));
    }
    Trace {
        vms,
        seed: settings.seed,
        seconds: settings.seconds,
        at: 0,
    }
}

/// The hour as a sine: the least at three at night, the most at three in the afternoon. Traces begin at midnight.
fn day(at: f64) -> f64 {
    -libm::cos(std::f64::consts::TAU * (at / 86_400.0 - 0.125))
}

fn deployment_size(draw: &mut Stream) -> u64 {
    match draw.unit() {
        unit if unit < 0.4 => 1,
        unit if unit < 0.8 => 2 + draw.below(4),
        _ => 6 + draw.below(15),
    }
}

fn mean_deployment() -> f64 {
    0.4 + 0.4 * 3.5 + 0.2 * 13.0
}

fn deploy(settings: &Settings, draw: &mut Stream, at: u64, stays: bool, vms: &mut Vec<Vm>) {
    let deployment = VmId(draw.bits() >> 1);
    let subscription = VmId(draw.below(u64::from(settings.population) / 4 + 1));
    let (class, (cores, _)) = pick(draw.unit(), &CORES, |(_, share)| share);
    let (_, (gb, _)) = pick(draw.unit(), SIZES[class], |(_, share)| share);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "all of them are small"
    )]
    let memory = (gb * super::GB) as u64;
    let end = settings.seconds.saturating_sub(STEP).max(at);
    for _ in 0..deployment_size(draw) {
        let id = VmId(vms.len() as u64);
        let mut own = Stream::new(settings.seed, "vm", id.0);
        let long = stays || own.chance(LONG * (1.0 - STAYS) / (1.0 - LONG * STAYS));
        let lasts = if stays {
            f64::INFINITY
        } else if long {
            // From a day to a month, the longer the fewer.
            86_400.0 * libm::exp(own.unit() * libm::log(30.0))
        } else {
            own.log_normal(2400.0, 1.5)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates"
        )]
        let deleted = at.saturating_add(lasts as u64 / STEP * STEP).min(end);
        let mean = own.log_normal(15.5, 1.0).clamp(0.1, 95.0);
        let p95 = (mean * own.log_normal(4.4, 0.5)).clamp(mean, 100.0);
        let category = match own.unit() {
            _ if !long => Category::Unknown,
            unit if unit < 0.29 => Category::Interactive,
            _ => Category::DelayInsensitive,
        };
        vms.push(Vm {
            id,
            subscription,
            deployment,
            created: at,
            deleted,
            cpu_max: (p95 * own.log_normal(1.15, 0.1)).clamp(p95, 100.0),
            cpu_mean: mean,
            cpu_p95: p95,
            category,
            cores,
            memory,
        });
    }
}

fn pick<T: Copy>(mut unit: f64, from: &[T], share: impl Fn(T) -> f64) -> (usize, T) {
    let last = from.len() - 1;
    for (at, one) in from.iter().enumerate() {
        unit -= share(*one);
        if unit < 0.0 || at == last {
            return (at, *one);
        }
    }
    unreachable!("the last one is picked at the latest")
}

/// What a VM does in the five minutes from a time.
pub fn reading(seed: u64, vm: &Vm, at: u64) -> Reading {
    let mut draw = Stream::new(seed, "reading", (vm.id.0 << 20) | (at / STEP));
    let depth = match vm.category {
        Category::Interactive => 0.6,
        Category::DelayInsensitive => 0.1,
        Category::Unknown => 0.0,
    };
    // Log-normal of mean 1.
    let chance = draw.log_normal(libm::exp(-0.045), 0.3);
    let mean = (vm.cpu_mean * (1.0 + depth * day(at as f64)) * chance).clamp(0.0, 100.0);
    // Of twenty maxima one is above the P95: an exponential about the mean that has it there.
    let above = draw.exponential((vm.cpu_p95 - vm.cpu_mean).max(0.0) / 3.0);
    let max = (mean + above).clamp(mean, vm.cpu_max.max(mean));
    Reading {
        at,
        vm: vm.id,
        min: mean * draw.unit(),
        max,
        mean,
    }
}

impl Trace {
    /// All readings of the next timestamp, as [`Readings::step`](super::read::Readings::step) gives them.
    pub fn step(&mut self, into: &mut Vec<Reading>) -> Option<u64> {
        into.clear();
        let at = self.at;
        if at >= self.seconds {
            return None;
        }
        self.at += STEP;
        let there = self
            .vms
            .iter()
            .take_while(|vm| vm.created <= at)
            .filter(|vm| at <= vm.deleted);
        into.extend(there.map(|vm| reading(self.seed, vm, at)));
        Some(at)
    }
}
