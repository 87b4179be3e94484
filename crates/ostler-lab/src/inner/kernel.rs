//! The kernel that this host and its guests run: the image's own, or one that came with the run.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::image::LAB_FOLDER;
use crate::program::INPUT;
use crate::share::KERNEL;

/// Where modules are looked for.
const MODULES: &str = "/usr/lib/modules";

/// Has modules found that came with the run.
pub fn prepare() -> anyhow::Result<()> {
    let brought = Path::new(INPUT).join(KERNEL).join("modules");
    let Ok(releases) = std::fs::read_dir(&brought) else {
        return Ok(()); // then it is the image's own
    };
    for release in releases.flatten() {
        let link = Path::new(MODULES).join(release.file_name());
        std::os::unix::fs::symlink(release.path(), &link)
            .with_context(|| format!("could not link {}", link.display()))?;
    }
    Ok(())
}

/// One of the kernel's files: what guests boot.
pub fn file(name: &str) -> PathBuf {
    let brought = Path::new(INPUT).join(KERNEL).join(name);
    if brought.exists() {
        return brought;
    }
    Path::new("/").join(LAB_FOLDER).join(name)
}
