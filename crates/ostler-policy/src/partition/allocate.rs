//! How many cores: Algorithms 1 and 2 of the paper, on numbers alone.
//!
//! Where the paper leaves a case open, or its text lets a plan go wrong, this is what is done here:
//!
//! - **Rounding.** Algorithm 1 rounds both shares; at exactly a half both round up and their sum exceeds `TotalCore`. Here
//!   `NextCore_NQ` is what `NextCore_vCPU` leaves, and both keep at least one core (`the_sum_is_total`).
//! - **A shrinking group never grows.** Line 10 of Algorithm 2 gives `ceil(MARGIN * TotalUtil / Th)` to a group that needs less
//!   than it has. For large groups that can exceed even what it has: 21 cores with a need of 20 would become 22. The
//!   margin is there to keep cores, so it keeps at most those that are there.
//! - **The margin yields.** With the margin on top, the groups' sum can exceed `TotalCore` although bare demand does not. What
//!   the margin added is then given up, from the network queues first.
//! - **No demand at all.** Algorithm 1 divides by `ReqCore_total`. When that is below [`QUIET`], the shares are a ratio of noise,
//!   and an idle host would shuffle cores every period: the split stays as it was.
//! - **Noise.** Algorithm 1 takes the ratio of two demands of 100 ms. Where demand is small against what is there, the ratio swings with
//!   each request, and all cores with it. [`steady_performance`] is Algorithm 1 on average demand, with a dead band around each half, and
//!   with the peaks of demand as what a group is never denied.
//! - **Rounding errors.** 2.1 / 0.7 is a little above 3 in binary; a quotient within [`EPSILON`] of a whole number is that number.

/// How far beyond a half a share must be to be rounded the other way than it was: see [`steady_performance`].
pub const DEADBAND: f64 = 0.25;
/// The share of its cores' time from which on a group counts as used up. Averages only come near 1.
const USED_UP: f64 = 0.99;

/// Below this demand of all groups together, in cores, proportions are noise: any split serves it.
pub const QUIET: f64 = 1.0;

/// How far above a whole number a quotient may be and still count as that number.
pub const EPSILON: f64 = 1e-9;

/// Cores for each group (`NextCore`, `PrevCore`), in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// For vCPUs.
    pub vcpu: u32,
    /// For network queues.
    pub nq: u32,
}

impl Split {
    /// Both together.
    pub fn sum(self) -> u32 {
        self.vcpu + self.nq
    }
}

/// What a group asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Cores' time that it used (`TotalUtil`).
    pub busy: f64,
    /// The share of a core's time that it may use (`Th`).
    pub threshold: f64,
    /// Cores that it has (`PrevCore`).
    pub previous: u32,
}

impl Ask {
    /// What it needs, in cores and parts of cores (`ReqCore` of Algorithm 1).
    pub fn required(self) -> f64 {
        self.busy / self.threshold
    }

    /// Whether it had no more to give: what it needs is then not known.
    fn used_up(self) -> bool {
        self.previous > 0 && self.busy >= USED_UP * f64::from(self.previous)
    }

    /// What it needs in whole cores, at least one (`ReqCore` of Algorithm 2).
    pub fn bare(self) -> u32 {
        ceil(self.required()).max(1)
    }

    /// What it gets where cores abound: bare demand when it grows, and when it shrinks, demand with the margin.
    pub fn with_margin(self, margin: f64) -> u32 {
        let bare = self.bare();
        if self.previous > bare {
            ceil(margin.max(1.0) * self.required()).clamp(bare, self.previous)
        } else {
            bare
        }
    }
}

/// What Algorithm 2 came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Energy {
    /// Cores for each group.
    pub next: Split,
    /// Bare demand (`ReqCore`).
    pub bare: Split,
    /// What the margin would have kept but for want of cores.
    pub given_up: Split,
    /// Whether bare demand exceeded what there is.
    pub contended: bool,
}

/// Lines 5 and 6 of Algorithm 1: `total` cores in proportion to two demands, at least one each. Demands of nothing split evenly.
///
/// `total` is at least 2; with less there is nothing to divide.
pub fn proportional(total: u32, vcpu: f64, nq: f64) -> Split {
    let required = vcpu + nq;
    let share = if required > 0.0 {
        f64::from(total) * vcpu / required
    } else {
        f64::from(total) / 2.0
    };
    let vcpu = whole(share.round()).clamp(1, total.max(2) - 1);
    Split {
        vcpu,
        nq: total.saturating_sub(vcpu),
    }
}

