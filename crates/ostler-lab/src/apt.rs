//! The Debian mirror and keyring that this machine already uses, from its apt configuration. The lab's own repository
//! names no mirror: whoever runs it has chosen one.

use std::path::{Path, PathBuf};

use crate::error::{LabError, Result};

/// A mirror of the Debian archive and the keyring that signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Base address, as in the machine's sources.
    pub uri: String,
    /// Keyring file for `signed-by`.
    pub keyring: PathBuf,
}

/// Debian's own keyring, used where an entry names none. Debian 12 and 13 both ship one with the keys of 13.
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
    enabled: bool,
    binary: bool,
}

impl Mirror {
    /// The mirror that `apt` under `etc_apt` (usually `/etc/apt`) uses for the suite `codename`.
    pub fn find(etc_apt: &Path, codename: &str) -> Result<Mirror> {
        let mut files = vec![etc_apt.join("sources.list")];
        let mut parts: Vec<_> = std::fs::read_dir(etc_apt.join("sources.list.d"))
            .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        parts.sort();
        files.append(&mut parts);
        for file in files {
            let Ok(text) = std::fs::read_to_string(&file) else {
                continue;
            };
            let entries = if file.extension().is_some_and(|e| e == "sources") {
                parse_deb822(&text)
            } else {
                parse_one_line(&text)
            };
            if let Some(mirror) = entries.iter().find_map(|entry| entry.mirror_for(codename)) {
                return Ok(mirror);
            }
        }
        Err(LabError::NoMirror {
            searched: etc_apt.display().to_string(),
            suite: codename.to_owned(),
        })
    }

    /// The mirror of the machine we run on.
    pub fn of_this_machine() -> Result<Mirror> {
        let codename = std::fs::read_to_string("/etc/os-release")
            .ok()
            .and_then(|text| {
                text.lines()
                    .find_map(|l| l.strip_prefix("VERSION_CODENAME="))
                    .map(|v| v.trim_matches('"').to_owned())
            })
            .unwrap_or_else(|| "stable".to_owned());
        let etc_apt = Path::new("/etc/apt");
        Mirror::find(etc_apt, &codename).or_else(|e| Mirror::find(etc_apt, "stable").map_err(|_| e))
    }

    /// A line for `sources.list`.
    pub fn line(&self, suite: &str) -> String {
        format!(
            "deb [signed-by={}] {} {suite} main",
            self.keyring.display(),
            self.uri
        )
    }
}

impl Entry {
    fn mirror_for(&self, codename: &str) -> Option<Mirror> {
        let fits = self.enabled
            && self.binary
            && self.suites.iter().any(|s| s == codename)
            && self.components.iter().any(|c| c == "main");
        let uri = self.uris.first().filter(|_| fits)?;
        let keyring = self
            .signed_by
            .as_deref()
            .filter(|path| path.starts_with('/'))
            .unwrap_or(DEBIAN_KEYRING);
        Some(Mirror {
            uri: uri.trim_end_matches('/').to_owned(),
            keyring: keyring.into(),
        })
    }
}

/// The one-line style: `deb [signed-by=K] URI SUITE COMPONENT...`.
fn parse_one_line(text: &str) -> Vec<Entry> {
    text.lines()
        .filter_map(|line| {
            let line = line.split('#').next().unwrap_or("").trim();
            let rest = line.strip_prefix("deb")?;
            if !rest.starts_with([' ', '\t']) {
                return None;
            }
            let rest = rest.trim();
            let (options, rest) = match rest.strip_prefix('[') {
                Some(opened) => opened.split_once(']')?,
                None => ("", rest),
            };
            let mut words = rest.split_whitespace().map(str::to_owned);
            Some(Entry {
                uris: vec![words.next()?],
                suites: vec![words.next()?],
                components: words.collect(),
                signed_by: options
                    .split_whitespace()
                    .find_map(|o| o.strip_prefix("signed-by="))
                    .map(str::to_owned),
                enabled: true,
                binary: true,
            })
        })
        .collect()
}

/// The deb822 style: stanzas of `Field: values`, continued by indented lines.
fn parse_deb822(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if !fields.is_empty() {
                entries.push(entry_of(&fields));
                fields.clear();
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn entry_of(fields: &[(String, String)]) -> Entry {
    let words = |name: &str| -> Vec<String> {
        fields
            .iter()
            .filter(|(n, _)| n == name)
            .flat_map(|(_, v)| v.split_whitespace().map(str::to_owned))
            .collect()
    };
    Entry {
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        signed_by: words("signed-by").into_iter().next(),
        enabled: !words("enabled").iter().any(|v| v == "no" || v == "false"),
        binary: words("types").iter().any(|t| t == "deb"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(files: &[(&str, &str)], codename: &str) -> Result<Mirror> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(dir.path().join("sources.list.d")).expect("sources.list.d");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("a sources file");
        }
        Mirror::find(dir.path(), codename)
    }

    #[test]
    fn one_line_sources_are_read() {
        let text = "# deb http://commented.example/debian trixie main\n\
                    deb-src http://src.example/debian trixie main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian/ trixie main contrib # the mirror\n";
        let mirror = find(&[("sources.list", text)], "trixie").expect("a mirror");
        assert_eq!(
            mirror,
            Mirror {
                uri: "http://m.example/debian".into(),
                keyring: "/k.gpg".into()
            }
        );
    }

    #[test]
    fn deb822_sources_are_read() {
        let text = "Types: deb deb-src\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n\
                    Types: deb\n# a comment\nURIs: http://m.example/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\n";
        let mirror =
            find(&[("sources.list.d/debian.sources", text)], "bookworm").expect("a mirror");
        assert_eq!(mirror.uri, "http://m.example/debian");
        assert_eq!(mirror.keyring, Path::new(DEBIAN_KEYRING));
    }

    #[test]
    fn foreign_archives_are_passed_over() {
        let text = "deb https://vendor.example/apt stable-vendor main\n";
        let error = find(&[("sources.list", text)], "trixie").expect_err("no Debian mirror here");
        assert!(error.to_string().contains("`trixie`"), "{error}");
    }
}
