//! How much of each guest's memory is to be local (thesis, section 5.4.2).
//!
//! Local memory is poured from the top of a line of claims to its end; each takes what it asks for, as long as there is any:
//!
//! ```text
//! floors > files' leasts > guests that press, IO first > files' wishes > other guests
//!
//! within a class of guests:  what they have  >  what they lack          priority, then latency-critical, then who came first
//! when all press:            what all have   >  what they lack          the peak rule
//! ```
//!
//! "What they have before what they lack" makes that nobody is moved for another of the same class. A guest that came first and has far memory gets what nobody has, or what a lower class has; it doesn't
//! drive out an equal that came later. Under [`Order::Fifo`], the thesis' own, it does, and at the peak all stays as it is.
//!
//! Somebody has to make room for the host's reserve, for guests of a higher class and for files. Within a class that is a best-effort guest before a latency-critical one: who has come and does nothing yet looks like
//! who never will, and what the operator said of them is all there is to tell them apart.
//!
//! A tenant's floor is of all its guests together: what they have counts first, then it is filled up in the order of the line.

use ostler_model::{Bytes, LocalShares, MemoryClass, Nanos};

/// Who goes first within a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Who has local memory keeps it; who came first has what nobody has.
    #[default]
    Keep,
    /// Who came first (the thesis).
    Fifo,
}

/// What a guest has, and by what it has more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// How it uses its memory.
    pub class: MemoryClass,
    /// It goes before others of its class.
    pub priority: bool,
    /// Somebody waits for it; it goes before best-effort guests of its class.
    pub critical: bool,
    /// When it came.
    pub came: Nanos,
    /// All its memory.
    pub bytes: u64,
    /// What of it is local.
    pub local: u64,
    /// What is local whatever others need.
    pub floor: u64,
    /// By place among the tenants.
    pub tenant: Option<usize>,
}

/// What guests' files have and want of local memory, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// What they have.
    pub held: u64,
    /// What they are to have before anybody presses.
    pub least: u64,
    /// What they wish for, the leasts included.
    pub wish: u64,
}

/// Who is to have what. Buffers: what is in them before is of no consequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// What of each guest's memory is to be local, by claim.
    pub local: Vec<u64>,
    /// What of that is by floors.
    pub floors: Vec<u64>,
    /// What guests' files are to have.
    pub files: u64,
    /// Claims from the first in the line to the last.
    pub line: Vec<usize>,
    /// Guests from the first to that place press.
    pub pressing: usize,
    /// All do: nobody is moved for another.
    pub all_press: bool,
    /// What went to whom.
    pub shares: LocalShares,
    tenants: Vec<u64>,
    /// Claims by class, priority, whether somebody waits, when they came and place, as one number each.
    ranks: Vec<u128>,
}

