//! The repository's own files, found without git: the sources may have come as an archive, git may not be installed, and
//! it refuses a checkout that belongs to another user than the one who looks (root, as in many a container).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Files below `root` whose names end with one of `extensions`, in order of path. Left out are hidden folders and `target`,
/// where builds go.
pub fn with_extension(root: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let unreadable = || format!("could not list {}", folder.display());
        for entry in std::fs::read_dir(&folder).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            let name = entry.file_name();
            let path = entry.path();
            // A link is not followed: it may lead out, or in circles.
            if entry.file_type().with_context(unreadable)?.is_dir() {
                if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|is| extensions.iter().any(|wanted| is == *wanted))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_sources_and_leaves_out_what_builds_made() {
        let dir = std::env::temp_dir().join(format!("ostler-sources-{}", std::process::id()));
        for file in ["a.c", "b/c.h", "b/c.rs", "b/target/no.c", ".git/no.c"] {
            let path = dir.join(file);
            std::fs::create_dir_all(path.parent().expect("below dir")).expect("a folder");
            std::fs::write(path, "").expect("a file");
        }
        std::os::unix::fs::symlink(&dir, dir.join("b/circle")).expect("a link");
        let found = with_extension(&dir, &["c", "h"]).expect("readable");
        std::fs::remove_dir_all(&dir).expect("removable");
        assert_eq!(found, [dir.join("a.c"), dir.join("b/c.h")]);
    }

    #[test]
    fn finds_this_repository() {
        let root = crate::run::root();
        let found = with_extension(root, &["c", "rs"]).expect("readable");
        assert!(found.contains(&root.join("bpf/tap/tap.bpf.c")));
        assert!(found.contains(&root.join("xtask/src/sources.rs")));
    }
}
