//! An open-loop, Poisson, coordinated-omission-free load generator for memcached, redis, HTTP/1.1, a TCP echo, and ICMP echo.
//!
//! ```text
//!  plan + seed -> schedule -> driver <-> event loop <-> server
//!                               |
//!                             ledger -> windows -> lines (JSON or for people)
//! ```
//!
//! - [`schedule`]: when each request is due; pure, and deaf to the server.
//! - [`driver`]: queue, connections' slots, replies; a state machine that is told the time and the bytes.
//! - [`ledger`]: every request that was due, in exactly one window, with exactly one latency.
//! - [`proto`], [`sizes`]: what goes over the wire, and ETC's sizes.
//! - [`link`], [`net`], [`run`]: sockets and threads around them.
//!
//! Depends on no other crate of the workspace, so that it can be built as one static binary and run anywhere.

pub mod clock;
pub mod driver;
pub mod error;
pub mod ledger;
pub mod lines;
pub mod link;
pub mod net;
pub mod proto;
pub mod run;
pub mod schedule;
pub mod sizes;

#[doc = include_str!("../docs/own-generator.md")]
pub mod why {}

pub use error::LoadError;
