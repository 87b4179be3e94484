//! Machine time: a plugin for QEMU's TCG that owns the emulated host's clock.
//!
//! Under plain TCG a guest's clock is the real machine's. How long anything takes then depends on what else the machine
//! does, and a loop of 35 ms takes 75 ms under a neighbour. Here time is what the guest itself does: a core's time is the
//! number of instructions it has executed times a cost, and the machine's time is the furthest that any core has come. The
//! same program takes the same time, busy or not, on a laptop or a server; real time only decides how long one waits.
//!
//! ## How it works
//!
//! - **Counting.** Each translation block adds its instructions to its core's counter, inline. Once half a quantum has
//!   gathered, it calls us ([`machine::Machine::quantum`]).
//! - **Lockstep.** Cores run in threads of their own and would drift apart. A core that comes more than a quantum ahead of
//!   the slowest one waits ([`lockstep`]). The quantum bounds what one core can see of another's past or future; 10 us costs
//!   next to nothing. Cores that interrupt each other keep closer for a while, since what passes between them takes no longer than that.
//! - **Nobody is told less than anybody was told before** ([`machine::Machine::read`]): a core that asks for the time hears its own, or the latest
//!   that a guest has seen on whatever core.
//! - **Caches**, with `timing=caches`: what an access to memory costs is asked of a model of the machine's caches and memory
//!   ([`qemu::accesses`], and `machine/memory`).
//! - **Halted cores** hold nobody back. From the moment one is kicked (an interrupt, a piece of work) it does, at the time of
//!   the core that kicks it: until its thread has got a real core, the others can't run away from it. So the real machine's wake-up
//!   latency doesn't leak into the emulated one, nor does how far the others happen to be.
//! - **Timers** are fired by the cores' own threads when time comes to their deadline, never by QEMU's main loop at
//!   some real moment. When every core is halted, time skips to the next deadline. It stands still while a disk
//!   request is on its way: how long the real disk takes must not be told in the jumps of an idle machine.
//! - **QEMU's internals.** QEMU 10.0 has the hooks but no public way to set them: the clock's three slots in its table of
//!   accelerator functions, and the one for kicks. [`qemu::layout`] finds them by the machine code of QEMU's own exported
//!   functions and refuses to go on where anything differs from what it knows.
//! - **Cures.** Two faults of QEMU's TCG make guests of the emulated host die or hang; [`qemu::cure`] mends both in
//!   memory, and says so. A third kills a host that traces itself; [`qemu::stale`] looks out for it.
//! - **Real cores.** Who waits for another core spins, then gives way, then sleeps ([`machine`]); idle real cores are kept awake
//!   meanwhile ([`awake`]), threads ask for short turns ([`slices`]), and QEMU's main loop leaves the virtual clock's timers alone ([`qemu::mainloop`]).
//! - **Fused machines**, QEMUs of different instruction sets, are in lockstep with each other and interrupt each other at a set
//!   latency ([`fused`], [`doorbell`]). With caches, they share one model of what accesses cost.
//! - **Profiles** ([`profile`]): how many instructions went where in the machine's kernel, counted and not sampled.
//! - **The watchdog** ([`watch`]) tells what each core was waiting for when time stands still or timers aren't fired.
//!
//! ## What it doesn't do yet
//!
//! Interrupts between cores of one machine cost nothing of their own. A string instruction (`rep movs`) counts as few instructions however long it
//! is; with caches, each of its accesses counts. A VM exit costs what its host executes.
//!
//! May depend on: `machine/memory`. The lab loads the built library into the emulated host's QEMU.

pub mod awake;
pub mod block;
pub mod clock;
pub mod doorbell;
pub mod fused;
pub mod futex;
pub mod gate;
pub mod lockstep;
pub mod machine;
pub mod options;
pub mod profile;
pub mod qemu;
pub mod refusal;
pub mod slices;
pub mod threads;
pub mod wanting;
pub mod watch;
