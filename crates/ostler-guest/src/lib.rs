//! Both ends of the wire between the steward and its guests.
//!
//! [`agent`] runs in the guest, as the program `ostler-guest`; [`host`] is the steward's side, which keeps a connection to
//! each guest's agent and believes none of them.
//!
//! May depend on: ostler-abi. Plain types only, so that neither side needs the steward's model.

pub mod agent;
pub mod cli;
mod cpulist;
pub mod host;
