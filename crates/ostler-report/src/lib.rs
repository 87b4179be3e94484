//! What runs amount to, drawn: the building blocks of every report, from numbers to one HTML file that needs nothing else.
//!
//! All of it is pure: no clock, no files, no network. A page carries its own style and a few lines of script for the pointer;
//! without them it is still complete (SVG titles, tables behind every plot), and its content policy forbids it to load anything.
//!
//! ```text
//!  figures, spreads, timelines (typed, serde) -> table, lines, bars, timeline -> node (escaping) -> HTML that is well-formed XML
//!                                                 scale, frame, look, say
//! ```
//!
//! Three rules hold everywhere, and have tests: what was not measured is a gap and never a zero; names and reasons come from guests and
//! operators and are text, never markup; nothing is told by colour alone.
//!
//! Depends on nothing but serde. What a run of the lab or of the simulator is made of, their own rooms know.

pub mod bars;
mod benches;
pub mod figures;
pub mod frame;
pub mod lines;
pub mod look;
pub mod node;
mod page;
pub mod say;
pub mod scale;
mod spread;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod timeline;

pub use benches::{BenchLine, render_benches};
pub use look::{Family, Look, looks};
pub use node::{Node, el};
pub use page::{chart, page, section};
pub use spread::Spread;
