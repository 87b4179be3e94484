//! What a guest's rule says for layers that are on.

use toml::de::DeValue;

use super::error::{Errors, Problem};
use super::read as value;
use super::section::Section;
use super::{layers, rules};
use crate::{Bytes, Class, FilesWish, GuestTerms, Nanos, ServiceTime};

/// The most measurements of service times.
const SERVICE_TIMES_MAX: usize = 64;
const SIZE_MAX: Bytes = Bytes(1 << 50);

/// Reads what a rule says, of guests of a class where that is known.
pub(super) fn read(
    section: &mut Section<'_, '_>,
    errors: &mut Errors<'_>,
    class: Option<Class>,
) -> GuestTerms {
    let tenant = section.get(errors, "tenant", |toml| {
        let name = value::text("a tenant's name", "web")(toml)?;
        layers::check_tenant(&name)?;
        Ok(name)
    });
    let local_min = section.get(errors, "local_min", size(Bytes(0)));
    let priority = section.get(errors, "priority", value::boolean);
    let hints = section.get(errors, "hints", value::boolean);
    let cpus = section.get(errors, "cpus", value::cpus);
    let files = section.raw("files").is_some().then(|| {
        read_files(
            section.section(errors, "files", "`files` of [[guest]]"),
            errors,
        )
    });
    if class == Some(Class::Unmanaged) {
        for key in ["tenant", "local_min", "priority", "hints", "cpus", "files"] {
            if section.raw(key).is_some() {
                rules::says_nothing(section, errors, key);
            }
        }
    }
    if let (Some(Class::BestEffort), Some(cpus)) = (class, &cpus) {
        errors.at(
            cpus.span.clone(),
            Problem::new(
                "best-effort guests have the cores that are left, so `cpus` says nothing",
                "take `cpus` out, or make the guest latency-critical",
            ),
        );
    }
    GuestTerms {
        tenant: tenant.map(|tenant| tenant.value),
        local_min: local_min.map_or(Bytes(0), |size| size.value),
        priority: priority.is_some_and(|priority| priority.value),
        hints: hints.is_some_and(|hints| hints.value),
        cpus: cpus.map(|cpus| cpus.value),
        files: files.flatten(),
    }
}

fn size(least: Bytes) -> impl Fn(&DeValue<'_>) -> Result<Bytes, Problem> {
    value::size(least..=SIZE_MAX, "1GiB")
}

fn read_files(mut section: Section<'_, '_>, errors: &mut Errors<'_>) -> Option<FilesWish> {
    let span = value::duration(Nanos(1)..=Nanos::from_secs(3600), "1s");
    let response = section.get(errors, "response", span);
    let least = section.get(errors, "least", size(Bytes(0)));
    let most = section.get(errors, "most", size(Bytes(1)));
    let service = section.list(
        errors,
        "service",
        "write sizes and mean times, such as [[\"256MiB\", \"800ms\"], [\"1GiB\", \"300ms\"]]",
        read_service_time,
    );
    let mut lacks = |key: &'static str, remedy: &str| {
        if section.raw(key).is_none() {
            errors.at(
                section.span.clone(),
                Problem::new(format!("`files` says no `{key}`"), remedy),
            );
        }
    };
    lacks(
        "response",
        "add response = \"...\", the mean response time wanted of their tasks, such as \"1s\"",
    );
    lacks(
        "service",
        "add service = [[\"SIZE\", \"TIME\"], ...], how long a task takes alone by what its files have",
    );
    let key = section.key_span("service");
    section.finish(errors);
    let least = least.map_or(Bytes(0), |size| size.value);
    if let Some(most) = most.as_ref().filter(|most| most.value < least) {
        errors.at(
            most.span.clone(),
            Problem::new("`most` is below `least`", "raise `most`, or lower `least`"),
        );
    }
    let service = service?;
    if service.is_empty() || service.len() > SERVICE_TIMES_MAX {
        errors.at(
            key,
            Problem::new(
                format!("`service` has {} times", service.len()),
                format!("write 1 to {SERVICE_TIMES_MAX}"),
            ),
        );
    }
    for two in service.windows(2) {
        let [before, after] = two else { continue };
        if before.value.bytes >= after.value.bytes {
            errors.at(
                after.span.clone(),
                Problem::new(
                    "an item of `service` has no more memory than the one before it",
                    "write them by rising size",
                ),
            );
        }
    }
    Some(FilesWish {
        response: response?.value,
        least,
        most: most.map_or(SIZE_MAX, |size| size.value),
        service: service.into_iter().map(|time| time.value).collect(),
    })
}

fn read_service_time(toml: &DeValue<'_>) -> Result<ServiceTime, Problem> {
    let pair = match toml {
        DeValue::Array(items) if items.len() == 2 => items
            .first()
            .zip(items.last())
            .map(|(a, b)| (a.get_ref(), b.get_ref())),
        _ => None,
    };
    let Some((bytes, time)) = pair else {
        return Err(Problem::new(
            "must be a list of a size and a time",
            "write both, such as [\"256MiB\", \"800ms\"]",
        ));
    };
    Ok(ServiceTime {
        bytes: size(Bytes(0))(bytes)?,
        time: value::duration(Nanos(1)..=Nanos::from_secs(3600), "800ms")(time)?,
    })
}

/// The most that files may have, where it was said.
pub(super) fn most(wish: &FilesWish) -> Option<Bytes> {
    (wish.most != SIZE_MAX).then_some(wish.most)
}
