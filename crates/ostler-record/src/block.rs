//! A second of periods as one compressed block, which can be read alone.

use std::sync::Arc;

use ostler_model::{Facts, Intent, Nanos, Outcome, Plan, Reason, Snapshot};
use serde::{Deserialize, Serialize, Serializer};

use crate::{Cost, Period, RecordError, Wall};

/// The largest block, before compression. 512 guests of 16 vCPUs make about 1.5 MB a period.
pub(crate) const BLOCK_BYTES_MAX: usize = 64 << 20;

/// zstd's fastest regular level: the frame over similar periods does most of the work.
const LEVEL: i32 = 1;

/// A period as a line of a block: what its block and contexts don't say already.
#[derive(Serialize, Deserialize)]
struct Line<S, P> {
    wall: Wall,
    now: Nanos,
    seed: u64,
    snapshot: S,
    /// The plan where it asks for something new.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<P>,
    generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    planned_at: Nanos,
    reasons: Arc<[Reason]>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    violations: Vec<String>,
    adopted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    cost: Cost,
}

/// Writes a value behind a shared pointer without copying it.
struct Shared<'a, T>(&'a T);

impl<T: Serialize> Serialize for Shared<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Encodes and decodes blocks, and single values; keeps its buffers.
pub(crate) struct Codec {
    compressor: zstd::bulk::Compressor<'static>,
    buffer: Vec<u8>,
}

impl Codec {
    pub fn new() -> std::io::Result<Codec> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
        // A flipped bit on disk is found when it is read, not when it is believed.
        compressor.include_checksum(true)?;
        Ok(Codec {
            compressor,
            buffer: Vec::new(),
        })
    }

    /// Periods of one run with the same contexts, as a block; and how many of their plans ask for something new after the first.
    pub fn encode(&mut self, periods: &[Period]) -> Result<Vec<u8>, RecordError> {
        self.buffer.clear();
        let mut last: Option<&Plan> = None;
        for period in periods {
            let changed = last.is_none_or(|last| !last.same_wishes(&period.plan));
            let line = Line {
                wall: period.wall,
                now: period.now,
                seed: period.seed,
                snapshot: Shared(&*period.snapshot),
                plan: changed.then_some(Shared(&*period.plan)),
                generation: period.plan.generation,
                parent: period.plan.parent,
                planned_at: period.plan.at,
                reasons: Arc::clone(&period.reasons),
                violations: period.violations.clone(),
                adopted: period.adopted,
                outcome: period.outcome.clone(),
                cost: period.cost,
            };
            serde_json::to_writer(&mut self.buffer, &line)
                .map_err(|error| damaged("a period", error))?;
            self.buffer.push(b'\n');
            last = Some(&period.plan);
        }
        self.compress()
    }

    /// A single value, compressed.
    pub fn encode_one<T: Serialize>(&mut self, value: &T) -> Result<Vec<u8>, RecordError> {
        self.buffer.clear();
        serde_json::to_writer(&mut self.buffer, value)
            .map_err(|error| damaged("a value", error))?;
        self.compress()
    }

    fn compress(&mut self) -> Result<Vec<u8>, RecordError> {
        if self.buffer.len() > BLOCK_BYTES_MAX {
            return Err(RecordError::TooLarge {
                bytes: self.buffer.len(),
                max: BLOCK_BYTES_MAX,
            });
        }
        self.compressor
            .compress(&self.buffer)
            .map_err(|error| damaged("a block", error))
    }
}

fn damaged(what: &str, why: impl std::fmt::Display) -> RecordError {
    RecordError::Damaged {
        what: what.to_owned(),
        why: why.to_string(),
    }
}

fn decompress(what: &str, body: &[u8]) -> Result<Vec<u8>, RecordError> {
    zstd::bulk::decompress(body, BLOCK_BYTES_MAX).map_err(|error| damaged(what, error))
}

/// Decodes a single value.
pub(crate) fn decode_one<T: serde::de::DeserializeOwned>(
    what: &str,
    body: &[u8],
) -> Result<T, RecordError> {
    serde_json::from_slice(&decompress(what, body)?).map_err(|error| damaged(what, error))
}

/// Decodes a block whose contexts are these.
pub(crate) fn decode(
    what: &str,
    body: &[u8],
    facts: &Arc<Facts>,
    intent: &Arc<Intent>,
) -> Result<Vec<Period>, RecordError> {
    let bytes = decompress(what, body)?;
    let mut periods: Vec<Period> = Vec::new();
    for line in bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        let line: Line<Snapshot, Plan> =
            serde_json::from_slice(line).map_err(|error| damaged(what, error))?;
        let plan = match (line.plan, periods.last()) {
            (Some(plan), _) => plan,
            (None, Some(last)) => Plan {
                generation: line.generation,
                parent: line.parent,
                at: line.planned_at,
                ..Plan::clone(&last.plan)
            },
            (None, None) => return Err(damaged(what, "its first period has no plan")),
        };
        periods.push(Period {
            wall: line.wall,
            facts: Arc::clone(facts),
            intent: Arc::clone(intent),
            snapshot: Arc::new(line.snapshot),
            before: None,
            now: line.now,
            seed: line.seed,
            plan: Arc::new(plan),
            reasons: line.reasons,
            violations: line.violations,
            adopted: line.adopted,
            outcome: line.outcome,
            cost: line.cost,
        });
    }
    Ok(periods)
}
