//! The C against the paper's pseudo-code, told again in Rust without looking at the C's way of doing it.

use ostler_abi::hints::{
    BLOCK_LOAD, BLOCK_TOPOLOGY, GROUPS_MAX, MAGIC, Table, Told, VCPUS_MAX, VERSION,
};
use ostler_hints::{Cores, Map, Rule, Sets, Tree, ask, choose_vcpu, place_task, quota};
use proptest::prelude::*;

fn bit(set: &[u64; 16], at: usize) -> bool {
    set[at / 64] >> (at % 64) & 1 == 1
}

fn set_of(bits: &[bool]) -> [u64; 16] {
    let mut set = [0; 16];
    for (at, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
        set[at / 64] |= 1 << (at % 64);
    }
    set
}

fn known(table: &Table) -> usize {
    let ours = table.header.magic == MAGIC && table.header.version == VERSION;
    let vcpus = table.header.vcpus as usize;
    if ours && vcpus <= VCPUS_MAX { vcpus } else { 0 }
}

fn group_of(table: &Table, vcpu: usize) -> Option<u32> {
    let at = table.vcpu[vcpu].topology;
    let group = *table.topology.get(at.row as usize)?;
    (vcpu < known(table) && at.block == BLOCK_TOPOLOGY && group < 256).then_some(group)
}

fn core_of(table: &Table, vcpu: usize) -> Option<usize> {
    let at = table.vcpu[vcpu].load;
    (at.block == BLOCK_LOAD && usize::from(at.row) < VCPUS_MAX).then_some(at.row.into())
}

/// Whether others leave a vCPU its core, and those of the guest's own vCPUs that have something to run, too.
fn is_free(table: &Table, sets: &Sets, vcpus: usize, vcpu: usize) -> bool {
    let Some(core) = core_of(table, vcpu).filter(|_| vcpu < known(table)) else {
        return false;
    };
    let mut busy = (0..vcpus).filter(|&own| !bit(&sets.idle, own));
    table.load[core] == 0 && busy.all(|own| core_of(table, own) != Some(core))
}

/// What a guest knows of its own vCPUs, counted at once.
fn cores(table: &Table, sets: &Sets, vcpus: u32) -> Cores {
    let mut cores = Cores::default();
    cores.recount(table, sets, vcpus);
    cores
}

/// Section 5.1: look at the vCPU that the task ran on, then traverse the list.
fn paper(
    table: &Table,
    sets: &Sets,
    rule: Rule,
    vcpus: usize,
    prev: usize,
    group: Option<u32>,
) -> Option<u32> {
    let vcpus = vcpus.min(VCPUS_MAX);
    let first = if prev < vcpus { prev } else { 0 };
    (first..vcpus)
        .chain(0..first)
        .find(|&vcpu| {
            let online = !bit(&sets.preempted, vcpu);
            let available = match rule {
                Rule::Hvm => true,
                Rule::Pvm => online,
                Rule::Pload => online || is_free(table, sets, vcpus, vcpu),
            };
            let there = group.is_none() || group == group_of(table, vcpu);
            bit(&sets.allowed, vcpu) && bit(&sets.idle, vcpu) && available && there
        })
        .map(|vcpu| u32::try_from(vcpu).unwrap())
}

/// Tables as a host writes them, and such that somebody else wrote something into.
fn tables() -> impl Strategy<Value = Box<Table>> {
    // Some cores have several vCPUs.
    let core = prop::option::weighted(0.7, 0..100_u16);
    let row = (prop::option::of(0..8_u16), core, prop::bool::weighted(0.7));
    let row = row.prop_map(|(group, core, low)| Told { group, core, low });
    let rows = prop::collection::vec(row, 0..200);
    let damage = prop::collection::vec((0..5_u8, 0..200_usize, any::<u32>()), 0..20);
    (rows, damage).prop_map(|(rows, damage)| {
        let mut table = Table::empty();
        table.tell(8, rows.into_iter()).unwrap();
        for (what, at, word) in damage {
            let [low, high] = [word & 0xffff, word >> 16].map(|half| u16::try_from(half).unwrap());
            match what {
                0 => table.topology[at] = word % 300,
                1 => table.load[at] = word % 3,
                2 => table.vcpu[at].topology.row = low,
                3 => table.vcpu[at].load.row = low,
                _ if high % 4 == 0 => table.header.vcpus = word,
                _ => table.vcpu[at].topology.block = low % 3,
            }
        }
        table
    })
}

