//! The guests in the steward's care, with the class and the objective that the intent gives them.

use ostler_model::{Class, GuestRule, GuestView, Intent, Nanos, Snapshot};

/// A guest in the steward's care.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What was seen of it.
    pub view: &'a GuestView,
    /// Latency-critical or best-effort.
    pub class: Class,
    /// Its objective.
    pub slo: Option<Nanos>,
    /// The rule that says so, if one does.
    pub rule: Option<&'a GuestRule>,
}

/// The guests in the steward's care, in order of their ids, each once. Unmanaged guests are not among them.
#[derive(Clone, Debug)]
pub struct Roster<'a> {
    members: Vec<Member<'a>>,
    best_effort: usize,
    in_order: bool,
}

impl<'a> Roster<'a> {
    /// Classifies the guests of a snapshot.
    pub fn new(snapshot: &'a Snapshot, intent: &'a Intent) -> Roster<'a> {
        let mut members = Vec::with_capacity(snapshot.guests.len());
        let mut best_effort = 0;
        let mut in_order = true;
        let mut last: Option<&GuestView> = None;
        for view in &snapshot.guests {
            in_order &= last.is_none_or(|last| last.id < view.id);
            last = Some(view);
            let rule = intent.rule(view);
            let class = rule.map_or(intent.default_class, |rule| rule.class);
            let slo = rule.and_then(|rule| rule.slo);
            match class {
                Class::Unmanaged => continue,
                Class::BestEffort => best_effort += 1,
                Class::LatencyCritical => {}
            }
            members.push(Member {
                view,
                class,
                slo,
                rule,
            });
        }
        // A snapshot lists guests in order, each once; a decision must not hang on that.
        if !in_order {
            members.sort_by(|a: &Member<'_>, b| a.view.id.cmp(&b.view.id));
            members.dedup_by(|a, b| a.view.id == b.view.id);
            best_effort = members
                .iter()
                .filter(|member| member.class == Class::BestEffort)
                .count();
        }
        Roster {
            members,
            best_effort,
            in_order,
        }
    }

    /// Whether the snapshot lists its guests in order of id, each once, as it should.
    pub fn in_order(&self) -> bool {
        self.in_order
    }

    /// All of them, in order of id.
    pub fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The latency-critical ones, in order of id.
    pub fn latency_critical(&self) -> impl Iterator<Item = &Member<'a>> {
        self.of(Class::LatencyCritical)
    }

    /// The best-effort ones, in order of id.
    pub fn best_effort(&self) -> impl Iterator<Item = &Member<'a>> {
        self.of(Class::BestEffort)
    }

    /// How many are latency-critical.
    pub fn latency_critical_count(&self) -> usize {
        self.members.len() - self.best_effort
    }

    /// How many are best-effort.
    pub fn best_effort_count(&self) -> usize {
        self.best_effort
    }

    fn of(&self, class: Class) -> impl Iterator<Item = &Member<'a>> {
        self.members
            .iter()
            .filter(move |member| member.class == class)
    }
}
