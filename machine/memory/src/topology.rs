//! What a machine is made of: which core is which part, in which node and cache group; which memory belongs to which node.
//!
//! A topology is data, written in TOML or made by whoever knows the machine. [`Topology::check`] turns it into a
//! [`Plan`] that the rest of the room can rely on, or says what is wrong and what to do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::part::{Catalogue, Device, LINE_BYTES, Part, PartError};

/// Cores and groups are bits of a word.
pub const CORES_MAX: usize = 64;

/// A machine.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// How far the cores' times may be apart: the lockstep's quantum, ns.
    #[serde(default = "skew_ns")]
    pub skew_ns: u64,
    /// Whether a stream of lines costs less than as many single ones (see [`crate::system`]). False is Stramash's model.
    #[serde(default = "overlap")]
    pub overlap: bool,
    /// All cores.
    pub cores: Vec<Cores>,
    /// All memory; node numbers are positions.
    pub nodes: Vec<Node>,
}

impl Default for Topology {
    /// Nothing yet; the rest as it is where a file doesn't say.
    fn default() -> Topology {
        Topology {
            skew_ns: skew_ns(),
            overlap: overlap(),
            cores: Vec::new(),
            nodes: Vec::new(),
        }
    }
}

fn skew_ns() -> u64 {
    10_000
}

fn overlap() -> bool {
    true
}

/// Some cores that are alike.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Their numbers, from the first to the last, both included.
    pub first: usize,
    /// See `first`.
    pub last: usize,
    /// What they are.
    pub part: String,
    /// Where they are.
    pub node: usize,
    /// How many share a cache group; as the part has it where not given.
    pub group_cores: Option<usize>,
    /// A core of an earlier block of the same node, whose cache group all of these belong to. A group of several parts has the largest of their
    /// L3s, and each core pays for it what its own part's table says.
    pub group_of: Option<usize>,
}

/// A memory node.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its physical addresses.
    pub ranges: Vec<Range>,
    /// The device that it is; none for the memory of its cores' socket.
    pub device: Option<String>,
    /// The node whose socket the device is attached to: other sockets' cores pay their way there. Without one it is equally
    /// far from all.
    pub attached_to: Option<usize>,
    /// Latency in place of the part's or device's: from its own cores, or those of the socket it is attached to.
    pub latency_ns: Option<u64>,
    /// Bandwidth in place of the part's or device's, in millions of bytes per second.
    pub mb_per_s: Option<u64>,
}

/// Physical addresses.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first.
    pub start: u64,
    /// How many.
    pub bytes: u64,
}

/// What is wrong with a topology.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TopologyError {
    /// Not the TOML that is expected.
    #[error("the topology can't be read: {0}")]
    Toml(String),
    /// A part is wrong.
    #[error(transparent)]
    Part(#[from] PartError),
    /// No core at all, or too many.
    #[error("there are {0} cores; the model takes 1 to {CORES_MAX}")]
    CoreCount(usize),
    /// A block that ends before it begins.
    #[error("cores {first} to {last} are none; write the lower number first")]
    Backwards {
        /// As given.
        first: usize,
        /// As given.
        last: usize,
    },
    /// A core is in two blocks.
    #[error("core {0} is listed twice; take it out of one of the blocks")]
    Twice(usize),
    /// A number is left out.
    #[error("there is a core {0} but no core {1}; number cores from 0 without gaps")]
    Gap(usize, usize),
    /// A part that isn't in the catalogue.
    #[error("{user} is a `{name}`, which isn't known; known are: {known}")]
    Unknown {
        /// Who names it.
        user: String,
        /// As written.
        name: String,
        /// What may be written.
        known: String,
    },
    /// A node that isn't there.
    #[error(
        "{user} is in node {node}, but there are {nodes} nodes; number them from 0 by their positions"
    )]
    NoNode {
        /// Who names it.
        user: String,
        /// As written.
        node: usize,
        /// How many there are.
        nodes: usize,
    },
    /// An empty group.
    #[error("cores {0} to {1} share their cache by 0; write 1 or more, or leave group_cores out")]
    NoGroup(usize, usize),
    /// A group that isn't there.
    #[error(
        "cores {first} to {last} are to be of core {of}'s cache group; name a core of a block before theirs that is in node {node}, too, and leave \
         group_cores out"
    )]
    NoPeer {
        /// As given.
        first: usize,
        /// As given.
        last: usize,
        /// As given.
        of: usize,
        /// Theirs.
        node: usize,
    },
    /// Addresses that aren't whole lines.
    #[error(
        "node {node}: {bytes:#x} bytes from {start:#x} aren't whole lines of {LINE_BYTES} bytes (or none, or beyond 2^52); align both"
    )]
    Range {
        /// Whose.
        node: usize,
        /// As given.
        start: u64,
        /// As given.
        bytes: u64,
    },
    /// An address of two nodes.
    #[error("nodes {0} and {1} both have address {2:#x}; give each its own ranges")]
    Overlap(usize, usize, u64),
    /// Memory of which nothing is known.
    #[error(
        "node {0} has no cores and names no device, so nobody knows how far it is; give it a device, or both latency_ns and mb_per_s"
    )]
    Distance(usize),
    /// More lines than a tag tells apart.
    #[error(
        "there are {gib} GiB of memory, and caches of these sizes can tell {most} GiB apart; make the nodes' ranges smaller"
    )]
    TooMuchMemory {
        /// Of all nodes.
        gib: u64,
        /// What there may be.
        most: u64,
    },
    /// An address that a first cache's words have no room for.
    #[error(
        "there is memory up to {gib} GiB, and first caches of these sizes can hold addresses up to {most} GiB; put the nodes' ranges lower"
    )]
    TooFar {
        /// Where the last node ends.
        gib: u64,
        /// Where it may.
        most: u64,
    },
    /// The system has no memory for the model.
    #[error(
        "the model of this machine takes {0} bytes of address space, which the system refuses; make the nodes' ranges smaller, or let \
         the system promise more memory than it has (vm.overcommit_memory)"
    )]
    NoRoom(usize),
    /// A node that is two things.
    #[error("node {0} has cores of its own and names a device; make the device a node of its own")]
    Both(usize),
    /// A figure that can't be.
    #[error("{what} is {found}; write {remedy}")]
    Figure {
        /// Which.
        what: String,
        /// As given.
        found: u64,
        /// What it must be.
        remedy: &'static str,
    },
}

