//! Shares of local memory against what they promise: the line, hysteresis, floors, and moves that are bounded, fit, and end.

use std::collections::BTreeSet;

use ostler_model::{Bytes, MemoryClass, MemoryRange, Nanos, NodeId, RangeView};
use ostler_policy::tier::baselines::{HEATS, Pages, Watermarks, balloons, pages, split};
use ostler_policy::tier::class::{Thresholds, Use, Watch};
use ostler_policy::tier::moves::{self, GRAIN, Guests, Host, Mover, Node, Settings};
use ostler_policy::tier::proportion::{Claim, Files, Order, Targets};
use ostler_policy::tier::ranges;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

const GIB: u64 = 1 << 30;

fn class() -> impl Strategy<Value = MemoryClass> {
    select(vec![
        MemoryClass::IoAndMemory,
        MemoryClass::Memory,
        MemoryClass::Rest,
    ])
}

fn claim() -> impl Strategy<Value = Claim> {
    (
        class(),
        (proptest::bool::weighted(0.2), any::<bool>()),
        0..4_u64,
        0..100_u64,
        0.0..=1.0_f64,
        prop_oneof![3 => Just(0), 1 => 0..60_u64],
        option::of(0..3_usize),
    )
        .prop_map(
            |(class, (priority, critical), came, bytes, local, floor, tenant)| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let local = (bytes as f64 * local) as u64;
                Claim {
                    class,
                    priority,
                    critical,
                    came: Nanos::from_secs(came),
                    bytes,
                    local,
                    floor,
                    tenant,
                }
            },
        )
}

fn files() -> impl Strategy<Value = Files> {
    (0..50_u64, 0..50_u64, 0..50_u64).prop_map(|(held, least, more)| Files {
        held,
        least,
        wish: least + more,
    })
}

fn poured(bytes: u64, claims: &[Claim], tenants: &[u64], files: Files, order: Order) -> Targets {
    let mut targets = Targets::default();
    targets.pour(bytes, claims, tenants, files, order);
    targets
}

