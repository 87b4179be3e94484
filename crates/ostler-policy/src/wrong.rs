//! Whether what a layer was given can be worked on at all: every figure is one, and everything that is named is there.

/// One of a layer's things by its place in the list of them.
pub type Index = u32;

/// The most of each kind of things that a layer takes.
pub const COUNT_MAX: usize = 1 << 16;

/// Input that no answer can be found from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Wrong {
    /// More than can be.
    #[error("{count} {what} are too many: up to {most} can be decided about; divide the host")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        most: usize,
    },
    /// A number that isn't one of what it names.
    #[error("{what} {at} names {named} {index}, and there are {count}")]
    Unknown {
        /// What names it.
        what: &'static str,
        /// Which of these.
        at: usize,
        /// What is named.
        named: &'static str,
        /// Its number.
        index: Index,
        /// How many there are.
        count: usize,
    },
    /// A figure out of its range, or none.
    #[error(
        "{what} {at} has {value} as {figure}, which is to be {range}; look at where it was measured"
    )]
    Figure {
        /// Whose it is.
        what: &'static str,
        /// Which of these.
        at: usize,
        /// Which figure.
        figure: &'static str,
        /// What it is.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
}

/// What a figure may be.
#[derive(Clone, Copy)]
pub(crate) enum Range {
    /// From 0 to 1.
    Share,
    /// The same, but not 0.
    PositiveShare,
    /// Above 0.
    Positive,
    /// 0 or more.
    Amount,
}

/// Figures beyond this are no measurements, and sums of them would leave what a float can tell apart.
const LARGE: f64 = 1e12;

pub(crate) fn figure(
    what: &'static str,
    at: usize,
    figure: &'static str,
    value: f64,
    range: Range,
) -> Result<(), Wrong> {
    let (fine, range) = match range {
        Range::Share => ((0.0..=1.0).contains(&value), "from 0 to 1"),
        Range::PositiveShare => ((1e-6..=1.0).contains(&value), "from a millionth to 1"),
        Range::Positive => ((1e-6..=LARGE).contains(&value), "above zero, and finite"),
        Range::Amount => ((0.0..=LARGE).contains(&value), "zero or more, and finite"),
    };
    if fine {
        return Ok(());
    }
    Err(Wrong::Figure {
        what,
        at,
        figure,
        value,
        range,
    })
}

pub(crate) fn within(what: &'static str, count: usize, most: usize) -> Result<(), Wrong> {
    if count <= most {
        return Ok(());
    }
    Err(Wrong::TooMany { what, count, most })
}

pub(crate) fn named(
    what: &'static str,
    at: usize,
    named: &'static str,
    index: Index,
    count: usize,
) -> Result<(), Wrong> {
    if (index as usize) < count {
        return Ok(());
    }
    Err(Wrong::Unknown {
        what,
        at,
        named,
        index,
        count,
    })
}
