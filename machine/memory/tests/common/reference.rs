//! The same machine, written as the textbooks draw it: each cache a list of sets, each set a list in its order of use, and
//! no directory: who wants a line looks into every cache there is. Slow, and short enough to be believed.
//!
//! The bench uses it too, behind a lock, as what one would write first.

use std::collections::VecDeque;

use ostler_machine_memory::{Kind, Level, Policy};

use super::shape::{NODE_BYTES, Pool, Shape, Size};

/// A cache; the latest used line of each set is in front.
#[derive(Debug)]
struct Cache<T> {
    sets: Vec<VecDeque<(u64, T)>>,
    ways: usize,
}

impl<T> Cache<T> {
    fn new((sets, ways): Size) -> Cache<T> {
        Cache {
            sets: (0..sets).map(|_| VecDeque::new()).collect(),
            ways,
        }
    }

    fn set(&mut self, line: u64) -> &mut VecDeque<(u64, T)> {
        let count = self.sets.len() as u64;
        &mut self.sets[usize::try_from(line % count).expect("small")]
    }

    /// What is noted with a line, without using it.
    fn see(&mut self, line: u64) -> Option<&mut T> {
        let found = self.set(line).iter_mut().find(|(other, _)| *other == line);
        found.map(|(_, note)| note)
    }

    fn has(&mut self, line: u64) -> bool {
        self.see(line).is_some()
    }

    fn drop(&mut self, line: u64) -> Option<T> {
        let set = self.set(line);
        let at = set.iter().position(|(other, _)| *other == line)?;
        set.remove(at).map(|(_, note)| note)
    }

    /// Uses a line that is there.
    fn touch(&mut self, line: u64) -> bool {
        let Some(note) = self.drop(line) else {
            return false;
        };
        self.set(line).push_front((line, note));
        true
    }

    /// Puts a line in front, whether it was there or not; returns what falls out.
    fn put(&mut self, line: u64, note: T) -> Option<(u64, T)> {
        self.drop(line);
        let ways = self.ways;
        let set = self.set(line);
        set.push_front((line, note));
        if set.len() > ways {
            set.pop_back()
        } else {
            None
        }
    }
}

/// What a core's L2 notes with a line.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    /// No other core has it.
    own: bool,
    /// It is newer than what is outside.
    dirty: bool,
}

#[derive(Debug)]
struct Core {
    code: Cache<()>,
    /// Whether a store needs to ask nobody.
    data: Cache<bool>,
    l2: Cache<Hold>,
    group: usize,
    socket: usize,
}

/// The reference.
#[derive(Debug)]
pub struct Reference {
    cores: Vec<Core>,
    /// Whether a line is newer than memory.
    l3: Vec<Option<Cache<bool>>>,
    policy: Option<Policy>,
    filter: Option<Cache<()>>,
    sockets: usize,
    nodes: usize,
}

impl Reference {
    /// All caches empty.
    pub fn new(shape: &Shape) -> Reference {
        let groups_per_socket = shape.cores.div_ceil(shape.group_cores);
        let core = |at: usize| {
            let socket = at / shape.cores;
            Core {
                code: Cache::new(shape.l1i),
                data: Cache::new(shape.l1d),
                l2: Cache::new(shape.l2),
                group: socket * groups_per_socket + at % shape.cores / shape.group_cores,
                socket,
            }
        };
        let l3 = || shape.l3.map(|(size, _)| Cache::new(size));
        Reference {
            cores: (0..shape.count()).map(core).collect(),
            l3: (0..groups_per_socket * shape.sockets)
                .map(|_| l3())
                .collect(),
            policy: shape.l3.map(|(_, policy)| policy),
            filter: match shape.pool {
                Pool::Filtered(size) => Some(Cache::new(size)),
                Pool::Absent | Pool::Plain => None,
            },
            sockets: shape.sockets,
            nodes: shape.nodes(),
        }
    }

    /// What serves an access.
    pub fn access(&mut self, core: usize, kind: Kind, address: u64) -> Level {
        let line = address / 64;
        let write = kind.writes();
        let node = usize::try_from(address / NODE_BYTES).expect("small");
        if node >= self.nodes {
            return Level::Nowhere;
        }
        let own = &mut self.cores[core];
        if kind == Kind::Fetch && own.code.touch(line) {
            return Level::L1;
        }
        // A fetch looks no further into data.
        let held = own.data.see(line).copied().filter(|_| kind != Kind::Fetch);
        if held.is_some_and(|writable| writable || !write) {
            own.data.touch(line);
            if write {
                own.l2.see(line).expect("L2 has what L1 has").dirty = true;
            }
            return Level::L1;
        }
        let level = if own.l2.touch(line) {
            if write && !own.l2.see(line).expect("just used").own {
                self.claim(core, line);
                self.cores[core].l2.see(line).expect("just used").own = true;
            }
            if held.is_some() { Level::L1 } else { Level::L2 }
        } else {
            self.bring(core, line, node, write)
        };
        self.fill(core, kind, line);
        level
    }

