//! The policies that the paper compares itself with (section 5.1), as far as they are a matter of dividing cores.
//!
//! - **Time-sharing** (`nvCPU-1NQ`, `nvCPU-nNQ`): the vanilla host. Everything floats over all cores; the NIC's and the vNICs' queues are
//!   one, or as many as there are, interrupts spread over the cores in turn.
//! - **Static** (`16vCPU-4NQ` and the like): the isolation of vSPACE without its adjusting.
//! - **CoreNap-like**: as many cores as demand asks for, by the rule of Algorithm 2, but one pool, in which vCPUs and queues take turns. Its
//!   threshold is that for vCPUs. CoreNap's own rule for when a core naps is about user threads and packet steering within one
//!   process, and has no counterpart for guests; the paper too keeps the idea and adapts the rest.
//! - **Demeter-like**: vCPU cores by vCPU run time alone, the rest to best-effort guests. Packet processing is in nobody's account: it floats
//!   over all cores, and takes its time from either side. That is the paper's point against it.

use ostler_model::{ByThreads, Group, Groups, Reason};

use super::allocate::{Ask, Split, proportional};
use super::cores::Cores;
use super::demand::{measure_pool, vcpu_run};
use crate::Seen;

/// What a baseline measures of its one kind of cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool {
    /// Cores' time used.
    pub busy: f64,
    /// Whether it was measured on the pool's own cores.
    pub confined: bool,
}

/// A static isolation: the operator's counts of CPUs, as units, in proportion where there are too few.
pub fn fixed(cores: &Cores, vcpu: u32, nq: u32, reasons: &mut Vec<Reason>) -> Split {
    let wish = Split {
        vcpu: cores.units_for(vcpu).max(1),
        nq: cores.units_for(nq).max(1),
    };
    let total = cores.total();
    let required = wish.vcpu.saturating_add(wish.nq);
    if required <= total {
        return wish;
    }
    reasons.push(Reason::Contended {
        required: f64::from(required),
        available: total,
    });
    proportional(total, f64::from(wish.vcpu), f64::from(wish.nq))
}

/// What vCPUs and queues used of their common pool.
pub fn corenap(
    seen: &Seen<'_>,
    cores: &Cores,
    previous: Option<&Groups>,
    reasons: &mut Vec<Reason>,
) -> Pool {
    let (busy, confined) = measure_pool(seen, cores, previous, reasons);
    Pool { busy, confined }
}

/// What vCPUs of latency-critical guests ran, wherever it was.
pub fn demeter(seen: &Seen<'_>, cores: &Cores, reasons: &mut Vec<Reason>) -> Pool {
    reasons.push(Reason::ByThreads {
        group: Group::Vcpu,
        why: ByThreads::Policy,
    });
    Pool {
        busy: vcpu_run(seen) / cores.width(),
        confined: true,
    }
}

/// Algorithm 2 for a single group: never more than there is.
pub fn alone(total: u32, ask: Ask, margin: f64) -> u32 {
    ask.with_margin(margin).min(total)
}
