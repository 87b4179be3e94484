//! What VMs of a trace do, of which it tells only how busy they are.

use super::costs;

costs! {
    /// What VMs of a trace do.
    FLEET:

    /// What a request of a VM with users takes of its vCPU in the mean, exponentially distributed.
    REQUEST = 10_000_000.0 Nanos, "assumed, no table or figure tells it: a page of a web application";
    /// The pieces that all other VMs work off, each in the mean.
    PIECE = 100_000_000.0 Nanos, "assumed, no table or figure tells it: a batch job's item, much longer than a slice";
}
