//! What may each guest know of its host, and which of its wishes are met? The host's half of the hints layer (CPS, sections 4.3 and 5).
//!
//! | the paper | here |
//! |---|---|
//! | load degree of a pCPU (5.1) | [`LoadThreshold::degree`]: low with at most `0.5 * vCPUs / pCPUs` runnable vCPUs of others, by whole numbers |
//! | vCPUs of a pCPU share its load page (5.1) | [`VcpuHint::core`], the first of them |
//! | vCG ids, other for each VM (4.1) | a keyed permutation, `numbering` |
//! | `check_hints` and Pin (4.3) | [`Publisher::publish`]'s second half |
//!
//! The paper doesn't say on which side a core exactly at the threshold is. In its example the threshold is 1; if a core with one runnable vCPU
//! were of high load, the degree would be idleness, which the section turns down. So it is low.
//!
//! **A guest doesn't stand in its own way.** The paper counts all vCPUs on a core, and tells of each change at once. Told a tenth of a second later, a
//! vCPU that ran as the host looked would pass for one on a busy core, made so by itself, until the host looks again. So a guest's own vCPUs don't count; what they do on
//! a core the guest knows itself, and sooner, as it is told which are there together (`bpf/core/hints.h`).
//!
//! **What a guest is shown changes at most once in an interval**, however often its vCPUs move: nobody reads another guest's bursts from it. The
//! rows that it was shown hold until then. A guest that isn't opted in is shown nothing.
//!
//! **Pins.** The paper binds a vCPU to its cache group, and refuses when several are bound there. Here each grant is charged to one
//! core's account, the least filled of those that the guest was granted in the group; a core whose account is full takes no more. A guest has
//! no more than its share of a group, by number of guests that were granted cores of it, so that who asks first doesn't have all. A grant holds for
//! as long as it is asked for and the cores are granted; it is taken back at once when they aren't. A vCPU that has a core of its own
//! already needs none: an affinity has one owner.
//!
//! Cost: O(vCPUs + guests * groups). Nothing is allocated while guests stay the same.

mod numbering;
mod pins;

use ostler_model::{
    Cpu, CpuId, CpuSet, GuestHints, GuestId, HINT_VCPUS_MAX, HintsGuest, HintsPlan, HintsScene,
    HintsSettings, HintsVcpu, LoadDegree, LoadThreshold, MAX_CPUS, Nanos, PinGrant, VcpuHint,
    VirtualGroup,
};

/// What is remembered of a guest that takes part.
#[derive(Clone, Debug)]
struct Known {
    guest: GuestId,
    /// Each physical group's number.
    order: Vec<u16>,
    /// When it was last granted a pin.
    granted: Option<Nanos>,
}

/// What a guest itself has on a core.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// The first of its vCPUs there.
    first: Option<u16>,
    runnable: u32,
}

/// The host's cores by cache group.
#[derive(Clone, Debug, Default)]
struct Ground {
    /// Names of groups, in order.
    names: Vec<CpuId>,
    cpus: Vec<CpuSet>,
    /// Of each CPU by number, its group's place in `names` and its runnable vCPUs.
    of: Vec<Option<(usize, Option<u32>)>>,
    /// The host that this is of.
    of_cpus: Vec<Cpu>,
}

/// Publishes hints, one decision after the other.
#[derive(Clone, Debug, Default)]
pub struct Publisher {
    plan: HintsPlan,
    key: [u8; 32],
    known: Vec<Known>,
    ground: Ground,
    pins: pins::Arbiter,
    rows: Vec<VcpuHint>,
    /// By CPU by number, of the guest that is looked at.
    own: Vec<Own>,
    /// Who takes part, by place among all guests.
    taking: Vec<usize>,
}

impl Publisher {
    /// Takes up where another publisher left: what it had published, and when it granted guests pins.
    pub fn resume(&mut self, plan: Option<&HintsPlan>, granted: &[PinGrant]) {
        match plan {
            Some(plan) => self.plan.clone_from(plan),
            None => self.plan = HintsPlan::default(),
        }
        self.known.iter_mut().for_each(|known| known.granted = None);
        for grant in granted {
            let at = self.known(&grant.guest);
            self.known[at].granted = Some(grant.at);
        }
    }

