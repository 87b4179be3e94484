//! Whether moves bring what they are made for.
//!
//! The index tells how slow a stage will be where it goes by what that socket's counters say before it is there. Where weights aren't a host's own, or counters follow the threads (a cache
//! hits the more the more is done there), what was promised doesn't come: the threads meet what they fled from, flee again, and go on doing so every second, each time for a gain on paper.
//!
//! So each decision holds what it finds against what the last moves promised. If less than half of the gain has come, the margin by which threads must gain to leave their cores is twice what
//! it was, up to sixteen times; if more, three quarters of it: of promises of which every other one is broken none is to be believed, and a flight often ends where one began. While nothing moves it
//! is forgotten slowly, by a twentieth each time, so that a host whose index is of no use has its threads moved a few times a minute. What changes meanwhile for other reasons, as loads do, is taken for broken promises or kept ones; it costs a few decisions that are warier than need be.

//!
//! Whoever sends so that promises look broken has threads stay where it is a little slower for them; what a core lacks is so much more than all else that they leave it even so.

use ostler_model::Trust;

/// The margin is so many times the setting's at the most.
const WARY_MAX: f64 = 16.0;
/// And no more than this share of what a thread meets, so that a core that lacks what is wanted of it is left for one that doesn't.
const MARGIN_MAX: f64 = 0.8;
/// What is made of it by a promise that was kept, and by one that wasn't.
const WINS: f64 = 0.75;
const LOSES: f64 = 2.0;
/// What is left of it after a decision that nothing is known of.
const FORGETS: f64 = 0.95;

/// The share of what a thread meets that it must gain to leave its core, by the setting.
pub(super) fn margin(trust: Trust, setting: f64) -> f64 {
    let setting = setting.max(0.0);
    (setting * trust.wary).min(MARGIN_MAX).max(setting)
}

/// Holds what was promised against what has come.
pub(super) fn judged(trust: Trust, present: Option<f64>) -> Trust {
    let Trust { wary, promised } = trust;
    let wary = match (promised, present) {
        (Some([before, promised]), Some(present)) if promised < before => {
            let came = before - present >= (before - promised) / 2.0;
            wary * if came { WINS } else { LOSES }
        }
        _ => wary * FORGETS,
    };
    Trust {
        // Whatever a record says.
        wary: wary.clamp(1.0, WARY_MAX).max(1.0),
        promised: None,
    }
}
