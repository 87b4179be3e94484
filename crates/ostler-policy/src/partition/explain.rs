//! The steps of a decision about counts, put into reasons.

use ostler_model::{Group, Reason};

use super::allocate::{self, Ask};

pub fn demand(group: Group, ask: Ask, reasons: &mut Vec<Reason>) {
    reasons.push(Reason::Demand {
        group,
        busy_cores: ask.busy,
        threshold: ask.threshold,
        required: ask.required(),
    });
}

pub fn energy(energy: &allocate::Energy, total: u32, margin: f64, reasons: &mut Vec<Reason>) {
    if energy.contended {
        reasons.push(Reason::Contended {
            required: f64::from(energy.bare.vcpu) + f64::from(energy.bare.nq),
            available: total,
        });
        return;
    }
    for (group, bare, next, given_up) in [
        (
            Group::Vcpu,
            energy.bare.vcpu,
            energy.next.vcpu,
            energy.given_up.vcpu,
        ),
        (
            Group::Nq,
            energy.bare.nq,
            energy.next.nq,
            energy.given_up.nq,
        ),
    ] {
        kept(group, bare, next, margin, reasons);
        if given_up > 0 {
            reasons.push(Reason::MarginGivenUp {
                group,
                cores: given_up,
            });
        }
    }
}

pub fn kept(group: Group, bare: u32, next: u32, margin: f64, reasons: &mut Vec<Reason>) {
    if next > bare {
        reasons.push(Reason::KeptByMargin {
            group,
            cores: next,
            bare,
            margin,
        });
    }
}

pub fn change(group: Group, from: u32, to: u32, reasons: &mut Vec<Reason>) {
    reasons.push(match from.cmp(&to) {
        std::cmp::Ordering::Less => Reason::Grow { group, from, to },
        std::cmp::Ordering::Greater => Reason::Shrink { group, from, to },
        std::cmp::Ordering::Equal => Reason::Hold { group, cores: to },
    });
}
