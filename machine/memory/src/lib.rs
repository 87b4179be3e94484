//! What a memory access costs on a simulated many-core machine.
//!
//! A pure model: cores with private L1 and L2, an L3 per cache group or none, memory in nodes (a socket's own, another
//! socket's, a CXL device's), MESI between all caches by a directory, and devices that serve so many bytes per second. It
//! knows nothing of QEMU; `machine/time` asks it for each access, from each core's own thread at once. Several processes can
//! work on one system, in a block that they share ([`System::attach`]).
//!
//! ```
//! use ostler_machine_memory::{Catalogue, Kind, Level, System, Topology};
//!
//! let topology = Topology::parse(r#"
//!     [[cores]]
//!     first = 0
//!     last = 7
//!     part = "epyc-7742"
//!     node = 0
//!
//!     [[nodes]]
//!     ranges = [{ start = 0, bytes = 0x8000_0000 }]
//!
//!     [[nodes]]
//!     ranges = [{ start = 0x1_0000_0000, bytes = 0x8000_0000 }]
//!     device = "cxl2-e3s-x8"
//! "#)?;
//! let system = System::new(&topology, &Catalogue::built_in())?;
//! let mut now_ps = 0;
//! let charge = system.access(3, Kind::Load, 0x1_0000_0040, || now_ps);
//! assert_eq!((charge.level, charge.picoseconds), (Level::Pool, 250_000));
//! now_ps += charge.picoseconds;
//! assert_eq!(system.access(3, Kind::Load, 0x1_0000_0044, || now_ps).level, Level::L1);
//! # Ok::<(), ostler_machine_memory::TopologyError>(())
//! ```
//!
//! - [`part`]: processors and memory devices, data under `parts/`.
//! - [`topology`]: what a machine is made of, and what is refused.
//! - [`system`]: the whole, what it charges, and who locks what.
//! - `cache`: L1s; a hit takes no lock. [`port`]: a core's short way to them. `private`: what a core's own L2 has.
//! - `transaction`: MESI, under one shard's lock; `leave`: who must leave. [`directory`]: who holds a line.
//! - `sets`: the caches behind L1, and filters. `scan`: searching a set. `order`: which way leaves next. `map`: physical memory without its holes.
//! - `bandwidth`: the queue in virtual time. [`counters`]: what each core did.
//! - `block`: the one block that all of it is in; `layout`: in which order; [`header`]: how it begins; `lock`: its locks.
//! - [`contents`]: what caches hold, for checkers.
//!
//! May depend on: nothing of ours.

pub(crate) mod bandwidth;
pub(crate) mod block;
pub mod cache;
pub mod contents;
pub(crate) mod costs;
pub mod counters;
pub mod directory;
pub mod header;
pub(crate) mod layout;
pub(crate) mod leave;
pub(crate) mod lock;
pub(crate) mod map;
pub(crate) mod order;
pub mod part;
pub mod port;
pub(crate) mod private;
pub(crate) mod scan;
pub(crate) mod sets;
pub mod system;
pub mod topology;
pub(crate) mod transaction;

pub use cache::State;
pub use contents::Contents;
pub use counters::{Counts, Kind, Level};
pub use header::BlockError;
pub use part::{Catalogue, Device, Part, PartError, Policy};
pub use port::Port;
pub use system::{Charge, System};
pub use topology::{Cores, Node, Range, Topology, TopologyError};
