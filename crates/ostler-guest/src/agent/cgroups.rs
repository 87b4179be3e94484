//! Which cgroups to confine, and the cpuset controller they need for it.
//!
//! A cgroup's cpuset can't be undone by what runs in it, unlike a thread's affinity, and what starts later is confined from its first
//! instruction. The root cgroup has no cpuset, and the agent's own must keep the vCPUs it may need, so
//! the default is every populated cgroup below the root, descending only where the agent's own cgroup is in the way
//! (below `system.slice`, as a service).

use std::io;

use tracing::warn;

use super::kernel::Kernel;
use super::ledger::Ledger;
use crate::cpulist;

/// The most cgroups confined.
const TARGETS_MAX: usize = 1024;

/// The deepest the agent's own cgroup is looked for.
const DEPTH_MAX: usize = 16;

/// Which workloads to confine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All but the agent.
    All,
    /// These cgroups, by path below the cgroup root.
    Named(Vec<String>),
}

/// The cgroup v2 tree, where the cpuset controller can be had in it.
#[derive(Debug)]
pub struct Cgroups {
    root: String,
    /// Where we enabled cpuset for the children, outermost first.
    enabled: Vec<String>,
}

impl Cgroups {
    /// Finds the tree; `None` where there is none, or cpuset is bound to a version 1 hierarchy.
    pub fn find(kernel: &impl Kernel) -> Option<Self> {
        let mounts = kernel.read("/proc/self/mounts").ok()?;
        let root = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|fields| fields.get(2) == Some(&"cgroup2"))
            .map(|fields| fields[1].to_owned())?;
        has_word(
            &kernel.read(&format!("{root}/cgroup.controllers")).ok()?,
            "cpuset",
        )
        .then_some(Self {
            root,
            enabled: Vec::new(),
        })
    }

    /// The root cgroup's folder.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The cgroups of `scope` that exist now, cpuset enabled in each.
    pub fn targets(&mut self, kernel: &impl Kernel, scope: &Scope) -> io::Result<Vec<String>> {
        match scope {
            Scope::Named(names) => names.iter().map(|name| self.named(kernel, name)).collect(),
            Scope::All => {
                let mut targets = Vec::new();
                let own = own_cgroup(kernel);
                let mut folder = self.root.clone();
                for _ in 0..DEPTH_MAX {
                    self.enable(kernel, &folder)?;
                    let mut next = None;
                    for name in kernel.list(&folder)? {
                        let child = format!("{folder}/{name}");
                        let Ok(events) = kernel.read(&format!("{child}/cgroup.events")) else {
                            continue; // Not a cgroup, or gone.
                        };
                        let relative = &child[self.root.len()..];
                        if relative == own {
                            continue;
                        }
                        if own.starts_with(&format!("{relative}/")) {
                            next = Some(child);
                        } else if events.lines().any(|line| line == "populated 1")
                            && targets.len() < TARGETS_MAX
                        {
                            targets.push(child);
                        }
                    }
                    match next {
                        Some(child) => folder = child,
                        None => break,
                    }
                }
                Ok(targets)
            }
        }
    }

    fn named(&mut self, kernel: &impl Kernel, name: &str) -> io::Result<String> {
        let mut folder = self.root.clone();
        for part in name.split('/').filter(|part| !part.is_empty()) {
            if part == ".." {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            self.enable(kernel, &folder)?;
            folder = format!("{folder}/{part}");
        }
        if folder == self.root {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(folder)
    }

    /// Confines one cgroup; true if that changed anything. One that vanished meanwhile needs nothing.
    pub fn confine(
        kernel: &impl Kernel,
        ledger: &mut Ledger,
        cgroup: &str,
        vcpus: &[u32],
    ) -> io::Result<bool> {
        let path = format!("{cgroup}/cpuset.cpus");
        let current = match kernel.read(&path) {
            Ok(current) => current,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if cpulist::parse_list(&current).as_deref() == Some(vcpus) {
            return Ok(false);
        }
        ledger.write(kernel, &path, &current, &cpulist::format_list(vcpus))?;
        Ok(true)
    }

    /// Takes the controller away again where we gave it and nobody uses it; the count is of places where it stays.
    pub fn disable(&mut self, kernel: &impl Kernel) -> u32 {
        let mut left = 0;
        while let Some(folder) = self.enabled.pop() {
            let used = kernel.list(&folder).unwrap_or_default().iter().any(|name| {
                kernel
                    .read(&format!("{folder}/{name}/cpuset.cpus"))
                    .is_ok_and(|cpus| !cpus.trim().is_empty())
            });
            let control = format!("{folder}/cgroup.subtree_control");
            if used || kernel.write(&control, "-cpuset").is_err() {
                warn!(folder, "cpuset stays enabled: it is in use");
                left += 1;
            }
        }
        left
    }

    /// Whether the controller is enabled anywhere on our account.
    pub fn changed(&self) -> bool {
        !self.enabled.is_empty()
    }

    fn enable(&mut self, kernel: &impl Kernel, folder: &str) -> io::Result<()> {
        let control = format!("{folder}/cgroup.subtree_control");
        if has_word(&kernel.read(&control)?, "cpuset") {
            return Ok(());
        }
        kernel.write(&control, "+cpuset")?;
        self.enabled.push(folder.to_owned());
        Ok(())
    }
}

/// The agent's own cgroup, below the root; empty in the root itself.
fn own_cgroup(kernel: &impl Kernel) -> String {
    let text = kernel.read("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::"));
    own.unwrap_or_default().trim_end_matches('/').to_owned()
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|found| found == word)
}
