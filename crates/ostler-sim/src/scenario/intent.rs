//! What a policy's steward is told: what the lab would fill in, and the policy's own keys over it.

use ostler_model::config::{self, ConfigErrors};
use ostler_model::{Class, Facts, Intent};
use ostler_scenario::{Guest, Policy, Scenario, Wakeups, merge};
use toml::{Table, Value};

use crate::tenants::NIC;

/// A policy whose steward can't be told what it says.
#[derive(Debug, thiserror::Error)]
#[error(
    "the steward of policy `{policy}` refuses its configuration, which is the scenario's with the policy's own over it: {errors}"
)]
pub struct PolicyError {
    /// Which policy.
    pub policy: String,
    /// Everything that is wrong with it.
    pub errors: ConfigErrors,
}

/// What a policy's steward is told of a host; `None` where it has no steward.
pub fn intent(
    scenario: &Scenario,
    policy: &Policy,
    facts: &Facts,
) -> Result<Option<Intent>, PolicyError> {
    let Some(own) = &policy.steward else {
        return Ok(None);
    };
    let mut told = common(scenario);
    merge(&mut told, own);
    let text = told.to_string();
    let name = format!("{}, policy {}", scenario.name, policy.name);
    let config = config::parse(&text, &name, Some(facts)).map_err(|errors| PolicyError {
        policy: policy.name.clone(),
        errors,
    })?;
    Ok(Some(config.intent))
}

fn table<const N: usize>(pairs: [(&str, Value); N]) -> Table {
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

fn common(scenario: &Scenario) -> Table {
    let managed = Value::String(scenario.host.under_test.to_string());
    let nics = Value::Array(vec![Value::String(NIC.to_owned())]);
    let managed_guests = scenario.guests.iter();
    let mut guests: Vec<_> = managed_guests
        .filter(|guest| guest.class != Class::Unmanaged)
        .collect();
    // The first rule that matches counts: `web-*` must not have what `web-admin` and `web-admin-*` are.
    guests.sort_by_key(|guest| (guest.count > 1, std::cmp::Reverse(guest.name.len())));
    let rules = guests.into_iter().flat_map(rules).map(Value::Table);
    table([
        ("cores", Value::Table(table([("managed", managed)]))),
        ("network", Value::Table(table([("nics", nics)]))),
        ("guest", Value::Array(rules.collect())),
    ])
}

/// A guest's rule; where each of several stays on cores of its own, a rule for each.
fn rules(guest: &Guest) -> Vec<Table> {
    if guest.cpus.is_empty() {
        return vec![rule(guest)];
    }
    let each = guest.names().zip(&guest.cpus).map(|(name, cpus)| {
        let mut rule = rule(guest);
        rule.insert("name".to_owned(), Value::String(name));
        rule.insert("cpus".to_owned(), Value::String(cpus.to_string()));
        rule
    });
    each.collect()
}

fn rule(guest: &Guest) -> Table {
    // Several are numbered.
    let name = if guest.count == 1 {
        guest.name.clone()
    } else {
        format!("{}-*", guest.name)
    };
    let mut rule = table([
        ("name", Value::String(name)),
        ("class", Value::String(guest.class.to_string())),
    ]);
    if let Some(us) = guest.slo_p95_us {
        rule.insert("slo".to_owned(), Value::String(format!("{us}us")));
    }
    // Whose kernel goes by hints is to have them, where a policy gives any.
    if matches!(guest.wakeups, Wakeups::Pload | Wakeups::Cgsched) {
        rule.insert("hints".to_owned(), Value::Boolean(true));
    }
    rule
}
