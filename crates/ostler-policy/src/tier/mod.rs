//! How much local and far memory for each guest (Libra).
//!
//! A host with a slower tier of memory (CXL) must say who has the fast one. Libra looks at guests, and not at their pages: a guest presses on its memory or it doesn't, does IO or doesn't, and by that is in one of
//! three classes ([`class`](mod@class)). Local memory is given out class by class ([`proportion`](mod@proportion)); whoever is left over has far memory. Which of a guest's pages are where within that
//! is the guest's own affair: it is told, and knows them better.
//!
//! ```text
//! each period:                                                           (thesis, section 5.4.2)
//!   class of each guest  <- 1: IO and memory; 2: memory; 3: all others
//!   local memory         <- to guests from the first class to the last, FIFO
//!   all guests press     -> nobody is moved for another                  (section 5.4.1)
//!   pressure lifts       -> what is far comes back                       (section 5.5.2)
//! ```
//!
//! | thesis | here |
//! |---|---|
//! | L3 misses (`MEM_LOAD_RETIRED.L3_MISS`) above a threshold, or DAMON | [`Use::misses_per_s`](class::Use::misses_per_s), or [`Use::hot`](class::Use::hot) where nobody counts misses |
//! | IO interrupts | [`Use::io_per_s`](class::Use::io_per_s) |
//! | proportion, FIFO | [`Targets::local`](proportion::Targets::local), by [`Claim::came`](proportion::Claim::came) |
//! | high peak usage stage | [`Targets::all_press`](proportion::Targets::all_press) |
//! | the VMM remaps | [`moves`](mod@moves), of [`ranges`](mod@ranges) where they are known |
//!
//! Beyond the thesis:
//!
//! - **Who is below a threshold stays in its class for a while** (`hold`): a guest that pauses between bursts isn't moved away for each pause.
//! - **Moving costs**, so it is bounded ([`Settings::budget`](moves::Settings::budget) bytes a period), it isn't done for crumbs (`step`), and **nobody is moved for the sake of order**: within a class who has
//!   local memory keeps it, and FIFO says who has what nobody has. The thesis' FIFO is there too ([`Order::Fifo`](proportion::Order::Fifo)), to be compared with.
//! - **Who makes room is best-effort before latency-critical**, within a class. A guest that has come and does nothing yet looks like one that never will, and the host's reserve was had of who came last, whoever that was.
//! - **Who begins to press is heard at once**, within the rate and unless memory moves then; and what is needed comes near from the first step on ([`moves`](mod@moves)), not once all has gone that goes.
//! - **The peak rule forbids to take, not to give.** A host whose only guest presses is at its peak at all times; what is free is its to have even so.
//! - **Floors**: guests and tenants have some local memory whatever others need, at the peak too.
//! - **Files of guests in the host** ([`sizing`](crate::sizing)) are in local memory, too. They stand in the same line, by the order that [`LocalShares`](ostler_model::LocalShares) tells.
//!
//! What other systems do is in [`baselines`].

pub mod baselines;
pub mod class;
pub mod moves;
pub mod proportion;
pub mod ranges;
