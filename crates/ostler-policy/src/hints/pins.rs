//! Which vCPUs stay in their cache group: see the essay in [`super`].

use ostler_model::{
    CpuId, CpuSet, HintsGuest, HintsScene, HintsSettings, HintsVcpu, MAX_CPUS, Nanos, PinDecision,
    PinRefusal, PinVerdict,
};

use super::{Ground, Known};
use crate::walk::Walk;

/// Arbitrates between wishes; keeps its buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    next: Vec<PinDecision>,
    /// Pins charged to each core, by number.
    charged: Vec<u32>,
    /// Guests that were granted cores of each group.
    sharers: Vec<u32>,
    /// Of each group: whether the guest at hand was granted cores of it.
    within: Vec<u32>,
    /// Pins of the guest at hand in each group.
    held: Vec<u32>,
    /// Who takes part, by place among all guests and among those that are known.
    taking: Vec<(usize, usize)>,
}

impl Arbiter {
    /// Turns the decisions before into those of now, for those of the guests that take part.
    pub(super) fn arbitrate(
        &mut self,
        (scene, taking): (&HintsScene<'_>, &[usize]),
        settings: &HintsSettings,
        ground: &Ground,
        known: &mut [Known],
        pins: &mut Vec<PinDecision>,
        now: Nanos,
    ) {
        self.charged.clear();
        self.charged.resize(MAX_CPUS as usize, 0);
        self.sharers.clear();
        self.sharers.resize(ground.cpus.len(), 0);
        self.next.clear();
        // Many guests are granted the same.
        let mut granted: Option<&CpuSet> = None;
        self.taking.clear();
        let mut them = Walk::new(known, |known| &known.guest);
        // Who has a pin keeps it, before anybody else is given one.
        for &at in taking {
            let guest = &scene.guests[at];
            let Some(found) = them.place(guest.guest) else {
                continue;
            };
            self.taking.push((at, found));
            if granted != Some(guest.granted) {
                granted = Some(guest.granted);
                let groups = ground.cpus.iter();
                self.within.clear();
                self.within
                    .extend(groups.map(|cpus| u32::from(!cpus.is_disjoint(guest.granted))));
            }
            for (sharers, within) in self.sharers.iter_mut().zip(&self.within) {
                *sharers += within;
            }
            for (vcpu, _) in (0..).zip(guest.vcpus).filter(|(_, vcpu)| vcpu.pin) {
                let kept = kept(pins, guest, vcpu).and_then(|(charged, since)| {
                    let cpus = within(ground, guest, charged)?;
                    self.charge(charged, settings)
                        .then_some((cpus, charged, since))
                });
                // Settled below, where it isn't kept.
                let verdict = kept.map_or(
                    PinVerdict::Refused(PinRefusal::RateLimited),
                    |(cpus, charged, since)| PinVerdict::Granted {
                        cpus,
                        charged,
                        since,
                    },
                );
                self.next.push(PinDecision {
                    guest: guest.guest.clone(),
                    vcpu,
                    verdict,
                });
            }
        }
        let mut next = std::mem::take(&mut self.next);
        let taking = std::mem::take(&mut self.taking);
        let mut from = 0;
        for &(guest, at) in &taking {
            let guest = &scene.guests[guest];
            let wishes = guest.vcpus.iter().filter(|vcpu| vcpu.pin).count();
            let own = &mut next[from..from + wishes];
            from += wishes;
            if !own.is_empty() {
                self.settle(guest, own, settings, ground, &mut known[at].granted, now);
            }
        }
        std::mem::swap(pins, &mut next);
        self.next = next;
        self.taking = taking;
    }

    /// Decides on a guest's wishes that aren't granted yet.
    fn settle(
        &mut self,
        guest: &HintsGuest<'_>,
        own: &mut [PinDecision],
        settings: &HintsSettings,
        ground: &Ground,
        granted: &mut Option<Nanos>,
        now: Nanos,
    ) {
        self.held.clear();
        self.held.resize(ground.cpus.len(), 0);
        for pin in own.iter() {
            if let PinVerdict::Granted { charged, .. } = pin.verdict
                && let Some((group, _)) = ground.of(charged)
            {
                self.held[group] += 1;
            }
        }
        let early = |then: Nanos| now.saturating_sub(then) < settings.interval;
        let mut left = if granted.is_some_and(early) {
            0
        } else {
            settings.grants_max
        };
        for pin in own {
            if matches!(pin.verdict, PinVerdict::Granted { .. }) {
                continue;
            }
            let vcpu = guest.vcpus[pin.vcpu as usize];
            pin.verdict = match self.judge(guest, vcpu, settings, ground, left) {
                Ok((cpus, charged)) => {
                    left -= 1;
                    *granted = Some(now);
                    PinVerdict::Granted {
                        cpus,
                        charged,
                        since: now,
                    }
                }
                Err(refusal) => PinVerdict::Refused(refusal),
            };
        }
    }

    fn judge(
        &mut self,
        guest: &HintsGuest<'_>,
        vcpu: HintsVcpu,
        settings: &HintsSettings,
        ground: &Ground,
        left: u32,
    ) -> Result<(CpuSet, CpuId), PinRefusal> {
        if guest.placed {
            return Err(PinRefusal::Placed);
        }
        let cpu = vcpu.cpu.ok_or(PinRefusal::Unplaced)?;
        let (group, _) = ground.of(cpu).ok_or(PinRefusal::Unplaced)?;
        let cpus = ground.cpus[group].intersection(guest.granted);
        let least = cpus.iter().min_by_key(|cpu| self.charged[cpu.0 as usize]);
        let charged = least.ok_or(PinRefusal::NotGranted)?;
        let places = u64::from(settings.pins_per_core_max) * u64::from(ground.cpus[group].len());
        let share = places.div_ceil(u64::from(self.sharers[group].max(1)));
        if u64::from(self.held[group]) >= share {
            return Err(PinRefusal::Share);
        }
        if left == 0 {
            return Err(PinRefusal::RateLimited);
        }
        if !self.charge(charged, settings) {
            return Err(PinRefusal::Crowded);
        }
        self.held[group] += 1;
        Ok((cpus, charged))
    }

    /// Charges a core, if its account isn't full.
    fn charge(&mut self, cpu: CpuId, settings: &HintsSettings) -> bool {
        let charged = &mut self.charged[cpu.0 as usize];
        let room = *charged < settings.pins_per_core_max;
        *charged += u32::from(room);
        room
    }
}

/// The core that a vCPU's pin is charged to, and since when, if it has one.
fn kept(pins: &[PinDecision], guest: &HintsGuest<'_>, vcpu: u32) -> Option<(CpuId, Nanos)> {
    let key = |pin: &PinDecision| pin.guest.cmp(guest.guest).then(pin.vcpu.cmp(&vcpu));
    let at = pins.binary_search_by(key).ok()?;
    match pins[at].verdict {
        PinVerdict::Granted { charged, since, .. } => Some((charged, since)),
        PinVerdict::Refused(_) => None,
    }
}

/// What a guest was granted of a core's group, if the core is still there and granted.
fn within(ground: &Ground, guest: &HintsGuest<'_>, charged: CpuId) -> Option<CpuSet> {
    let (group, _) = ground.of(charged)?;
    let granted = guest.granted.contains(charged) && !guest.placed;
    granted.then(|| ground.cpus[group].intersection(guest.granted))
}
