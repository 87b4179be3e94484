//! What must hold whenever nobody accesses anything, by what the caches hold alone.

use std::collections::{BTreeMap, BTreeSet};

use ostler_machine_memory::contents::{Contents, Lines};
use ostler_machine_memory::{Policy, State};

/// Who has a line.
#[derive(Default)]
struct Holders {
    cores: Vec<(usize, State)>,
    groups: Vec<(usize, State)>,
}

/// Everything that is wrong, in words.
pub fn check(all: &Contents, node_of: impl Fn(u64) -> Option<usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut lines: BTreeMap<u64, Holders> = BTreeMap::new();
    for (at, core) in all.cores.iter().enumerate() {
        let l2 = unique(&core.l2, &format!("L2 of core {at}"), &mut wrong);
        let l1d = unique(&core.l1d, &format!("L1D of core {at}"), &mut wrong);
        let l1i = unique(&core.l1i, &format!("L1I of core {at}"), &mut wrong);
        for (line, state) in l1d.iter().chain(&l1i) {
            match l2.get(line) {
                None => wrong.push(format!("core {at}: an L1 has {line:#x} and L2 hasn't")),
                Some(State::Shared) if *state > State::Shared => {
                    wrong.push(format!(
                        "core {at}: {line:#x} is {state:?} in L1 and shared in L2"
                    ));
                }
                Some(_) => {}
            }
        }
        for (line, state) in &l1i {
            let beside = l1d.get(line).is_some_and(|data| *data > State::Shared);
            if *state > State::Shared || beside {
                wrong.push(format!("core {at}: {line:#x} is code and writable"));
            }
        }
        for (line, state) in l2 {
            let most = l1d.get(&line).map_or(state, |data| state.max(*data));
            lines.entry(line).or_default().cores.push((at, most));
        }
    }
    for (at, group) in all.groups.iter().enumerate() {
        for (line, state) in unique(&group.l3, &format!("L3 of group {at}"), &mut wrong) {
            if state == State::Exclusive {
                wrong.push(format!("group {at}: {line:#x} is exclusive in L3"));
            }
            lines.entry(line).or_default().groups.push((at, state));
        }
    }
    for (line, holders) in &lines {
        one_line(*line, holders, all, &mut wrong);
    }
    directory(&lines, all, &mut wrong);
    for line in lines.keys() {
        match node_of(line * 64) {
            None => wrong.push(format!("{line:#x} is cached and in no node")),
            Some(node) => {
                if all.filters[node]
                    .as_ref()
                    .is_some_and(|filter| !filter.contains(line))
                {
                    wrong.push(format!(
                        "{line:#x} is cached, and node {node}'s filter doesn't know"
                    ));
                }
            }
        }
    }
    wrong
}

fn unique(lines: &Lines, what: &str, wrong: &mut Vec<String>) -> BTreeMap<u64, State> {
    let all: BTreeMap<u64, State> = lines.iter().copied().collect();
    if all.len() != lines.len() {
        wrong.push(format!("{what} has a line twice"));
    }
    all
}

/// Single writer or many readers, no stale copy, and what each L3 is to hold.
fn one_line(line: u64, holders: &Holders, all: &Contents, wrong: &mut Vec<String>) {
    let group_of = |core: usize| all.cores[core].group;
    let owner = holders
        .cores
        .iter()
        .find(|(_, state)| *state > State::Shared);
    if let Some((owner, state)) = owner {
        if holders.cores.len() > 1 {
            wrong.push(format!(
                "{line:#x}: core {owner} has it {state:?}, and others have it"
            ));
        }
        for (group, _) in &holders.groups {
            if *group != group_of(*owner) {
                wrong.push(format!(
                    "{line:#x}: core {owner} has it {state:?}, group {group} has it"
                ));
            }
            if all.groups[*group].policy == Some(Policy::Victim) {
                wrong.push(format!(
                    "{line:#x}: core {owner} has it for itself, and so has its victim L3"
                ));
            }
        }
    }
    for (group, state) in &holders.groups {
        let foreign = holders
            .cores
            .iter()
            .any(|(core, _)| group_of(*core) != *group);
        if *state == State::Modified && (holders.groups.len() > 1 || foreign) {
            wrong.push(format!(
                "{line:#x}: modified in group {group}'s L3, and others have it"
            ));
        }
    }
    for (core, _) in &holders.cores {
        let group = group_of(*core);
        let there = holders.groups.iter().any(|(other, _)| *other == group);
        if all.groups[group].policy == Some(Policy::Inclusive) && !there {
            wrong.push(format!(
                "{line:#x}: core {core} has it, and its inclusive L3 hasn't"
            ));
        }
    }
}

/// The directory knows every holder, and nobody else.
fn directory(lines: &BTreeMap<u64, Holders>, all: &Contents, wrong: &mut Vec<String>) {
    let bits = |held: &[(usize, State)]| held.iter().fold(0_u64, |all, (at, _)| all | 1 << at);
    let mut known = BTreeSet::new();
    for (line, entry) in &all.directory {
        if !known.insert(*line) {
            wrong.push(format!("the directory has {line:#x} twice"));
        }
        let Some(holders) = lines.get(line) else {
            wrong.push(format!("the directory has {line:#x}, and nobody has it"));
            continue;
        };
        let exclusive = holders
            .cores
            .iter()
            .any(|(_, state)| *state > State::Shared);
        if (entry.cores, entry.groups, entry.exclusive)
            != (bits(&holders.cores), bits(&holders.groups), exclusive)
        {
            wrong.push(format!("the directory is wrong about {line:#x}: {entry:?}"));
        }
    }
    for line in lines.keys().filter(|line| !known.contains(line)) {
        wrong.push(format!("the directory doesn't know of {line:#x}"));
    }
}