    /// What was published last.
    pub fn plan(&self) -> &HintsPlan {
        &self.plan
    }

    /// When guests were last granted a pin, in order of guest.
    pub fn granted(&self) -> impl Iterator<Item = (&GuestId, Nanos)> {
        let known = self.known.iter();
        known.filter_map(|known| Some((&known.guest, known.granted?)))
    }

    /// The place of a guest among those that are known.
    fn known(&mut self, id: &GuestId) -> usize {
        match self.known.binary_search_by(|known| known.guest.cmp(id)) {
            Ok(at) => at,
            Err(at) => {
                let known = Known {
                    guest: id.clone(),
                    order: Vec::new(),
                    granted: None,
                };
                self.known.insert(at, known);
                at
            }
        }
    }

    /// What each guest is to be shown from `now` on, and what becomes of what was asked.
    pub fn publish(
        &mut self,
        scene: &HintsScene<'_>,
        settings: &HintsSettings,
        now: Nanos,
    ) -> &HintsPlan {
        self.ground.survey(scene);
        let counted = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.plan.threshold = LoadThreshold {
            vcpus: counted(scene.guests.iter().map(|guest| guest.vcpus.len()).sum()),
            cpus: counted(scene.topology.cpus.len()),
        };
        let domain = numbering::domain(self.ground.names.len());
        let mut taking = std::mem::take(&mut self.taking);
        taking.clear();
        let shown = |(_, guest): &(usize, &HintsGuest<'_>)| domain.is_some() && shown(guest);
        let guests = scene.guests.iter().enumerate().filter(shown);
        taking.extend(guests.map(|(at, _)| at));
        {
            let mut takes_part = taking_part(scene, &taking);
            self.plan.guests.retain(|hints| takes_part(&hints.guest));
            let mut takes_part = taking_part(scene, &taking);
            self.known.retain(|known| takes_part(&known.guest));
        }
        if self.key != settings.key {
            self.key = settings.key;
            self.known.iter_mut().for_each(|known| known.order.clear());
        }
        if let Some(domain) = domain {
            for (nth, &guest) in taking.iter().enumerate() {
                self.show(nth, &scene.guests[guest], settings, domain, now);
            }
        }
        self.pins.arbitrate(
            (scene, &taking),
            settings,
            &self.ground,
            &mut self.known,
            &mut self.plan.pins,
            now,
        );
        self.taking = taking;
        &self.plan
    }

    /// Shows a guest what it may know; it is the nth that takes part, and most of the time the nth that did.
    fn show(
        &mut self,
        nth: usize,
        guest: &HintsGuest<'_>,
        settings: &HintsSettings,
        domain: u16,
        now: Nanos,
    ) {
        let id = guest.guest;
        let at = match self.known.get(nth) {
            Some(known) if known.guest == *id => nth,
            _ => self.known(id),
        };
        let order = &mut self.known[at].order;
        let shown = &self.plan.guests;
        let at = match shown.get(nth) {
            Some(hints) if hints.guest == *id => Ok(nth),
            _ => shown.binary_search_by(|hints| hints.guest.cmp(id)),
        };
        if let Ok(at) = at
            && now.saturating_sub(self.plan.guests[at].since) < settings.interval
        {
            return;
        }
        if order.len() != usize::from(domain) {
            numbering::draw(&self.key, id, domain, order);
        }
        let (ground, threshold) = (&self.ground, self.plan.threshold);
        count_own(&mut self.own, guest.vcpus);
        let own = &self.own;
        self.rows.clear();
        let rows = guest.vcpus.iter();
        self.rows
            .extend(rows.map(|vcpu| row((ground, own), threshold, order, vcpu)));
        match at {
            Ok(at) => {
                let hints = &mut self.plan.guests[at];
                if hints.groups != domain || hints.vcpus != self.rows {
                    hints.groups = domain;
                    hints.vcpus.clone_from(&self.rows);
                    hints.since = now;
                }
            }
            Err(at) => {
                let hints = GuestHints {
                    guest: id.clone(),
                    since: now,
                    groups: domain,
                    vcpus: self.rows.clone(),
                };
                self.plan.guests.insert(at, hints);
            }
        }
    }
}

/// Whether a guest takes part, of guests that are asked for in order of id.
fn taking_part<'a>(
    scene: &'a HintsScene<'_>,
    taking: &'a [usize],
) -> impl FnMut(&GuestId) -> bool + 'a {
    let mut left = taking.iter().peekable();
    move |id| {
        let before = |at: &&usize| *scene.guests[**at].guest < *id;
        while left.next_if(before).is_some() {}
        left.next_if(|at| scene.guests[**at].guest == id).is_some()
    }
}

