//! One budget for the files of many guests.
//!
//! Everybody has a least size first, in the order in which they are told (the steward's: by class, then by age), as long as there is any. What is left goes to wishes as water fills
//! vessels: all rise together, and one that has what it wished for rises no more. So nobody has more than another who still wants some, but for what was its least.

/// What a guest is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Before anybody has more.
    pub least: u64,
    /// What it would have; no less than `least` counts.
    pub bytes: u64,
}

/// Divides a budget; grants by guest into `grants`, whose sum is the budget at the most.
pub fn share(budget: u64, wishes: &[Wish], grants: &mut Vec<u64>) {
    grants.clear();
    let mut left = budget;
    for wish in wishes {
        let grant = wish.least.min(wish.bytes.max(wish.least)).min(left);
        left -= grant;
        grants.push(grant);
    }
    // The level to which all rise: the highest for which there is enough. It is looked for by halves until no vessel between the two ends begins to rise or is full, and from there it is a division.
    let want = |at: usize, level: u64, grants: &[u64]| {
        level.min(wishes[at].bytes).saturating_sub(grants[at])
    };
    let sum = |level: u64, grants: &[u64]| {
        let wanted = (0..wishes.len()).map(|at| want(at, level, grants));
        wanted.fold(0_u64, u64::saturating_add)
    };
    let (mut low, mut high) = (0, wishes.iter().map(|wish| wish.bytes).max().unwrap_or(0));
    if sum(high, grants) <= left {
        low = high;
    }
    while high - low > 1 {
        if let Some(rising) = rising(wishes, grants, low, high) {
            // There isn't enough for `high`, so somebody rises.
            low += (left - sum(low, grants)) / rising.max(1);
            break;
        }
        let middle = low + (high - low) / 2;
        if sum(middle, grants) <= left {
            low = middle;
        } else {
            high = middle;
        }
    }
    for at in 0..wishes.len() {
        let more = want(at, low, grants);
        grants[at] += more;
        left -= more;
    }
    // Fewer bytes than guests are left over: they are the first ones' of those that would rise.
    for (wish, grant) in wishes.iter().zip(grants) {
        if left > 0 && *grant == low && *grant < wish.bytes {
            *grant += 1;
            left -= 1;
        }
    }
}

/// How many vessels rise all the way from one level to another, if none of the others rises on a part of it.
fn rising(wishes: &[Wish], grants: &[u64], low: u64, high: u64) -> Option<u64> {
    let mut rising = 0;
    for (wish, &grant) in wishes.iter().zip(grants) {
        if wish.bytes <= grant || high <= grant || wish.bytes <= low {
            continue;
        }
        if low < grant || wish.bytes < high {
            return None;
        }
        rising += 1;
    }
    Some(rising)
}