impl Targets {
    /// Gives out so much local memory, what guests and their files have now included.
    ///
    /// A tenant's floor is by its place; a claim of a tenant that isn't there has none.
    pub fn pour(
        &mut self,
        bytes: u64,
        claims: &[Claim],
        tenants: &[u64],
        files: Files,
        order: Order,
    ) {
        // Most of the time the line is as it was.
        let mut last = None;
        let stands = self.line.len() == claims.len()
            && self.line.iter().all(|&at| {
                let here = claims.get(at).map(|claim| rank(claim, at));
                here.is_some() && std::mem::replace(&mut last, here) < here
            });
        if !stands {
            self.ranks.clear();
            let ranks = claims.iter().enumerate();
            self.ranks.extend(ranks.map(|(at, claim)| rank(claim, at)));
            self.ranks.sort_unstable();
            self.line.clear();
            self.line.extend(self.ranks.iter().map(place));
        }
        let presses = |at: &&usize| claims[**at].class != MemoryClass::Rest;
        self.pressing = self.line.iter().take_while(presses).count();
        self.all_press = !claims.is_empty() && self.pressing == claims.len();
        self.local.clear();
        self.local.resize(claims.len(), 0);
        let mut left = bytes;
        self.floors(&mut left, claims, tenants);
        let floors = self.floors.iter();
        let floors = floors.fold(0_u64, |sum, floor| sum.saturating_add(*floor));
        self.files = files.least.min(files.wish).min(left);
        left -= self.files;
        let leasts = self.files;

        let (before, pressing) = (left, self.pressing);
        if self.all_press {
            self.keep(&mut left, claims, 0..pressing);
            // Files aren't guests that press, but what they have isn't anybody's to take either.
            let kept = files.wish.min(files.held).saturating_sub(self.files);
            let kept = kept.min(left);
            self.files += kept;
            left -= kept;
            if order == Order::Keep {
                self.fill(&mut left, claims, 0..pressing);
            }
        } else {
            let io = |at: &&usize| claims[**at].class == MemoryClass::IoAndMemory;
            let io = self.line.iter().take_while(io).count();
            for class in [0..io, io..pressing] {
                if order == Order::Keep {
                    self.keep(&mut left, claims, class.clone());
                }
                self.fill(&mut left, claims, class);
            }
        }
        let taken = before - left - (self.files - leasts);
        let more = files.wish.saturating_sub(self.files).min(left);
        self.files += more;
        left -= more;
        let wishes = self.files - leasts;
        let before = left;
        let rest = pressing..claims.len();
        if order == Order::Keep {
            self.keep(&mut left, claims, rest.clone());
        }
        self.fill(&mut left, claims, rest);
        self.shares = LocalShares {
            floors: Bytes(floors),
            leasts: Bytes(leasts),
            pressing: Bytes(taken),
            wishes: Bytes(wishes),
            rest: Bytes(before - left),
        };
    }

    /// Floors, of guests and then of tenants; what they have of that already isn't anybody's to take, not even where there is less than that in all.
    fn floors(&mut self, left: &mut u64, claims: &[Claim], tenants: &[u64]) {
        self.tenants.clear();
        self.tenants.extend_from_slice(tenants);
        // Most hosts have none.
        let any = [
            claims.iter().any(|claim| claim.floor > 0),
            !tenants.is_empty(),
        ];
        for kept in [true, false] {
            for tenants in [false, true] {
                if !any[usize::from(tenants)] {
                    continue;
                }
                for &at in &self.line {
                    let claim = &claims[at];
                    let mut tenant = claim.tenant.and_then(|at| self.tenants.get_mut(at));
                    let has = if kept {
                        claim.local.min(claim.bytes)
                    } else {
                        claim.bytes
                    };
                    let more = match (tenants, &tenant) {
                        (false, _) => claim.floor.min(has).saturating_sub(self.local[at]),
                        (true, Some(floor)) => has.saturating_sub(self.local[at]).min(**floor),
                        (true, None) => 0,
                    };
                    let more = if kept { more } else { more.min(*left) };
                    self.local[at] += more;
                    *left = left.saturating_sub(more);
                    if let Some(floor) = &mut tenant {
                        **floor = floor.saturating_sub(more);
                    }
                }
            }
        }
        self.floors.clone_from(&self.local);
    }

    /// Has some of the line keep what they have.
    fn keep(&mut self, left: &mut u64, claims: &[Claim], part: std::ops::Range<usize>) {
        for &at in &self.line[part] {
            let kept = claims[at].local.min(claims[at].bytes);
            give(&mut self.local[at], kept, left);
        }
    }

    /// Gives some of the line all that they are.
    fn fill(&mut self, left: &mut u64, claims: &[Claim], part: std::ops::Range<usize>) {
        for &at in &self.line[part] {
            give(&mut self.local[at], claims[at].bytes, left);
        }
    }
}

/// Where a claim stands in the line: the lower, the further to the front. By all that there is, so that equals have an order, too.
fn rank(claim: &Claim, at: usize) -> u128 {
    let class = (claim.class as u128) << 1 | u128::from(!claim.priority);
    let class = class << 1 | u128::from(!claim.critical);
    class << 96 | u128::from(claim.came.0) << 32 | (at as u128 & 0xffff_ffff)
}

/// Whose rank it is.
fn place(rank: &u128) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lowest bits are the place"
    )]
    let at = *rank as u32;
    at as usize
}

fn give(has: &mut u64, upto: u64, left: &mut u64) {
    let more = upto.saturating_sub(*has).min(*left);
    *has += more;
    *left -= more;
}
