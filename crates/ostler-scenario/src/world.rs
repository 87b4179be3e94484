//! Who carries a scenario out, as far as reading one needs to know.

use crate::{Caches, Host};

/// What a world that carries scenarios out knows of the things that they name.
pub trait World {
    /// The figures that something can be expected of: the numbers of its JSON lines, by their names there.
    fn figures(&self) -> Vec<String>;

    /// What an instruction of a part costs without its memory, ns: a cycle. `None` for a part that it doesn't know.
    fn cycle_ns(&self, part: &str) -> Option<f64>;

    /// Whether it can model a host with such caches, and if not, why.
    fn check_caches(&self, host: &Host, caches: &Caches) -> Result<(), String>;
}