/// A core, checked.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCore<'a> {
    pub(crate) part: &'a Part,
    pub(crate) node: usize,
    pub(crate) group: usize,
}

/// A node, checked.
#[derive(Clone, Debug)]
pub(crate) struct PlannedNode<'a> {
    pub(crate) device: Option<&'a Device>,
    pub(crate) has_cores: bool,
    pub(crate) attached_to: Option<usize>,
    /// In place of what parts say.
    pub(crate) latency_ns: Option<u64>,
    pub(crate) mb_per_s: u64,
}

/// A machine, checked.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) cores: Vec<PlannedCore<'a>>,
    /// By group: the part whose L3 it has.
    pub(crate) groups: Vec<Option<&'a Part>>,
    pub(crate) nodes: Vec<PlannedNode<'a>>,
    /// By address: first line, line behind the last, node.
    pub(crate) ranges: Vec<(u64, u64, usize)>,
}

impl Topology {
    /// Reads a topology's TOML; whether it makes sense is seen when a system is made of it.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        toml::from_str(text).map_err(|error| TopologyError::Toml(error.to_string()))
    }

    pub(crate) fn check<'a>(&self, catalogue: &'a Catalogue) -> Result<Plan<'a>, TopologyError> {
        figure(
            "skew_ns",
            self.skew_ns,
            self.skew_ns <= 1_000_000,
            "nanoseconds, up to 1000000",
        )?;
        let cores = self.check_cores(catalogue)?;
        let nodes = self.check_nodes(&cores, catalogue)?;
        Ok(Plan {
            groups: groups(&cores),
            cores,
            nodes,
            ranges: self.check_ranges()?,
        })
    }

    fn check_cores<'a>(
        &self,
        catalogue: &'a Catalogue,
    ) -> Result<Vec<PlannedCore<'a>>, TopologyError> {
        let mut cores: BTreeMap<usize, PlannedCore> = BTreeMap::new();
        let mut groups = 0;
        for block in &self.cores {
            let &Cores {
                first, last, node, ..
            } = block;
            if last < first {
                return Err(TopologyError::Backwards { first, last });
            }
            if last - first >= CORES_MAX {
                return Err(TopologyError::CoreCount(last - first + 1));
            }
            let user = || format!("core {first}");
            let part = catalogue
                .part(&block.part)
                .ok_or_else(|| TopologyError::Unknown {
                    user: user(),
                    name: block.part.clone(),
                    known: catalogue
                        .parts
                        .keys()
                        .cloned()
                        .collect::<Vec<_>>()
                        .join(", "),
                })?;
            if node >= self.nodes.len() {
                return Err(TopologyError::NoNode {
                    user: user(),
                    node,
                    nodes: self.nodes.len(),
                });
            }
            let alone = last - first + 1;
            let share = block
                .group_cores
                .unwrap_or(part.l3.map_or(alone, |l3| l3.cores));
            if share == 0 {
                return Err(TopologyError::NoGroup(first, last));
            }
            let joined = match block.group_of {
                None => None,
                Some(of) => {
                    let peer = cores.get(&of).filter(|peer| peer.node == node);
                    let peer = peer.filter(|_| block.group_cores.is_none());
                    let peer = peer.ok_or(TopologyError::NoPeer {
                        first,
                        last,
                        of,
                        node,
                    })?;
                    Some(peer.group)
                }
            };
            for core in first..=last {
                let group = joined.unwrap_or(groups + (core - first) / share);
                if cores
                    .insert(core, PlannedCore { part, node, group })
                    .is_some()
                {
                    return Err(TopologyError::Twice(core));
                }
            }
            if joined.is_none() {
                groups += alone.div_ceil(share);
            }
        }
        if cores.is_empty() || cores.len() > CORES_MAX {
            return Err(TopologyError::CoreCount(cores.len()));
        }
        if let Some((missing, (&core, _))) =
            cores.iter().enumerate().find(|(at, (core, _))| at != *core)
        {
            return Err(TopologyError::Gap(core, missing));
        }
        Ok(cores.into_values().collect())
    }

    fn check_nodes<'a>(
        &self,
        cores: &[PlannedCore<'a>],
        catalogue: &'a Catalogue,
    ) -> Result<Vec<PlannedNode<'a>>, TopologyError> {
        let mut nodes = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let own = cores.iter().find(|core| core.node == at);
            let device = match &node.device {
                None => None,
                Some(name) => Some(catalogue.device(name).ok_or_else(|| {
                    TopologyError::Unknown {
                        user: format!("node {at}"),
                        name: name.clone(),
                        known: catalogue
                            .devices
                            .keys()
                            .cloned()
                            .collect::<Vec<_>>()
                            .join(", "),
                    }
                })?),
            };
            if own.is_some() && device.is_some() {
                return Err(TopologyError::Both(at));
            }
            if let Some(to) = node.attached_to
                && !cores.iter().any(|core| core.node == to)
            {
                return Err(TopologyError::NoNode {
                    user: format!("the socket of node {at} (attached_to; a node with cores)"),
                    node: to,
                    nodes: self.nodes.len(),
                });
            }
            let mb_per_s = node.mb_per_s;
            let mb_per_s = mb_per_s.or(device.map(|device| device.mb_per_s));
            let mb_per_s = mb_per_s.or(own.map(|core| core.part.memory_mb_per_s));
            let known = own.is_some() || device.is_some() || node.latency_ns.is_some();
            let Some(mb_per_s) = mb_per_s.filter(|_| known) else {
                return Err(TopologyError::Distance(at));
            };
            let what = |figure: &str| format!("node {at}: {figure}");
            let remedy = "millions of bytes per second, 1 to 10000000";
            figure(
                what("mb_per_s"),
                mb_per_s,
                (1..=10_000_000).contains(&mb_per_s),
                remedy,
            )?;
            let latency = node.latency_ns.unwrap_or(1);
            figure(
                what("latency_ns"),
                latency,
                (1..=1_000_000).contains(&latency),
                "nanoseconds, 1 to 1000000",
            )?;
            nodes.push(PlannedNode {
                device,
                has_cores: own.is_some(),
                attached_to: node.attached_to,
                latency_ns: node.latency_ns,
                mb_per_s,
            });
        }
        Ok(nodes)
    }

    fn check_ranges(&self) -> Result<Vec<(u64, u64, usize)>, TopologyError> {
        let mut ranges = Vec::new();
        for (node, spec) in self.nodes.iter().enumerate() {
            for &Range { start, bytes } in &spec.ranges {
                let end = start.checked_add(bytes).filter(|end| *end <= 1 << 52);
                let whole = bytes > 0
                    && start.is_multiple_of(LINE_BYTES)
                    && bytes.is_multiple_of(LINE_BYTES);
                let Some(end) = end.filter(|_| whole) else {
                    return Err(TopologyError::Range { node, start, bytes });
                };
                ranges.push((start / LINE_BYTES, end / LINE_BYTES, node));
            }
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            let ((_, end, one), (start, _, other)) = (pair[0], pair[1]);
            if start < end {
                return Err(TopologyError::Overlap(one, other, start * LINE_BYTES));
            }
        }
        Ok(ranges)
    }
}

/// The part whose L3 each group has: the largest, and the first of those.
fn groups<'a>(cores: &[PlannedCore<'a>]) -> Vec<Option<&'a Part>> {
    let count = cores.iter().map(|core| core.group + 1).max().unwrap_or(0);
    let mut groups: Vec<Option<&Part>> = vec![None; count];
    let kib = |part: Option<&Part>| part.and_then(|part| part.l3).map_or(0, |l3| l3.kib);
    for core in cores {
        let has = &mut groups[core.group];
        if kib(Some(core.part)) > kib(*has) {
            *has = Some(core.part);
        }
    }
    groups
}

fn figure(
    what: impl Into<String>,
    found: u64,
    good: bool,
    remedy: &'static str,
) -> Result<(), TopologyError> {
    if good {
        return Ok(());
    }
    Err(TopologyError::Figure {
        what: what.into(),
        found,
        remedy,
    })
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
