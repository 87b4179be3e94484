//! The scheduler for vCPUs on a real kernel: real threads of real processes, and events told by the test.
//!
//! Each test is skipped, with the reason, where nobody said that a scheduler may be tried (`OSTLER_TEST_SCHEDULER=1`), or the kernel
//! has no `sched_ext`. Times are those of the kernel's clock, so on an emulated host that lives on the wall's, whose cores stand still while the real ones do
//! something else, the tests of how soon something happens can fail without fault.

mod events;
mod life;
mod machine;
mod machines;
mod order;
mod probed;
mod shares;
mod stage;
