//! Units as types, so that a nanosecond is never taken for a core number.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A logical CPU of the host, as numbered by the kernel (`/sys/devices/system/cpu/cpuN`).
    CpuId(u32)
}
id! {
    /// A NUMA node of the host (`/sys/devices/system/node/nodeN`).
    NodeId(u32)
}
id! {
    /// A thread of the host, as in `/proc/PID/task/TID`.
    Tid(u32)
}
id! {
    /// A process of the host.
    Pid(u32)
}
id! {
    /// An interrupt line of the host, as in `/proc/irq/N`.
    IrqId(u32)
}
id! {
    /// A size in bytes.
    Bytes(u64)
}
id! {
    /// A point in time or a span, in nanoseconds. Points are on the host's monotonic clock.
    Nanos(u64)
}

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);

    /// A span of whole microseconds.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }

    /// A span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// A span of whole seconds.
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs.saturating_mul(1_000_000_000))
    }

    /// The span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span in milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span in microseconds.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// `self - other`, or zero where that would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }

    /// `self + other`, at most the largest representable time.
    #[must_use]
    pub const fn saturating_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}