fn in_group(group: Option<u16>) -> Told {
    Told {
        group,
        core: None,
        low: true,
    }
}

fn sets() -> impl Strategy<Value = Sets> {
    let some = |share| prop::collection::vec(prop::bool::weighted(share), VCPUS_MAX);
    // Many idle vCPUs, or one here and there, so that the search goes all the way round.
    let idle = prop_oneof![
        some(0.3),
        prop::collection::btree_set(0..200_usize, 0..3)
            .prop_map(|idle| (0..VCPUS_MAX).map(|at| idle.contains(&at)).collect()),
    ];
    let all = any::<[bool; 2]>();
    (some(0.5), idle, some(0.5), all).prop_map(|(allowed, idle, preempted, all)| Sets {
        allowed: if all[0] { [!0; 16] } else { set_of(&allowed) },
        idle: set_of(&idle),
        preempted: if all[1] { [!0; 16] } else { set_of(&preempted) },
    })
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![Just(Rule::Hvm), Just(Rule::Pvm), Just(Rule::Pload)]
}

/// What a vCPU is chosen by, and for a guest of how many from where on.
fn choices() -> impl Strategy<Value = (Box<Table>, Sets, Rule, u32, u32)> {
    let vcpus = prop_oneof![0..300_u32, 1000..1100_u32];
    let prev = prop_oneof![0..300_u32, any::<u32>()];
    (tables(), sets(), rules(), vcpus, prev)
}

proptest! {
    #[test]
    fn a_vcpu_is_chosen_as_the_paper_chooses_it(
        (table, sets, rule, vcpus, prev) in choices(),
        group in prop::option::of(0..8_u32),
    ) {
        prop_assert_eq!(
            choose_vcpu(&table, &sets, &cores(&table, &sets, vcpus), rule, vcpus, prev, group),
            paper(&table, &sets, rule, vcpus as usize, prev as usize, group)
        );
    }

    #[test]
    fn a_task_waits_behind_no_other_while_pload_has_an_idle_vcpu(
        (table, sets, rule, vcpus, prev) in choices(),
    ) {
        let by = |rule| paper(&table, &sets, rule, vcpus as usize, prev as usize, None);
        let wanted = match rule {
            Rule::Pload => by(Rule::Pload).or(by(Rule::Hvm)),
            _ => by(rule),
        };
        prop_assert_eq!(place_task(&table, &sets, &cores(&table, &sets, vcpus), rule, vcpus, prev), wanted);
    }

    #[test]
    fn what_is_counted_as_vcpus_come_and_go_is_what_is_there(
        tables in prop::collection::vec(tables(), 1..4),
        mut sets in sets(),
        turns in prop::collection::vec((0..200_u32, any::<bool>()), 0..200),
    ) {
        let mut counted = cores(&tables[0], &sets, 200);
        for (at, table) in tables.iter().enumerate() {
            // A vCPU leaves where it came, though another table says otherwise by then.
            for (vcpu, idle) in turns.iter().skip(at).step_by(tables.len()) {
                let (word, bit) = (*vcpu as usize / 64, 1 << (vcpu % 64));
                sets.idle[word] = if *idle { sets.idle[word] | bit } else { sets.idle[word] & !bit };
                counted.busy(table, *vcpu, !idle);
            }
            if at == 0 {
                prop_assert_eq!(&counted, &cores(table, &sets, 200));
            }
        }
        for vcpu in 0..200 {
            counted.busy(&tables[0], vcpu, false);
        }
        prop_assert_eq!(&counted, &Cores::default());
    }

    #[test]
    fn a_table_of_noise_is_read_within_its_bounds(seed in any::<u64>(), sets in sets(), prev in any::<u32>()) {
        // What is beyond the table would be seen as a choice that the transcription, which can't read there, doesn't make.
        let mut word = seed | 1;
        let mut noise = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            u32::try_from(word >> 32).unwrap()
        };
        let mut table = Table::empty();
        for row in &mut table.vcpu {
            row.topology.row = u16::try_from(noise() >> 16).unwrap();
            row.load.row = u16::try_from(noise() >> 16).unwrap();
        }
        table.topology.fill_with(&mut noise);
        table.load.fill_with(&mut noise);
        table.header.vcpus = noise() % 1200;
        table.header.groups = noise() % 300;
        table.header.sequence = noise();
        let chosen = choose_vcpu(&table, &sets, &cores(&table, &sets, 1024), Rule::Pload, 1024, prev, None);
        prop_assert_eq!(chosen, paper(&table, &sets, Rule::Pload, 1024, prev as usize, None));
        let mut tree = Tree::default();
        tree.refresh(&table);
        prop_assert_eq!(tree.groups().iter().map(|group| group.vcpus).sum::<u32>(), tree.vcpus());
        let mut pins = [7; VCPUS_MAX];
        ask(&tree, &table, &mut pins);
        prop_assert!(pins.iter().all(|pin| [0, 1, 7].contains(pin)));
    }

    #[test]
    fn the_quota_is_the_papers(n in 0..2000_u32, threads in 0..5000_u32, vcpus in 1..2000_u32) {
        // The least whole number that is neither below n nor below threads / vcpus * n.
        let of = [n, threads, vcpus];
        let [n, threads, vcpus] = [n, threads, vcpus].map(u64::from);
        let quota = quota(of[0], of[1], of[2]);
        let enough = |quota: u64| quota >= n && quota * vcpus >= threads * n;
        prop_assert!(enough(quota) && (quota == 0 || !enough(quota - 1)));
    }
}