/// Algorithm 1 (vSPACE-P). `Err` is the split of a host too quiet to measure: that of before, stretched to `total`; an even one where a group had no cores
/// before, as when the guests have just come: that says nothing of what it wants.
pub fn performance(total: u32, vcpu: Ask, nq: Ask) -> Result<Split, Split> {
    let previous = Split {
        vcpu: vcpu.previous,
        nq: nq.previous,
    };
    if vcpu.required() + nq.required() >= QUIET {
        Ok(proportional(total, vcpu.required(), nq.required()))
    } else if previous.vcpu > 0 && previous.nq > 0 && previous.sum() == total {
        Err(previous)
    } else if previous.vcpu > 0 && previous.nq > 0 {
        Err(proportional(
            total,
            f64::from(previous.vcpu),
            f64::from(previous.nq),
        ))
    } else {
        Err(proportional(total, 0.0, 0.0))
    }
}

/// Algorithm 1 for noisy demands: proportions by the `mean`s of both groups, which only change what a share is rounded to when it passed
/// the half by [`DEADBAND`]; and no group below what its `peak` asks for, as far as both find room. `Err` as in [`performance`].
///
/// Peaks would not do for the proportions: those of two groups are of different moments, and their ratio is of none. Nor would
/// averages do alone: they learn of a burst when it is over.
///
/// Where both groups are used up the split stays, too. How busy they are says then how many cores they have, and nothing of how many they
/// want; Algorithm 1 would let the ratio of the thresholds move cores, period by period, until one group has none.
pub fn steady_performance(total: u32, mean: (Ask, Ask), peak: (Ask, Ask)) -> Result<Split, Split> {
    let split = performance(total, mean.0, mean.1);
    let (Ok(wish) | Err(wish)) = split;
    let (vcpu, nq) = (mean.0.previous, mean.1.previous);
    let required = mean.0.required() + mean.1.required();
    let share = f64::from(total) * mean.0.required() / required;
    let used_up = mean.0.used_up() && mean.1.used_up();
    let stays = vcpu > 0
        && nq > 0
        && vcpu + nq == total
        && (used_up || (share - f64::from(vcpu)).abs() <= 0.5 + DEADBAND);
    let vcpu = if stays { vcpu } else { wish.vcpu };
    let (least, most) = (peak.0.bare(), total.saturating_sub(peak.1.bare()));
    let vcpu = if least <= most {
        vcpu.clamp(least, most)
    } else {
        vcpu
    };
    let next = Split {
        vcpu,
        nq: total.saturating_sub(vcpu),
    };
    split.map(|_| next).map_err(|_| next)
}

/// Algorithm 2 (vSPACE-E).
pub fn energy(total: u32, vcpu: Ask, nq: Ask, margin: f64) -> Energy {
    let bare = Split {
        vcpu: vcpu.bare(),
        nq: nq.bare(),
    };
    if bare.vcpu.saturating_add(bare.nq) > total {
        return Energy {
            next: proportional(total, f64::from(bare.vcpu), f64::from(bare.nq)),
            bare,
            given_up: Split::default(),
            contended: true,
        };
    }
    let wish = Split {
        vcpu: vcpu.with_margin(margin),
        nq: nq.with_margin(margin),
    };
    let excess = wish.vcpu.saturating_add(wish.nq).saturating_sub(total);
    let from_nq = excess.min(wish.nq - bare.nq);
    let from_vcpu = excess - from_nq;
    Energy {
        next: Split {
            vcpu: wish.vcpu - from_vcpu,
            nq: wish.nq - from_nq,
        },
        bare,
        given_up: Split {
            vcpu: from_vcpu,
            nq: from_nq,
        },
        contended: false,
    }
}

/// The smallest whole number of cores that is not below `x`.
pub fn ceil(x: f64) -> u32 {
    whole((x - EPSILON).ceil())
}

/// A whole number as a count: negative ones and NaN are none, too large ones the largest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is what is wanted"
)]
pub fn whole(x: f64) -> u32 {
    x as u32
}
