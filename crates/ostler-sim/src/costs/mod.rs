//! What things cost on a simulated host: each constant with where it is from.
//!
//! A constant is what a paper's table, Linux's source or a measurement of ours says. None is here to make a figure come out: one
//! without a source fails a test, and so does one whose source is no place that can be looked up. Each room of the world keeps its own in a file of its own here
//! ([`host`]), as a table by [`costs!`]; a scenario may set others, and says so.
//!
//! What takes instructions is told in instructions: it takes as long as the host's instructions do ([`Cost::nanos`]). So the lab's slow hosts
//! (10 ns an instruction) and real ones have the same table.

use ostler_model::Nanos;

pub mod emulated;
pub mod fleet;
pub mod host;
pub mod path;

/// A constant of the world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Its name, as in the table.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
    /// Where it is from.
    pub source: &'static str,
}

/// What a constant counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Instructions that the host executes.
    Instructions,
    /// Nanoseconds, whatever the host's instructions take.
    Nanos,
    /// Milliwatts.
    Milliwatts,
    /// A plain number.
    Number,
}

impl Cost {
    /// How long it takes where an instruction takes so many nanoseconds.
    pub fn nanos(&self, instruction_ns: f64) -> Nanos {
        match self.unit {
            Unit::Instructions => crate::round::nanos(self.value * instruction_ns),
            _ => crate::round::nanos(self.value),
        }
    }
}

/// Nanoseconds an instruction takes where a scenario doesn't say: one a cycle, of 3 GHz.
pub const INSTRUCTION_NS: f64 = 1.0 / 3.0;

/// A room's constants, and the table of all of them.
macro_rules! costs {
    ($(#[$table_doc:meta])* $table:ident: $($(#[$doc:meta])* $name:ident = $value:literal $unit:ident, $source:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $name: $crate::costs::Cost = $crate::costs::Cost {
                name: stringify!($name),
                value: $value,
                unit: $crate::costs::Unit::$unit,
                source: $source,
            };
        )*
        $(#[$table_doc])*
        pub const $table: &[$crate::costs::Cost] = &[$($name),*];
    };
}
pub(crate) use costs;

/// All tables, by room.
pub const ALL: &[(&str, &[Cost])] = &[
    ("emulated", emulated::EMULATED),
    ("fleet", fleet::FLEET),
    ("host", host::HOST),
    ("path", path::PATH),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Kinds of places that a source may be.
    const PLACES: [&str; 10] = [
        "kernel/", "net/", "drivers/", "include/", "crates/", "bench/", "docs/", "LAB", "table",
        "fig.",
    ];

    #[test]
    fn each_cost_has_a_source_that_can_be_looked_up() {
        for (room, table) in ALL {
            let mut names = BTreeSet::new();
            assert!(!table.is_empty(), "{room} has costs");
            for cost in *table {
                assert!(
                    names.insert(cost.name),
                    "{room}: {} is there twice",
                    cost.name
                );
                assert!(
                    PLACES.iter().any(|place| cost.source.contains(place)),
                    "{room}: {}: `{}` names no file, bench, table or figure",
                    cost.name,
                    cost.source
                );
                assert!(cost.value.is_finite() && cost.value >= 0.0, "{}", cost.name);
            }
        }
    }

    #[test]
    fn instructions_take_the_hosts_time_and_nanoseconds_their_own() {
        assert_eq!(host::SWITCH.nanos(10.0), Nanos(33_500));
        assert_eq!(host::SLICE_BASE.nanos(10.0), Nanos(750_000));
    }
}
