//! Request-response times on guests' taps, read without any guest's help.
//!
//! BPF takes the times (`bpf/tap`, `bpf/core/flow.h`) into a histogram per tap; here they become percentiles per guest.

pub(crate) mod hist;
#[cfg(test)]
mod net_tests;
#[cfg(test)]
mod packet_tests;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use ostler_abi::bpf::HIST_BUCKETS;
use ostler_model::{GuestId, LatencyView, Nanos, TapView};

pub use window::Window;
use window::{HistMeter, Recent};

use crate::bpf::tap::TapBpf;

/// Watches the taps of all guests.
pub(crate) struct TapLatency {
    bpf: TapBpf,
    window: Window,
    /// By ifindex: a tap that is made anew under its old name has another.
    taps: BTreeMap<u32, HistMeter>,
    /// Taps that can't be watched, so that it is said once.
    refused: BTreeSet<u32>,
    guests: BTreeMap<GuestId, Recent>,
    /// ifindex of each tap name, looked up again now and then.
    indices: BTreeMap<String, (u32, Nanos)>,
}

/// How long an interface's number is relied on. A tap that was made anew is found after this time.
const INDEX_AGE_MAX: Nanos = Nanos::from_millis(1000);

impl TapLatency {
    pub(crate) fn new(bpf: TapBpf, window: Window) -> TapLatency {
        TapLatency {
            bpf,
            window,
            taps: BTreeMap::new(),
            refused: BTreeSet::new(),
            guests: BTreeMap::new(),
            indices: BTreeMap::new(),
        }
    }

    /// Begins to watch taps that came, and stops to watch those that went. `guests` are all guests with their taps.
    pub(crate) fn follow<'a>(
        &mut self,
        guests: impl Iterator<Item = (&'a GuestId, &'a [TapView])>,
        now: Nanos,
    ) {
        let mut ids = BTreeSet::new();
        let mut names = BTreeSet::new();
        let mut wanted = BTreeSet::new();
        for (id, taps) in guests {
            ids.insert(id.clone());
            for tap in taps {
                names.insert(tap.name.as_str());
                wanted.extend(self.index(&tap.name, now));
            }
        }
        self.indices.retain(|name, _| names.contains(name.as_str()));
        self.guests.retain(|id, _| ids.contains(id));
        self.refused.retain(|index| wanted.contains(index));
        let gone: Vec<u32> = self
            .taps
            .keys()
            .copied()
            .filter(|index| !wanted.contains(index))
            .collect();
        for index in gone {
            self.taps.remove(&index);
            self.bpf.unwatch(index);
        }
        for index in wanted {
            if self.taps.contains_key(&index) || self.refused.contains(&index) {
                continue;
            }
            match self.bpf.watch(index) {
                Ok(()) => {
                    self.taps.insert(index, HistMeter::new());
                }
                Err(error) => {
                    tracing::warn!(%error, "a tap's response times can't be read");
                    self.refused.insert(index);
                }
            }
        }
    }

    fn index(&mut self, name: &str, now: Nanos) -> Option<u32> {
        if let Some((index, at)) = self.indices.get(name)
            && now.saturating_sub(*at) < INDEX_AGE_MAX
        {
            return Some(*index);
        }
        let index = if_index(name)?;
        self.indices.insert(name.to_owned(), (index, now));
        Some(index)
    }

    /// A guest's response times in the window that ends now.
    pub(crate) fn view(
        &mut self,
        guest: &GuestId,
        taps: &[TapView],
        began: Nanos,
        now: Nanos,
    ) -> Option<LatencyView> {
        let mut counts = [0; HIST_BUCKETS];
        for tap in taps {
            let Some((index, _)) = self.indices.get(&tap.name) else {
                continue;
            };
            let (Some(meter), Some(samples)) = (self.taps.get_mut(index), self.bpf.samples(*index))
            else {
                continue;
            };
            if meter.is_new(samples) && self.bpf.counts(*index, &mut counts) {
                let grew = meter.advance(samples, &counts);
                let recent = self.guests.entry(guest.clone()).or_default();
                recent.add(began, now, grew);
            }
        }
        self.guests.get_mut(guest)?.view(self.window, now)
    }
}

fn if_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    crate::sys::if_index(&name)
}