/// A guest's rank in the line, before anybody looks at what it has.
fn rank(claims: &[Claim], at: usize) -> (MemoryClass, [bool; 2], Nanos, usize) {
    let claim = &claims[at];
    (
        claim.class,
        [!claim.priority, !claim.critical],
        claim.came,
        at,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No more is given than there is, but that floors which are held already are nobody's to take; and nothing is left while somebody wants some.
    #[test]
    fn what_is_poured_is_all_there_is(
        bytes in 0..1200_u64,
        claims in vec(claim(), 0..14),
        tenants in vec(0..80_u64, 0..3),
        files in files(),
    ) {
        let targets = poured(bytes, &claims, &tenants, files, Order::Keep);
        let sum: u64 = targets.local.iter().sum::<u64>() + targets.files;
        let floors: u64 = targets.floors.iter().sum();
        prop_assert!(sum <= bytes.max(floors));
        let sated = claims.iter().zip(&targets.local).all(|(claim, &local)| local == claim.bytes);
        prop_assert!(sum >= bytes || (sated && targets.files == files.wish));
        let shares = targets.shares;
        let told = [shares.floors, shares.leasts, shares.pressing, shares.wishes, shares.rest];
        prop_assert_eq!(told.iter().map(|share| share.0).sum::<u64>(), sum);
        prop_assert_eq!(shares.leasts.0 + shares.wishes.0, targets.files);
        for (claim, &local) in claims.iter().zip(&targets.local) {
            prop_assert!(local <= claim.bytes);
        }
    }

    /// Whoever lacks some stands behind all who have more than their floors; files' leasts before those who press, files' wishes behind them.
    #[test]
    fn the_line_is_kept(
        bytes in 0..1200_u64,
        claims in vec(claim(), 1..14),
        files in files(),
    ) {
        let targets = poured(bytes, &claims, &[], files, Order::Keep);
        let all_press = claims.iter().all(|claim| claim.class != MemoryClass::Rest);
        prop_assert_eq!(targets.all_press, all_press);
        let beyond = |at: usize| targets.local[at].saturating_sub(targets.floors[at]);
        for a in 0..claims.len() {
            // What it lacks of what it has, or of all it is.
            let loses = targets.local[a] < claims[a].local;
            let lacks = targets.local[a] < claims[a].bytes;
            for b in 0..claims.len() {
                if claims[b].class > claims[a].class {
                    if loses {
                        prop_assert_eq!(beyond(b), 0, "{} loses before {}", a, b);
                    }
                    if lacks && !all_press {
                        prop_assert_eq!(beyond(b), 0, "{} lacks before {}", a, b);
                    }
                }
                // Nobody makes way for an equal, nor at the peak for anybody, but for floors.
                let equal = claims[a].class == claims[b].class || all_press;
                if equal && loses {
                    prop_assert!(targets.local[b] <= claims[b].local.max(targets.floors[b]));
                }
                // Who stands last makes room first.
                if equal && loses && rank(&claims, b) > rank(&claims, a) {
                    prop_assert_eq!(beyond(b), 0, "{} loses before {}", a, b);
                }
                // What nobody has goes to who stands before.
                let gains = targets.local[b] > claims[b].local.max(targets.floors[b]);
                if equal && lacks && gains {
                    prop_assert!(rank(&claims, b) <= rank(&claims, a));
                }
            }
            let presses = claims[a].class != MemoryClass::Rest;
            if targets.files < files.least.min(files.wish) {
                prop_assert_eq!(beyond(a), 0, "files' leasts come first");
            }
            if targets.files < files.wish && !presses {
                prop_assert_eq!(beyond(a), 0, "files' wishes come before those who don't press");
            }
            if presses && lacks && !all_press {
                prop_assert!(targets.files <= files.least, "guests that press come before files' wishes");
            }
        }
    }

    /// Floors, and what tenants have together, are had before anybody has anything else, as far as there is any.
    #[test]
    fn floors_come_first(
        bytes in 0..600_u64,
        claims in vec(claim(), 0..10),
        tenants in vec(0..80_u64, 3),
        files in files(),
        order in select(vec![Order::Keep, Order::Fifo]),
    ) {
        let targets = poured(bytes, &claims, &tenants, files, order);
        let short = targets.floors.iter().sum::<u64>() >= bytes;
        for (at, claim) in claims.iter().enumerate() {
            let floor = claim.floor.min(claim.bytes);
            prop_assert!(short || targets.floors[at] >= floor);
            prop_assert!(targets.local[at] >= floor.min(claim.local), "nobody goes below a floor");
            prop_assert!(targets.local[at] >= targets.floors[at]);
        }
        for (tenant, &floor) in tenants.iter().enumerate() {
            let own = || claims.iter().zip(&targets.local).filter(move |(claim, _)| claim.tenant == Some(tenant));
            let all: u64 = own().map(|(claim, _)| claim.bytes).sum();
            let had: u64 = own().map(|(claim, _)| claim.local).sum();
            let has: u64 = own().map(|(_, local)| local).sum();
            prop_assert!(short || has >= floor.min(all));
            prop_assert!(has >= floor.min(had), "no tenant goes below its floor");
        }
        if short {
            prop_assert_eq!(targets.files, 0);
            prop_assert_eq!(&targets.local, &targets.floors);
        }
    }

    /// The thesis' own: strictly who came first in each class, and at the peak all stays.
    #[test]
    fn fifo_is_the_thesis_own(bytes in 0..1200_u64, claims in vec(claim(), 0..14)) {
        let claims: Vec<Claim> = claims
            .into_iter()
            .map(|claim| Claim { floor: 0, tenant: None, priority: false, critical: false, ..claim })
            .collect();
        let targets = poured(bytes, &claims, &[], Files::default(), Order::Fifo);
        let mut line: Vec<usize> = (0..claims.len()).collect();
        line.sort_by_key(|&at| (claims[at].class, claims[at].came));
        let mut left = bytes;
        for at in line {
            let wants = if targets.all_press { claims[at].local } else { claims[at].bytes };
            let given = wants.min(left);
            left -= given;
            prop_assert_eq!(targets.local[at], given);
        }
    }

    /// In a class as long as anything above its threshold was seen within the hold, whatever wavers: the history says so by itself.
    #[test]
    fn classes_hold(
        history in vec((0..30_u64, option::weighted(0.9, 0.0..2.0_f64), option::of(0..20_u64), option::weighted(0.9, 0.0..2.0_f64)), 1..60),
        hold in 0..60_u64,
    ) {
        let by = Thresholds {
            misses_per_s: 1.0,
            hot_share: 0.5,
            io_per_s: 1.0,
            hold: Nanos(hold),
        };
        let mut watch = Watch::default();
        let mut now = 1000;
        let (mut pressed, mut io) = (Vec::new(), Vec::new());
        let mut left = Vec::new();
        let mut last = None;
        for (pause, misses, hot, interrupts) in history {
            now += pause;
            let seen = Use { misses_per_s: misses, hot, bytes: 20, io_per_s: interrupts };
            let class = watch.class(Nanos(now), &seen, &by);
            let presses = match (misses, hot) {
                (Some(misses), _) => Some(misses >= 1.0),
                (None, hot) => hot.map(|hot| hot >= 10),
            };
            let Some(presses) = presses else {
                prop_assert_eq!(class, None, "nobody knows");
                continue;
            };
            if presses { pressed.push(now); }
            if interrupts.is_some_and(|rate| rate >= 1.0) { io.push(now); }
            let within = |seen: &[u64]| seen.last().is_some_and(|at| now - at <= hold);
            let expected = match (within(&pressed), within(&io)) {
                (true, true) => MemoryClass::IoAndMemory,
                (true, false) => MemoryClass::Memory,
                _ => MemoryClass::Rest,
            };
            prop_assert_eq!(class, Some(expected));
            if last.is_some_and(|last| last != MemoryClass::Rest) && expected == MemoryClass::Rest {
                left.push(now);
            }
            last = Some(expected);
        }
        prop_assert!(left.windows(2).all(|two| two[1] - two[0] > hold), "it left twice within the hold");
    }

    /// Whatever ranges were seen: those picked are of the node, none twice, the hot or the cold ones first, and pieces picked one after the other are what is picked at once.
    #[test]
    fn ranges_are_picked_once(
        gaps in vec((0..40_u64, 0..40_u64, 0..2_u32, any::<bool>()), 0..12),
        cuts in vec(1..60_u64, 1..5),
        hot_first in any::<bool>(),
    ) {
        let mut at = 0;
        let views: Vec<RangeView> = gaps
            .into_iter()
            .map(|(gap, bytes, node, hot)| {
                let start = u64::saturating_sub(at + gap, 5);
                at += gap + bytes;
                RangeView { range: MemoryRange { start, bytes: Bytes(bytes) }, node: NodeId(node), hot }
            })
            .collect();
        let node = NodeId(1);
        let all = ranges::on(&views, node);
        let mut pieces = Vec::new();
        let mut had = 0;
        for cut in &cuts {
            had += ranges::pick(&views, node, hot_first, had, *cut, &mut pieces);
        }
        prop_assert_eq!(had, all.min(cuts.iter().sum()));
        let mut once = Vec::new();
        prop_assert_eq!(ranges::pick(&views, node, hot_first, 0, had, &mut once), had);
        let bytes = |ranges: &[MemoryRange]| -> Vec<u64> {
            ranges.iter().flat_map(|range| range.start..range.start + range.bytes.0).collect()
        };
        prop_assert_eq!(bytes(&pieces), bytes(&once));
        let picked = bytes(&once);
        let set: BTreeSet<u64> = picked.iter().copied().collect();
        prop_assert_eq!(set.len(), picked.len(), "an address twice");
        let holds = |byte: u64| views.iter().find(|view| {
            view.node == node && (view.range.start..view.range.start + view.range.bytes.0).contains(&byte)
        });
        let mut heats = Vec::new();
        for byte in picked {
            let view = holds(byte);
            prop_assert!(view.is_some(), "{byte} is elsewhere");
            heats.push(view.map(|view| view.hot == hot_first));
        }
        prop_assert!(heats.is_sorted_by_key(|first| *first != Some(true)) || views.windows(2).any(|two| two[1].range.start < two[0].range.start + two[0].range.bytes.0));
    }

    #[test]
    fn baselines_make_nothing_up(
        guests in vec((proptest::array::uniform3(0..50_u64), proptest::array::uniform3(0..50_u64)), 0..8),
        (free, far_free, demote, promote, budget) in (0..100_u64, 0..100_u64, 0..60_u64, 0..60_u64, 0..200_u64),
        local in 0..500_u64,
        share in -0.5..1.5_f64,
    ) {
        let mut guests: Vec<Pages> = guests.into_iter().map(|(local, far)| Pages { local, far }).collect();
        let marks = Watermarks { free, far_free, demote, promote, budget };
        let mut shifts = Vec::new();
        pages(&guests, &marks, &mut shifts);
        prop_assert!(shifts.iter().map(|shift| shift.bytes).sum::<u64>() <= budget);
        let mut left = free;
        let demoted = shifts.iter().filter(|shift| !shift.near).map(|shift| shift.bytes).sum::<u64>();
        prop_assert!(demoted <= far_free);
        for shift in shifts {
            let pages = &mut guests[shift.guest];
            let (from, to) = if shift.near {
                (&mut pages.far[shift.heat], &mut pages.local[shift.heat])
            } else {
                (&mut pages.local[shift.heat], &mut pages.far[shift.heat])
            };
            prop_assert!(*from >= shift.bytes);
            *from -= shift.bytes;
            *to += shift.bytes;
            if shift.near {
                prop_assert_eq!(shift.heat, 0);
                left -= shift.bytes;
                prop_assert!(left >= promote);
            } else {
                prop_assert!(shift.heat > 0 && left < demote);
                prop_assert!(guests.iter().all(|pages| pages.local[shift.heat + 1..HEATS].iter().all(|colder| *colder == 0)), "something is colder");
                left += shift.bytes;
            }
        }
        let sizes: Vec<u64> = guests.iter().map(|pages| pages.local.iter().sum::<u64>() + pages.far.iter().sum::<u64>()).collect();
        let mut shares = Vec::new();
        balloons(local, &sizes, &mut shares);
        prop_assert!(shares.iter().sum::<u64>() <= local);
        prop_assert!(shares.iter().zip(&sizes).all(|(share, size)| share <= size));
        for (a, b) in (0..sizes.len()).zip(1..sizes.len()) {
            prop_assert!(sizes[a] > sizes[b] || shares[a] <= shares[b]);
        }
        prop_assert!(split(local, share) <= local);
    }
}

/// A host on which moves are made as they are planned.
#[derive(Clone, Debug)]
struct World {
    nodes: Vec<(bool, u64)>,
    on: Vec<Vec<u64>>,
    claims: Vec<Claim>,
    /// What the host itself uses of the first node.
    host: u64,
}

fn world() -> impl Strategy<Value = World> {
    let guest = (claim(), vec(0..64_u64, 4));
    (vec(0..3_u64, 2), vec(guest, 1..10), vec(any::<bool>(), 2)).prop_map(
        |(spare, guests, tiers)| {
            // Two local nodes and two far ones, in any order; all fits, and there is some room.
            let far = if tiers[0] {
                [false, true, false, true]
            } else {
                [true, false, false, true]
            };
            let on: Vec<Vec<u64>> = guests
                .iter()
                .map(|(_, on)| on.iter().map(|units| units << 25).collect())
                .collect();
            let nodes = (0..4).map(|node| {
                let had: u64 = on.iter().map(|on| on[node]).sum();
                (far[node], had + (spare[node % 2] << 30) + (1 << 28))
            });
            let nodes: Vec<(bool, u64)> = nodes.collect();
            let local = |on: &[u64]| -> u64 {
                on.iter()
                    .zip(&nodes)
                    .filter(|(_, node)| !node.0)
                    .map(|(bytes, _)| bytes)
                    .sum()
            };
            let claims = guests
                .iter()
                .zip(&on)
                .map(|((claim, _), on)| Claim {
                    bytes: on.iter().sum(),
                    local: local(on),
                    floor: claim.floor << 25,
                    tenant: None,
                    ..*claim
                })
                .collect();
            World {
                nodes,
                on,
                claims,
                host: 0,
            }
        },
    )
}

impl World {
    fn free(&self, node: usize) -> u64 {
        let had: u64 = self.on.iter().map(|on| on[node]).sum();
        let host = if node == 0 { self.host } else { 0 };
        (self.nodes[node].1 - had).saturating_sub(host)
    }

    /// Decides and moves; how much, and how many of each guest's bytes came near (or went far, below 0).
    fn step(&mut self, by: &Settings, mover: &mut Mover) -> (u64, Vec<i64>) {
        for (claim, on) in self.claims.iter_mut().zip(&self.on) {
            let local = on.iter().zip(&self.nodes).filter(|(_, node)| !node.0);
            claim.local = local.map(|(bytes, _)| bytes).sum();
        }
        let nodes: Vec<Node> = (0..self.nodes.len())
            .map(|node| Node {
                far: self.nodes[node].0,
                free: self.free(node),
            })
            .collect();
        let free: u64 = nodes
            .iter()
            .filter(|node| !node.far)
            .map(|node| node.free)
            .sum();
        let held: u64 = self.claims.iter().map(|claim| claim.local).sum();
        let mut targets = Targets::default();
        let bytes = (free + held).saturating_sub(by.reserve);
        targets.pour(bytes, &self.claims, &[], Files::default(), Order::Keep);
        let local: Vec<u64> = self.claims.iter().map(|claim| claim.local).collect();
        let on = self.on.concat();
        let host = Host {
            nodes: &nodes,
            distances: &[],
        };
        let guests = Guests {
            on: &on,
            local: &local,
            target: &targets.local,
            floors: &targets.floors,
            line: &targets.line,
            pressing: targets.pressing,
        };
        mover.plan(&host, &guests, moves::Files::default(), by);
        let mut sum = 0;
        let mut changes = vec![0_i64; self.claims.len()];
        for piece in mover.pieces.clone() {
            assert_eq!(piece.bytes % GRAIN, 0);
            assert_ne!(
                self.nodes[piece.from].0, self.nodes[piece.to].0,
                "from one tier to the other"
            );
            assert!(piece.bytes <= self.free(piece.to), "no room");
            assert!(piece.bytes <= self.on[piece.guest][piece.from]);
            self.on[piece.guest][piece.from] -= piece.bytes;
            self.on[piece.guest][piece.to] += piece.bytes;
            sum += piece.bytes;
            let near = !self.nodes[piece.to].0;
            let bytes = i64::try_from(piece.bytes).expect("it is small");
            changes[piece.guest] += if near { bytes } else { -bytes };
            if near {
                let left: u64 = (0..4)
                    .filter(|node| !self.nodes[*node].0)
                    .map(|node| self.free(node))
                    .sum();
                assert!(left >= by.reserve, "the reserve stays free");
            }
        }
        assert!(sum <= by.budget, "{sum} of {}", by.budget);
        for ((claim, change), target) in self.claims.iter().zip(&changes).zip(&targets.local) {
            let after = claim.local.saturating_add_signed(*change);
            assert!(after >= claim.floor.min(claim.local), "below a floor");
            // Towards what is to be, and no further.
            assert!(*change <= 0 || after <= *target);
            assert!(*change >= 0 || after >= *target);
        }
        (sum, changes)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Where demand stays, each byte moves once and then nothing does, though the host's own use wavers by less than a step.
    #[test]
    fn moves_end_and_none_is_taken_back(
        mut world in world(),
        budget in 8..400_u64,
        step in 1..64_u64,
        wavers in vec(0.0..1.0_f64, 60),
        reserve in 0..2_u64,
    ) {
        let by = Settings { budget: budget << 21, step: step << 20, reserve: reserve << 28 };
        let mut mover = Mover::default();
        let mut ways = vec![0_i64; world.claims.len()];
        let mut quiet = 0;
        let all: u64 = world.claims.iter().map(|claim| claim.bytes).sum();
        let periods = 40 + 4 * all / (by.budget / 2).max(GRAIN);
        let mut moved = 0;
        for period in 0..periods {
            let (sum, changes) = world.step(&by, &mut mover);
            moved += sum;
            for (way, change) in ways.iter_mut().zip(&changes) {
                prop_assert!(change.signum() * way.signum() >= 0, "a guest's memory comes back");
                *way += change;
            }
            quiet = if sum == 0 { quiet + 1 } else { 0 };
            if quiet == 1 {
                prop_assert!(moved <= all);
            }
            // Once it is quiet, the host's own use wavers.
            if quiet > 0 && period % 2 == 0 {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let waver = ((by.step - 1) as f64 * wavers[quiet % 60]) as u64;
                world.host = waver.min(world.free(0) + world.host);
            }
        }
        prop_assert!(quiet > 10, "still moving after {periods} periods");
    }

    /// What is decided at once is had in the end: within a step of the shares, or there is no room to move in.
    #[test]
    fn shares_are_reached(mut world in world(), budget in 64..400_u64) {
        let by = Settings { budget: budget << 21, step: 0, reserve: 0 };
        let mut mover = Mover::default();
        for _ in 0..400 {
            if world.step(&by, &mut mover).0 == 0 {
                break;
            }
        }
        world.step(&by, &mut mover);
        let room = |far: bool| -> u64 {
            let nodes = (0..4).filter(|node| world.nodes[*node].0 == far);
            nodes.map(|node| world.free(node)).sum()
        };
        prop_assert_eq!(mover.pieces.len(), 0);
        prop_assert!(mover.left == 0 || room(true).min(room(false)) < 8 * GRAIN, "{} are left to move", mover.left);
    }
}

/// What is needed comes near from the beginning of a period on: never more than a step has gone far for it before it comes.
#[test]
fn memory_takes_turns() {
    let nodes = [(false, 1 << 30), (true, 8 << 30)].map(|(far, free)| Node { far, free });
    let host = Host {
        nodes: &nodes,
        distances: &[],
    };
    // The first two don't press and are local, the last does and is far.
    let (on, local, target) = (
        [GIB, 0, 4 * GIB, 0, 0, 8 * GIB],
        [GIB, 4 * GIB, 0],
        [0, GIB, 4 * GIB],
    );
    let guests = Guests {
        on: &on,
        local: &local,
        target: &target,
        floors: &[0; 3],
        line: &[2, 1, 0],
        pressing: 1,
    };
    let by = Settings {
        budget: 4 * GIB,
        step: 64 << 20,
        reserve: GIB,
    };
    let mut mover = Mover::default();
    mover.plan(&host, &guests, moves::Files::default(), &by);
    let (mut far, mut near) = (0, 0);
    for piece in &mover.pieces {
        if nodes[piece.to].far {
            far += piece.bytes;
        } else {
            near += piece.bytes;
        }
        assert!(near <= far, "the reserve stays free");
        assert!(far - near <= by.step, "{far} before {near}");
    }
    assert_eq!((far, near), (2 * GIB, 2 * GIB));
    // Who stands last goes first, and pieces are of a step.
    assert_eq!(mover.pieces.len(), 64);
    assert!(
        mover.pieces[..32]
            .iter()
            .step_by(2)
            .all(|piece| piece.guest == 0)
    );
}

/// The thesis' example (figure 5.5): a guest that presses pushes one that doesn't to far memory, and when it goes that comes back.
#[test]
fn pressure_pushes_out_and_lifts() {
    let claim = |class, local| Claim {
        class,
        priority: false,
        critical: false,
        came: Nanos(0),
        bytes: 10 * GIB,
        local,
        floor: 0,
        tenant: None,
    };
    let both = [
        claim(MemoryClass::Rest, 10 * GIB),
        claim(MemoryClass::Memory, 0),
    ];
    let targets = poured(15 * GIB, &both, &[], Files::default(), Order::Keep);
    assert_eq!(targets.local, [5 * GIB, 10 * GIB]);
    let alone = [claim(MemoryClass::Rest, 5 * GIB)];
    let targets = poured(15 * GIB, &alone, &[], Files::default(), Order::Keep);
    assert_eq!(targets.local, [10 * GIB]);
    // Both press: nobody makes way, but what is free is given.
    let peak = [
        claim(MemoryClass::Memory, 6 * GIB),
        claim(MemoryClass::IoAndMemory, 8 * GIB),
    ];
    let targets = poured(15 * GIB, &peak, &[], Files::default(), Order::Keep);
    assert!(targets.all_press);
    assert_eq!(targets.local, [6 * GIB, 9 * GIB]);
}

/// Guests that do nothing yet are alike, but for what the operator said of them: room is made by those that nobody waits for, whoever came first.
#[test]
fn best_effort_guests_make_room_before_others_of_their_class() {
    let claim = |critical, came, local| Claim {
        class: MemoryClass::Rest,
        priority: false,
        critical,
        came: Nanos(came),
        bytes: 10 * GIB,
        local,
        floor: 0,
        tenant: None,
    };
    let both = [claim(false, 0, 10 * GIB), claim(true, 1, 6 * GIB)];
    let targets = poured(15 * GIB, &both, &[], Files::default(), Order::Keep);
    assert_eq!(targets.local, [9 * GIB, 6 * GIB]);
    // What nobody has is theirs in that order, too; but nobody is moved for it.
    let targets = poured(18 * GIB, &both, &[], Files::default(), Order::Keep);
    assert_eq!(targets.local, [10 * GIB, 8 * GIB]);
    let alike = [claim(false, 0, 10 * GIB), claim(false, 1, 6 * GIB)];
    let targets = poured(15 * GIB, &alike, &[], Files::default(), Order::Keep);
    assert_eq!(targets.local, [10 * GIB, 5 * GIB]);
}

/// Far memory is full, and so is local memory but for a step: memory changes places even so, by turns.
#[test]
fn a_full_host_swaps_within_a_step() {
    let nodes = [(false, 40), (true, 0)].map(|(far, grains)| Node {
        far,
        free: grains * GRAIN,
    });
    // One has all of it near and doesn't need it, the other has all of it far.
    let (local, target) = ([100 * GRAIN, 0], [0, 100 * GRAIN]);
    let mut mover = Mover::default();
    let host = Host {
        nodes: &nodes,
        distances: &[],
    };
    let guests = Guests {
        on: &[100 * GRAIN, 0, 0, 100 * GRAIN],
        local: &local,
        target: &target,
        floors: &[0, 0],
        line: &[1, 0],
        pressing: 1,
    };
    let by = Settings {
        budget: 120 * GRAIN,
        step: 10 * GRAIN,
        reserve: 30 * GRAIN,
    };
    mover.plan(&host, &guests, moves::Files::default(), &by);
    let (mut near, mut far) = (nodes[0].free, nodes[1].free);
    for piece in &mover.pieces {
        let (from, to) = if piece.to == 0 {
            (&mut far, &mut near)
        } else {
            (&mut near, &mut far)
        };
        assert!(piece.bytes <= *to);
        *to -= piece.bytes;
        *from += piece.bytes;
        assert!(near >= by.reserve);
    }
    let sum = |to| -> u64 {
        let pieces = mover.pieces.iter().filter(|piece| piece.to == to);
        pieces.map(|piece| piece.bytes).sum()
    };
    assert_eq!((sum(0), sum(1)), (60 * GRAIN, 60 * GRAIN));
}

/// Less is free than the host's reserve, and far memory is full: nothing comes near, however much somebody presses.
#[test]
fn the_reserve_is_nobodys_though_nothing_can_make_room() {
    let nodes = [(false, 10), (true, 0)].map(|(far, grains)| Node {
        far,
        free: grains * GRAIN,
    });
    let host = Host {
        nodes: &nodes,
        distances: &[],
    };
    let guests = Guests {
        on: &[100 * GRAIN, 0, 0, 100 * GRAIN],
        local: &[100 * GRAIN, 0],
        target: &[0, 80 * GRAIN],
        floors: &[0, 0],
        line: &[1, 0],
        pressing: 1,
    };
    let by = Settings {
        budget: 120 * GRAIN,
        step: 10 * GRAIN,
        reserve: 30 * GRAIN,
    };
    let mut mover = Mover::default();
    mover.plan(&host, &guests, moves::Files::default(), &by);
    assert_eq!(mover.pieces, []);
    assert!(mover.left > 0, "what can't move is told");
}