    fn fill(&mut self, core: usize, kind: Kind, line: u64) {
        let own = &mut self.cores[core];
        match kind {
            Kind::Fetch => {
                if let Some(writable) = own.data.see(line) {
                    *writable = false;
                }
                own.code.put(line, ());
            }
            Kind::Load => {
                let writable = own.l2.see(line).expect("just brought").own && !own.code.has(line);
                own.data.put(line, writable);
            }
            Kind::Store | Kind::Atomic => {
                own.code.drop(line);
                own.data.put(line, true);
                own.l2.see(line).expect("just brought").dirty = true;
            }
        }
    }

    /// A core's caches lose a line. Returns whether it was newer there.
    fn lose(&mut self, core: usize, line: u64) -> bool {
        let own = &mut self.cores[core];
        own.code.drop(line);
        own.data.drop(line);
        own.l2.drop(line).is_some_and(|hold| hold.dirty)
    }

    /// Nobody but `core` keeps the line; its group's inclusive L3 does.
    fn claim(&mut self, core: usize, line: u64) {
        for other in (0..self.cores.len()).filter(|other| *other != core) {
            self.lose(other, line);
        }
        let group = self.cores[core].group;
        for (at, l3) in self.l3.iter_mut().enumerate() {
            if let Some(l3) = l3
                && (at != group || self.policy == Some(Policy::Victim))
            {
                l3.drop(line);
            }
        }
    }

    fn bring(&mut self, core: usize, line: u64, node: usize, write: bool) -> Level {
        let group = self.cores[core].group;
        let mut newer = false;
        let level = self.source(core, line, node, write, &mut newer);
        let own = if write {
            self.claim(core, line);
            true
        } else {
            let cores = self.cores.iter_mut().any(|other| other.l2.has(line));
            let caches = self.l3.iter_mut().enumerate();
            let elsewhere = caches.filter(|(at, _)| *at != group);
            let elsewhere = elsewhere.flat_map(|(_, l3)| l3).any(|l3| l3.has(line));
            !cores && !elsewhere
        };
        if let Some(l3) = &mut self.l3[group] {
            match self.policy {
                Some(Policy::Inclusive) if !l3.has(line) => self.enter(group, line, false),
                Some(Policy::Victim) if own && !write => {
                    l3.drop(line);
                }
                _ => {}
            }
        }
        let dirty = own && !write && newer;
        if let Some((gone, hold)) = self.cores[core].l2.put(line, Hold { own, dirty }) {
            let caches = &mut self.cores[core];
            caches.code.drop(gone);
            caches.data.drop(gone);
            if let Some(l3) = &mut self.l3[group] {
                match l3.see(gone) {
                    Some(dirty) => *dirty |= hold.dirty,
                    None => self.enter(group, gone, hold.dirty),
                }
            }
        }
        level
    }

    fn source(
        &mut self,
        core: usize,
        line: u64,
        node: usize,
        write: bool,
        newer: &mut bool,
    ) -> Level {
        let group = self.cores[core].group;
        let owner = (0..self.cores.len()).find(|other| {
            let hold = self.cores[*other].l2.see(line);
            hold.is_some_and(|hold| hold.own)
        });
        if let Some(owner) = owner {
            let its = self.cores[owner].group;
            if write {
                self.lose(owner, line);
                return Level::Peer;
            }
            let hold = self.cores[owner].l2.see(line).expect("it owns it");
            let dirty = hold.dirty;
            *hold = Hold::default();
            if let Some(writable) = self.cores[owner].data.see(line) {
                *writable = false;
            }
            if let Some(l3) = &mut self.l3[its] {
                match l3.see(line) {
                    Some(modified) if its == group => *modified |= dirty,
                    Some(modified) => *modified = false,
                    None if its == group && dirty => self.enter(group, line, true),
                    None => {}
                }
            }
            return Level::Peer;
        }
        if let Some(l3) = &mut self.l3[group]
            && l3.touch(line)
        {
            *newer = self.policy == Some(Policy::Victim) && *l3.see(line).expect("just used");
            return Level::L3;
        }
        let mut cores = self.cores.iter_mut();
        if cores.any(|other| other.group == group && other.l2.has(line)) {
            return Level::Peer;
        }
        for l3 in self.l3.iter_mut().flatten() {
            if let Some(dirty @ true) = l3.see(line) {
                *dirty = write;
                return Level::Peer;
            }
        }
        if node < self.sockets {
            return if node == self.cores[core].socket {
                Level::Local
            } else {
                Level::Remote
            };
        }
        if let Some(filter) = &mut self.filter
            && !filter.touch(line)
            && let Some((gone, ())) = filter.put(line, ())
        {
            for other in 0..self.cores.len() {
                self.lose(other, gone);
            }
            for l3 in self.l3.iter_mut().flatten() {
                l3.drop(gone);
            }
        }
        Level::Pool
    }

    /// A line enters an L3; what falls out of an inclusive one falls out of its cores too.
    fn enter(&mut self, group: usize, line: u64, dirty: bool) {
        let l3 = self.l3[group].as_mut().expect("asked before");
        if let Some((gone, _)) = l3.put(line, dirty)
            && self.policy == Some(Policy::Inclusive)
        {
            for core in 0..self.cores.len() {
                if self.cores[core].group == group {
                    self.lose(core, gone);
                }
            }
        }
    }
}