/// Whether a guest is shown anything.
fn shown(guest: &HintsGuest<'_>) -> bool {
    guest.opted_in && guest.vcpus.len() <= HINT_VCPUS_MAX
}

/// Counts what a guest itself has on the cores that its vCPUs are on; what is told of others is of guests before.
fn count_own(own: &mut Vec<Own>, vcpus: &[HintsVcpu]) {
    own.resize(MAX_CPUS as usize, Own::default());
    let at = |vcpu: &HintsVcpu| vcpu.cpu.map_or(usize::MAX, |cpu| cpu.0 as usize);
    for vcpu in vcpus {
        if let Some(own) = own.get_mut(at(vcpu)) {
            *own = Own::default();
        }
    }
    for (nth, vcpu) in (0..).zip(vcpus) {
        if let Some(own) = own.get_mut(at(vcpu)) {
            own.first.get_or_insert(nth);
            own.runnable += u32::from(vcpu.runnable);
        }
    }
}

fn row(
    (ground, own): (&Ground, &[Own]),
    threshold: LoadThreshold,
    order: &[u16],
    vcpu: &HintsVcpu,
) -> VcpuHint {
    let found = vcpu.cpu.and_then(|cpu| Some((cpu, ground.of(cpu)?)));
    let Some((cpu, (group, runnable))) = found else {
        return VcpuHint::default();
    };
    let own = own.get(cpu.0 as usize).copied().unwrap_or_default();
    let others = runnable.map(|runnable| runnable.saturating_sub(own.runnable));
    VcpuHint {
        group: order.get(group).copied().map(VirtualGroup),
        core: own.first,
        load: others.map_or(LoadDegree::High, |others| threshold.degree(others)),
    }
}

impl Ground {
    fn survey(&mut self, scene: &HintsScene<'_>) {
        if self.of_cpus != scene.topology.cpus {
            self.learn(&scene.topology.cpus);
        }
        for (at, cpu) in self.of_cpus.iter().enumerate() {
            if let Some(Some((_, runnable))) = self.of.get_mut(cpu.id.0 as usize) {
                *runnable = scene.runnable.get(at).copied();
            }
        }
    }

    /// Learns which cores share a cache.
    fn learn(&mut self, cpus: &[Cpu]) {
        self.of_cpus.clear();
        self.of_cpus.extend_from_slice(cpus);
        self.names.clear();
        self.names.extend(cpus.iter().map(|cpu| cpu.cache_group));
        self.names.sort_unstable();
        self.names.dedup();
        self.cpus.clear();
        self.cpus.resize(self.names.len(), CpuSet::EMPTY);
        self.of.clear();
        self.of.resize(MAX_CPUS as usize, None);
        for cpu in cpus {
            let group = self.names.binary_search(&cpu.cache_group);
            if let (Some(of), Ok(group)) = (self.of.get_mut(cpu.id.0 as usize), group) {
                *of = Some((group, None));
                self.cpus[group].insert(cpu.id);
            }
        }
    }

    /// A core's group and runnable vCPUs; `None` when it isn't there.
    fn of(&self, cpu: CpuId) -> Option<(usize, Option<u32>)> {
        *self.of.get(cpu.0 as usize)?
    }
}
