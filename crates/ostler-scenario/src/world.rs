//! Who carries a scenario out, as far as reading one needs to know.

use crate::{Caches, Host};

/// What a world that carries scenarios out knows of the things that they name, and how much it can hold.
pub trait World {
    /// The figures that something can be expected of: the numbers of its JSON lines, by their names there.
    fn figures(&self) -> Vec<String>;

    /// What an instruction of a part costs without its memory, ns: a cycle. `None` for a part that it doesn't know.
    fn cycle_ns(&self, part: &str) -> Option<f64>;

    /// Whether it can model a host with such caches, and if not, why.
    fn check_caches(&self, host: &Host, caches: &Caches) -> Result<(), String>;

    /// How much it can hold.
    fn limits(&self) -> Limits;
}

/// How much a world can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether it has what nothing but a simulator has: fleets, faults at a time, guests by the hundred, the heat of memory, and the work of guests in
    /// detail.
    pub simulates: bool,
    /// CPUs of a host.
    pub cpus_max: u32,
    /// Queues of the physical NIC.
    pub pnic_queues_max: u32,
    /// Queue pairs of a guest's.
    pub queues_max: u32,
    /// Letters of a guest's name.
    pub name_max: usize,
    /// What a guest needs.
    pub guest_memory_min_mib: u64,
    /// What the host itself needs.
    pub host_memory_min_mib: u64,
}
