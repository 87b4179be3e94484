//! Which threads interact? The paper has applications declare it (CPS, section 4.2); here it is read from who wakes whom.
//!
//! Threads that work on the same data wait for each other: at locks, at barriers, for requests and for their answers. So each wakes the other,
//! again and again, and runs for a short time in between. Over a window, an edge between two threads is taken for interaction if
//!
//! 1. it was used often: at least [`Config::wakeups_min`] times, both directions together;
//! 2. it goes both ways: the rarer direction is at least a [`Config::reciprocity`]th of the other. A timer, a logger or a shell that starts
//!    threads wakes many and is woken by few; without this rule it would join everyone;
//! 3. it matters to one of the two: at least a [`Config::share`]th of the times that it was woken, it was by the other;
//! 4. both run in bursts: run time per wake-up of at most [`Config::burst_ns_max`]. Who computes for longer gains nothing from a cache that a
//!    neighbour warmed a moment ago.
//!
//! The groups are the connected parts of what is left. What is missed, by 2: pipelines in which data goes one way only and the
//! reader never wakes the writer. A pipe that fills up, or a request that is answered, goes both ways.
//!
//! Cost: a pass over the edges, sorted in place once: O(E log E); nothing is allocated once the buffers have grown.

/// Most threads looked at; what is beyond isn't grouped.
pub const TASKS_MAX: usize = 4096;
/// Most edges looked at.
pub const EDGES_MAX: usize = 65_536;

/// What counts as interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Wake-ups between two threads in a window, at least.
    pub wakeups_min: u32,
    /// The rarer direction has at least a so manieth part of the other.
    pub reciprocity: u32,
    /// To one of the two, the other's wake-ups are at least a so manieth part.
    pub share: u32,
    /// Run time per wake-up, at most, ns.
    pub burst_ns_max: u64,
}

impl Default for Config {
    /// For windows of a second: 50 wake-ups, an eighth, an eighth, and a slice of EEVDF's (3 ms).
    fn default() -> Config {
        Config {
            wakeups_min: 50,
            reciprocity: 8,
            share: 8,
            burst_ns_max: 3_000_000,
        }
    }
}

/// What a thread did in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Run time, ns.
    pub ran_ns: u64,
    /// How often it was woken, by threads, timers and interrupts.
    pub woken: u32,
}

/// Who woke whom, by index of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// Who.
    pub waker: u32,
    /// Whom.
    pub wakee: u32,
    /// How often.
    pub wakeups: u32,
}

/// Finds groups; keeps its buffers.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    /// Lower task, higher task, wake-ups up and down.
    pairs: Vec<(u32, u32, u64, u64)>,
    parent: Vec<u32>,
    size: Vec<u32>,
    groups: Vec<Option<u32>>,
}

impl Detector {
    /// Each task's group, named by its lowest task; `None` for those that interact with nobody. Edges of tasks that aren't there, or of a task with
    /// itself, say nothing.
    pub fn detect(&mut self, config: &Config, tasks: &[Task], edges: &[Edge]) -> &[Option<u32>] {
        let known = &tasks[..tasks.len().min(TASKS_MAX)];
        self.pairs.clear();
        for edge in edges.iter().take(EDGES_MAX) {
            let (low, high) = (edge.waker.min(edge.wakee), edge.waker.max(edge.wakee));
            if low == high || high as usize >= known.len() {
                continue;
            }
            let wakeups = u64::from(edge.wakeups);
            let (up, down) = if edge.waker == low {
                (wakeups, 0)
            } else {
                (0, wakeups)
            };
            self.pairs.push((low, high, up, down));
        }
        self.pairs.sort_unstable();
        self.parent.clear();
        self.parent.extend((0..).take(known.len()));
        self.size.clear();
        self.size.resize(known.len(), 1);
        for same in self.pairs.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (low, high, ..) = same[0];
            let up = same.iter().map(|pair| pair.2).sum();
            let down = same.iter().map(|pair| pair.3).sum();
            if interact(config, known[low as usize], known[high as usize], up, down) {
                join(&mut self.parent, &mut self.size, low, high);
            }
        }
        self.groups.clear();
        self.groups.resize(tasks.len(), None);
        for at in (0..).take(known.len()) {
            let root = find(&mut self.parent, at);
            if self.size[root as usize] > 1 {
                self.groups[at as usize] = Some(root);
            }
        }
        &self.groups
    }
}

/// Whether two threads do; `up` and `down` are how often the one woke the other.
fn interact(config: &Config, low: Task, high: Task, up: u64, down: u64) -> bool {
    let all = up + down;
    let bursts = |task: Task| task.ran_ns / u64::from(task.woken.max(1)) <= config.burst_ns_max;
    let matters = |task: Task, by: u64| {
        by > 0 && by.saturating_mul(config.share.into()) >= u64::from(task.woken)
    };
    all >= config.wakeups_min.into()
        && up.min(down).saturating_mul(config.reciprocity.into()) >= up.max(down)
        && bursts(low)
        && bursts(high)
        && (matters(low, down) || matters(high, up))
}

/// The lowest task of a group. Each step halves the way, and leads to a lower one, so it ends.
fn find(parent: &mut [u32], mut at: u32) -> u32 {
    while parent[at as usize] != at {
        let up = parent[parent[at as usize] as usize];
        parent[at as usize] = up;
        at = up;
    }
    at
}

fn join(parent: &mut [u32], size: &mut [u32], a: u32, b: u32) {
    let (a, b) = (find(parent, a), find(parent, b));
    if a == b {
        return;
    }
    let (root, child) = (a.min(b), a.max(b));
    parent[child as usize] = root;
    size[root as usize] += size[child as usize];
}
