//! The other world: a host, or a fleet of hosts, of discrete events, in which thousands of guests take milliseconds to run.
//!
//! It runs the very `decide()` that the daemon runs. What it knows of hardware and kernels are costs and rules of queueing: who runs on
//! which core and for how long, what waits for what, where data lies. Times are whole nanoseconds, one seed draws everything, and
//! nothing depends on the real machine: the same scenario and seed give the same bytes, on any machine and any number of threads.
//!
//! ```text
//!            clients, traces, faults                      decide()  <- Snapshot
//!                     |                                      |            ^
//!                     v                                      v Plan       | sensed
//!   NIC queue -> interrupt, softirq -> vhost worker -> vCPU: a guest's scheduler -> its tasks
//!                 \_______________ threads and interrupts on cores __________/
//!                                  memory: nodes, heat, traffic
//! ```
//!
//! | room | what it is |
//! |---|---|
//! | [`event`] | the queue of what is to happen |
//! | [`random`] | streams of random numbers, one for each thing that draws, so that one more draw here changes nothing there |
//! | [`round`] | whole numbers of what was reckoned in fractions |
//! | [`work`] | what the host's scheduler and those who give its threads work say to each other |
//! | [`host`] | a host: cores, threads, cgroups, interrupts, the kernel's scheduler |
//! | [`world`] | the loop that brings all of them together |
//! | [`costs`] | what things cost, each with its source |
//! | [`guest`] | guests, their kernels and tasks |
//! | [`net`] | the way of a packet: NIC queues, softirqs, vhost workers |
//! | [`load`] | clients |
//! | [`parallel`] | many worlds at once, the same for any number of threads |
//! | [`path`] | what a packet's way costs in a world, and how near cores are |
//! | [`tenants`] | all of these together: the owner of the host's threads |
//! | [`steward`] | the daemon's loop around the host: sees, decides, has it judged, acts |
//! | [`check`] | what must hold of every world, found by watching it |
//! | [`memory`] | tiered memory: where guests' lies, what moves, and how slow that makes them |
//! | [`trace`] | a cloud's VMs: the public Azure trace, read, and one generated with its figures |
//! | [`files`] | a guest with in-memory files, and the control of their size |
//! | [`scenario`] | scenarios as worlds |
//! | [`ftrace`] | what Linux's tracer would have written of a host |
//! | [`fleet`] | hosts of one kind, and a trace's VMs on them |
//! | [`run`] | a scenario's cells, told as the lab tells its own |
//!
//! A thread's owner never calls the scheduler, and the scheduler knows no guests: each hands the other plain values ([`work`]), and the world
//! between them carries them over. So each is tested without the other.
//!
//! May depend on: model, abi, policy, check, boost, hints, load (the shape of its lines), outcome, record, scenario, machine/memory (parts). Not on anything
//! that touches Linux.

pub mod check;
pub mod costs;
pub mod event;
pub mod files;
pub mod fleet;
pub mod ftrace;
pub mod guest;
pub mod host;
pub mod load;
pub mod memory;
pub mod net;
pub mod parallel;
pub mod path;
pub mod random;
pub mod round;
pub mod run;
pub mod scenario;
pub mod steward;
pub mod tenants;
pub mod trace;
pub mod work;
pub mod world;
