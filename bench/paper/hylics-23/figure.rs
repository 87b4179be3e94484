//! Hylics, figure 23.

use anyhow::Result;

use crate::figure::{Case, Run};

#[expect(clippy::unnecessary_wraps, reason = "other figures can fail")]
pub fn cases(run: Run) -> Result<Vec<Case>> {
    Ok(crate::files::cases(2, run))
}
