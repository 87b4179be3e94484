//! A table of the configuration while it is read: remembers which keys were asked for, so that any other is an error.

use std::ops::Range;

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Errors, Problem};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub value: T,
    pub span: Range<usize>,
}

/// A table while it is read.
pub(super) struct Section<'t, 'i> {
    /// As an operator would name it: `[partition]`, `[[guest]]`.
    name: String,
    table: Option<&'t DeTable<'i>>,
    /// Where the table's header stands.
    pub span: Range<usize>,
    asked: Vec<&'static str>,
}

impl<'t, 'i> Section<'t, 'i> {
    pub fn new(name: impl Into<String>, table: &'t DeTable<'i>, span: Range<usize>) -> Self {
        Section {
            name: name.into(),
            table: Some(table),
            span,
            asked: Vec::new(),
        }
    }

    /// The raw value of a key, which counts as asked for.
    pub fn raw(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.asked.push(key);
        self.table?.get(key)
    }

    /// The value of a key, read by `read`. A value that can't be read is reported and counts as absent.
    pub fn get<T>(
        &mut self,
        errors: &mut Errors<'_>,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Problem>,
    ) -> Option<Located<T>> {
        let raw = self.raw(key)?;
        match read(raw.get_ref()) {
            Ok(value) => Some(Located {
                value,
                span: raw.span(),
            }),
            Err(problem) => {
                let what = format!("`{key}` {}", problem.what);
                errors.at(raw.span(), Problem::new(what, problem.remedy));
                None
            }
        }
    }

    /// The items of an array under a key, each read by `read`.
    pub fn list<T>(
        &mut self,
        errors: &mut Errors<'_>,
        key: &'static str,
        remedy: &str,
        read: impl Fn(&DeValue<'_>) -> Result<T, Problem>,
    ) -> Option<Vec<Located<T>>> {
        let raw = self.raw(key)?;
        let DeValue::Array(items) = raw.get_ref() else {
            let what = format!(
                "`{key}` must be a list, not {}",
                super::read::kind(raw.get_ref())
            );
            errors.at(raw.span(), Problem::new(what, remedy));
            return None;
        };
        let mut out = Vec::new();
        for item in items {
            match read(item.get_ref()) {
                Ok(value) => out.push(Located {
                    value,
                    span: item.span(),
                }),
                Err(problem) => errors.at(
                    item.span(),
                    Problem::new(
                        format!("an item of `{key}` {}", problem.what),
                        problem.remedy,
                    ),
                ),
            }
        }
        Some(out)
    }

    /// A table under a key; an empty one where there is none.
    pub fn section(
        &mut self,
        errors: &mut Errors<'_>,
        key: &'static str,
        name: &str,
    ) -> Section<'t, 'i> {
        let absent = Section {
            name: name.to_owned(),
            table: None,
            span: self.span.clone(),
            asked: Vec::new(),
        };
        match self.raw(key) {
            None => absent,
            Some(raw) => match raw.get_ref() {
                DeValue::Table(table) => Section::new(name, table, raw.span()),
                other => {
                    let what = format!("`{key}` must be a table, not {}", super::read::kind(other));
                    errors.at(
                        raw.span(),
                        Problem::new(what, format!("write it as a section, {name}")),
                    );
                    absent
                }
            },
        }
    }

    /// Where a key itself stands.
    pub fn key_span(&self, key: &str) -> Range<usize> {
        self.table
            .and_then(|table| table.get_key_value(key))
            .map_or_else(|| self.span.clone(), |(key, _)| key.span())
    }

    /// Reports every key that nobody asked for.
    pub fn finish(self, errors: &mut Errors<'_>) {
        let Some(table) = self.table else {
            return;
        };
        for (key, _) in table {
            let name: &str = key.get_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let remedy = match nearest(name, &self.asked) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", self.asked.join(", ")),
            };
            errors.at(
                key.span(),
                Problem::new(
                    format!("`{}` is not known in {}", name.escape_debug(), self.name),
                    remedy,
                ),
            );
        }
    }
}

/// The candidate that differs from `name` by the fewest single-character edits, if by few enough to be a slip.
pub(super) fn nearest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    // A key far longer than any candidate is no slip, and would make the distance dear.
    if name.len() > 64 {
        return None;
    }
    candidates
        .iter()
        .map(|&candidate| (distance(name, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= 1.max(candidate.chars().count() / 3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Single-character insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let substitute = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitute.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}
