//! Where each vCPU's time went, from /proc/stat.

use super::kernel::Kernel;

/// /proc/stat counts in units of 1/100 s on every architecture this runs on (USER_HZ).
pub const RESOLUTION_NS: u64 = 10_000_000;

/// One vCPU's time since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuTime {
    pub vcpu: u32,
    pub busy_ns: u64,
    pub steal_ns: u64,
}

/// All vCPUs that are online.
pub fn read(kernel: &impl Kernel) -> Vec<VcpuTime> {
    let text = kernel.read("/proc/stat").unwrap_or_default();
    text.lines().filter_map(parse_line).collect()
}

/// `cpu3 user nice system idle iowait irq softirq steal guest guest_nice`: busy is all that is neither idle nor steal. Guest time
/// is part of user time already.
fn parse_line(line: &str) -> Option<VcpuTime> {
    let mut words = line.split_whitespace();
    let vcpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let busy = [user, nice, system, irq, softirq]
        .iter()
        .fold(0_u64, |sum, &t| sum.saturating_add(t));
    Some(VcpuTime {
        vcpu,
        busy_ns: busy.saturating_mul(RESOLUTION_NS),
        steal_ns: steal.saturating_mul(RESOLUTION_NS),
    })
}