/// What a guest does with its threads.
#[derive(Clone, Debug)]
enum Step {
    Starts(usize),
    Ends(usize),
    Places(usize),
    Rogue(usize, u32, u32),
    Host(Vec<Option<u16>>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let table = || prop::collection::vec(prop::option::weighted(0.9, 0..6_u16), 1..24);
    let step = prop_oneof![
        5 => (0..3_usize).prop_map(Step::Starts),
        2 => any::<usize>().prop_map(Step::Ends),
        3 => any::<usize>().prop_map(Step::Places),
        1 => (0..3_usize, any::<u32>(), any::<u32>()).prop_map(|(m, a, b)| Step::Rogue(m, a | 256, b)),
        1 => table().prop_map(Step::Host),
    ];
    (table(), prop::collection::vec(step, 0..120)).prop_map(|(first, mut steps)| {
        steps.insert(0, Step::Host(first));
        steps
    })
}

/// Section 5.2, by floats and by sorting: most threads of the group below the quota by totals, then fewest threads to a vCPU, then where it is.
fn paper_group(
    vcpus: &[u32],
    threads: &[(usize, u32)],
    maps: usize,
    me: Option<u32>,
) -> Option<u32> {
    let all: u32 = vcpus.iter().sum();
    let total = u32::try_from(threads.len()).unwrap() + u32::from(me.is_none());
    let mut best: Vec<(i64, f64, bool, usize)> = Vec::new();
    for (group, &n) in vcpus.iter().enumerate().filter(|(_, n)| **n > 0) {
        let here = me == u32::try_from(group).ok();
        let count = |of: Option<usize>| {
            let all = threads
                .iter()
                .filter(|(map, at)| *at as usize == group && of.is_none_or(|of| of == *map));
            all.count() - usize::from(here)
        };
        let quota = f64::from(n).max((f64::from(total * n) / f64::from(all)).ceil());
        if (count(None) as f64) < quota {
            let mine = i64::try_from(count(Some(maps))).unwrap();
            best.push((-mine, count(None) as f64 / f64::from(n), !here, group));
        }
    }
    best.sort_by(|a, b| a.partial_cmp(b).unwrap());
    best.first().map(|best| u32::try_from(best.3).unwrap())
}

proptest! {
    #[test]
    fn threads_go_where_the_paper_sends_them_and_totals_are_sums(steps in steps()) {
        let mut table = Table::empty();
        let mut tree = Tree::default();
        let mut maps = vec![Map::default(); 3];
        // Which map's, and where.
        let mut threads: Vec<(usize, u32)> = Vec::new();
        let mut vcpus = [0_u32; 6];
        for step in steps {
            match step {
                Step::Host(groups) => {
                    vcpus = [0; 6];
                    for group in groups.iter().flatten() {
                        vcpus[*group as usize] += 1;
                    }
                    table.tell(8, groups.iter().map(|group| in_group(*group))).unwrap();
                    prop_assert!(tree.refresh(&table));
                    prop_assert!(!tree.refresh(&table));
                }
                Step::Starts(map) => {
                    let to = tree.choose(&maps[map], None);
                    prop_assert_eq!(to, paper_group(&vcpus, &threads, map, None));
                    // There is always room, where there are vCPUs.
                    prop_assert_eq!(to.is_some(), vcpus.iter().sum::<u32>() > 0);
                    if let Some(to) = to {
                        prop_assert!(tree.moves(&mut maps[map], None, Some(to)));
                        threads.push((map, to));
                        within(&tree, to)?;
                    }
                }
                Step::Ends(_) | Step::Places(_) if threads.is_empty() => {}
                Step::Ends(which) => {
                    let (map, from) = threads.swap_remove(which % threads.len());
                    prop_assert!(tree.moves(&mut maps[map], Some(from), None));
                }
                Step::Places(which) => {
                    let at = which % threads.len();
                    let (map, from) = threads[at];
                    let to = tree.choose(&maps[map], Some(from));
                    prop_assert_eq!(to, paper_group(&vcpus, &threads, map, Some(from)));
                    if let Some(to) = to {
                        prop_assert!(tree.moves(&mut maps[map], Some(from), Some(to)));
                        threads[at].1 = to;
                        within(&tree, to)?;
                        // It stays there: nothing else has changed.
                        prop_assert_eq!(tree.choose(&maps[map], Some(to)), Some(to));
                    }
                }
                Step::Rogue(map, from, to) => {
                    prop_assert!(!tree.moves(&mut maps[map], Some(from), Some(to)) || from == u32::MAX);
                }
            }
            prop_assert_eq!(tree.threads() as usize, threads.len());
            for group in 0..GROUPS_MAX {
                let of = |map: Option<usize>| threads.iter().filter(|(m, at)| {
                    *at as usize == group && map.is_none_or(|map| map == *m)
                }).count();
                prop_assert_eq!(tree.groups()[group].threads as usize, of(None));
                prop_assert_eq!(tree.groups()[group].vcpus, vcpus.get(group).copied().unwrap_or(0));
                for (at, map) in maps.iter().enumerate() {
                    prop_assert_eq!(map.threads()[group] as usize, of(Some(at)));
                }
            }
        }
    }
}

fn within(tree: &Tree, group: u32) -> Result<(), TestCaseError> {
    let held = tree.groups()[group as usize];
    let quota = quota(held.vcpus, tree.threads(), tree.vcpus());
    prop_assert!(u64::from(held.threads) <= quota);
    Ok(())
}

#[test]
fn the_papers_example_brings_the_second_thread_to_the_first() {
    // Figure 6: three vCPUs, two of them in vCG-0, whose quota is 2 for two threads.
    let mut table = Table::empty();
    table
        .tell(2, [Some(0), Some(1), Some(0)].into_iter().map(in_group))
        .unwrap();
    let (mut tree, mut map) = (Tree::default(), Map::default());
    tree.refresh(&table);
    assert_eq!(quota(2, 2, 3), 2);
    tree.moves(&mut map, None, Some(0));
    assert_eq!(tree.choose(&map, None), Some(0));
    tree.moves(&mut map, None, Some(0));
    assert!(tree.is_full(0));
    let mut pins = [0; VCPUS_MAX];
    ask(&tree, &table, &mut pins);
    assert_eq!(pins[..4], [1, 0, 1, 0]);
}

#[test]
fn two_groups_of_threads_dont_pile_on_one_cache_group() {
    let mut table = Table::empty();
    table
        .tell(4, (0..8).map(|vcpu| in_group(Some(vcpu / 4))))
        .unwrap();
    let mut tree = Tree::default();
    tree.refresh(&table);
    let mut maps = [Map::default(), Map::default()];
    for round in 0..8 {
        let map = &mut maps[round % 2];
        let to = tree.choose(map, None);
        assert!(tree.moves(map, None, to));
    }
    assert_eq!(maps[0].threads()[..2], [4, 0]);
    assert_eq!(maps[1].threads()[..2], [0, 4]);
}

#[test]
fn what_the_host_is_writing_isnt_counted() {
    let mut table = Table::empty();
    let mut tree = Tree::default();
    assert!(!tree.refresh(&table));
    table.tell(1, [in_group(Some(0))].into_iter()).unwrap();
    table.header.sequence += 1;
    assert!(!tree.refresh(&table));
    assert_eq!(tree.vcpus(), 0);
}
