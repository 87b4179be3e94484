//! The user space of the emulated host, and the initial roots made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Cpio, LAB_FOLDER, Recipe, step};
use crate::apt::Mirror;
use crate::child;
use crate::error::{IoContext, LabError, Result};
use crate::progress::Progress;

/// Size of the root disk. The file is sparse: what isn't used isn't stored.
const DISK_MIB: u32 = 2048;

/// Debian's dynamic loader, as a path in the tree.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// Where Debian keeps libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Fills `folder/root` with Debian.
pub fn bootstrap(
    recipe: &Recipe,
    mirror: &Mirror,
    folder: &Path,
    progress: Progress,
) -> Result<()> {
    step(
        folder,
        "root",
        "unpack Debian for the emulated host",
        progress,
        |partial, shown| {
            // mmdebstrap mounts /proc, /sys and more below the tree. In namespaces of its own these vanish with it, and so
            // do all its processes, however it ends: what is left of it can be removed without a second thought.
            let mut command = Command::new("unshare");
            command
                .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
                .arg("mmdebstrap")
                .args(["--mode=root", "--variant=minbase"])
                .arg(format!("--include={}", recipe.packages.join(",")))
                .args([
                    "--aptopt=Acquire::Languages \"none\"",
                    "--aptopt=APT::Install-Recommends \"false\"",
                ])
                .args(
                    ["man", "doc", "locale", "info"]
                        .map(|d| format!("--dpkgopt=path-exclude=/usr/share/{d}/*")),
                )
                .args(proxies().iter().map(|option| format!("--aptopt={option}")))
                .arg(recipe.suite)
                .arg(partial)
                .arg(mirror.line(recipe.suite));
            child::run(
                &mut command,
                "mmdebstrap",
                "check that this machine reaches its Debian mirror, then run the same command again: it goes on from here",
                shown,
            )
        },
    )?;
    Ok(())
}

/// The machine's proxies for apt, in apt's own notation: mmdebstrap starts from an empty configuration.
pub(super) fn proxies() -> Vec<String> {
    let Ok(dump) = child::output(
        Command::new("apt-config").arg("dump"),
        "apt-config dump",
        "",
    ) else {
        return Vec::new(); // then there is no configuration to honour
    };
    dump.lines()
        .filter(|l| {
            l.starts_with("Acquire::http") && l.contains("::Proxy") && !l.ends_with("\"\";")
        })
        .map(|l| l.trim_end_matches(';').to_owned())
        .collect()
}

/// Makes `host.cpio` and `guest.cpio` for the kernel in `folder`, of programs from the tree at `root`.
pub fn initial_roots(
    recipe: &Recipe,
    root: &Path,
    folder: &Path,
    progress: Progress,
) -> Result<()> {
    let modules = Modules::read(&folder.join("kernel"))?;
    step(
        folder,
        "host.cpio",
        "make the host's initial root",
        progress,
        |partial, _| {
            let mut cpio = skeleton(root)?;
            cpio.file("init", 0o755, recipe.host_initramfs.as_bytes());
            modules.add(&mut cpio, recipe.host_modules)?;
            cpio.write(partial)
        },
    )?;
    step(
        folder,
        "guest.cpio",
        "make the guests' initial root",
        progress,
        |partial, _| {
            // Its first program comes with each run, in a second archive.
            let mut cpio = skeleton(root)?;
            modules.add(&mut cpio, recipe.guest_modules)?;
            for dir in [
                "usr",
                "usr/bin",
                "usr/sbin",
                "usr/lib",
                LIBRARIES,
                "usr/lib64",
                "etc",
                "var",
                "var/log",
                "var/log/nginx",
            ] {
                cpio.folder(dir);
            }
            cpio.symlink("lib", "usr/lib").symlink("lib64", "usr/lib64");
            cpio.file(
                "etc/passwd",
                0o644,
                b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
            )
            .file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
            cpio.copy(LOADER, 0o755, &root.join(LOADER))?;
            let mut libraries = BTreeSet::new();
            for program in recipe.guest_programs {
                cpio.copy(program, 0o755, &root.join(program))?;
                libraries.append(&mut libraries_of(root, program)?);
            }
            for library in libraries {
                cpio.copy(
                    &format!("{LIBRARIES}/{library}"),
                    0o644,
                    &root.join(LIBRARIES).join(&library),
                )?;
            }
            cpio.write(partial)
        },
    )?;
    Ok(())
}

/// What every initial root has: busybox and mount points.
fn skeleton(root: &Path) -> Result<Cpio> {
    let mut cpio = Cpio::default();
    for dir in ["bin", "dev", "m", "mnt", "proc", "run", "sys", "tmp"] {
        cpio.folder(dir);
    }
    cpio.character_device("dev/console", 5, 1);
    cpio.copy("bin/busybox", 0o755, &root.join("usr/bin/busybox"))?;
    Ok(cpio)
}

/// The names of the libraries that a program in the tree is linked with, asked of the tree's own loader.
fn libraries_of(root: &Path, program: &str) -> Result<BTreeSet<String>> {
    let mut command = Command::new(root.join(LOADER));
    command
        .args(["--inhibit-cache", "--library-path"])
        .arg(root.join(LIBRARIES))
        .arg("--list")
        .arg(root.join(program));
    let listing = child::output(
        &mut command,
        "listing a program's libraries",
        "remove the image's folder and try again",
    )?;
    Ok(listing
        .lines()
        .filter_map(|line| line.split_once(" => "))
        .filter_map(|(_, path)| {
            Path::new(path.split(" (").next()?)
                .file_name()?
                .to_str()
                .map(str::to_owned)
        })
        .filter(|name| !name.starts_with("ld-linux"))
        .collect())
}

/// Kernel modules and what each depends on.
struct Modules {
    /// From a module's name to its file and the names it needs.
    known: BTreeMap<String, (PathBuf, Vec<String>)>,
}

impl Modules {
    fn read(kernel: &Path) -> Result<Modules> {
        let release =
            std::fs::read_to_string(kernel.join("release")).on("read", kernel.join("release"))?;
        let folder = kernel.join("tree/usr/lib/modules").join(&release);
        let base = kernel.join("tree");
        // kmod looks under /lib or /usr/lib, depending on its release.
        let link = base.join("lib");
        if std::fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink("usr/lib", &link).on("link", &link)?;
        }
        let mut command = Command::new("depmod");
        command.arg("--basedir").arg(&base).arg(&release);
        child::output(&mut command, "depmod", "install the package kmod")?;
        let list = folder.join("modules.dep");
        let text = std::fs::read_to_string(&list).on("read", &list)?;
        let known = text
            .lines()
            .filter_map(|line| {
                let (path, needs) = line.split_once(':')?;
                let needs = needs.split_whitespace().map(module_name).collect();
                Some((module_name(path), (folder.join(path), needs)))
            })
            .collect();
        Ok(Modules { known })
    }

    /// Adds modules and what they need under `m/`, and the order to load them in as `m/order`. A module that isn't there
    /// is built into the kernel.
    fn add(&self, cpio: &mut Cpio, wanted: &[&str]) -> Result<()> {
        let mut order: Vec<&str> = Vec::new();
        for name in wanted {
            self.visit(name, &mut order);
        }
        for name in &order {
            let (path, _) = &self.known[*name];
            let mut command = Command::new("xz");
            command.args(["--decompress", "--stdout"]).arg(path);
            let output = command.output().map_err(|source| LabError::Start {
                program: "xz".to_owned(),
                source,
            })?;
            if !output.status.success() {
                return Err(LabError::Incomplete {
                    what: format!("module {name}"),
                    tree: path.clone(),
                });
            }
            cpio.file(&format!("m/{name}.ko"), 0o644, &output.stdout);
        }
        cpio.file("m/order", 0o644, order.join("\n").as_bytes());
        Ok(())
    }

    fn visit<'a>(&'a self, name: &str, order: &mut Vec<&'a str>) {
        let Some((name, (_, needs))) = self.known.get_key_value(name) else {
            return;
        };
        if order.contains(&name.as_str()) {
            return;
        }
        for need in needs {
            self.visit(need, order);
        }
        order.push(name);
    }
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Puts kernel, modules and guest root into the tree and packs it as a disk.
pub fn pack(recipe: &Recipe, kernel: &str, folder: &Path, progress: Progress) -> Result<()> {
    let root = folder.join("root");
    step(
        folder,
        "root.ext4",
        "pack the host's disk",
        progress,
        |partial, shown| {
            let remedy =
                "check the free space, then run the same command again: it goes on from here";
            // Each of these only overwrites what it wrote before, so it may be done again after an interruption.
            let modules = root.join("usr/lib/modules");
            std::fs::create_dir_all(&modules).on("create", &modules)?;
            let mut copy = Command::new("cp");
            copy.arg("-a")
                .arg(folder.join("kernel/tree/usr/lib/modules").join(kernel))
                .arg(&modules);
            child::run(&mut copy, "copying the kernel's modules", remedy, shown)?;
            let lab = root.join(LAB_FOLDER);
            std::fs::create_dir_all(&lab).on("create", &lab)?;
            for (from, to) in [("kernel/vmlinuz", "vmlinuz"), ("guest.cpio", "guest.cpio")] {
                std::fs::copy(folder.join(from), lab.join(to)).on("copy", folder.join(from))?;
            }
            let mut mkfs = Command::new("mkfs.ext4");
            // No journal: the disk is always a snapshot that is thrown away.
            mkfs.args(["-q", "-F", "-O", "^has_journal", "-L", recipe.suite, "-d"])
                .arg(&root)
                .arg(partial);
            mkfs.arg(format!("{DISK_MIB}M"));
            child::run(&mut mkfs, "mkfs.ext4", remedy, shown)
        },
    )?;
    Ok(())
}

/// A command that runs a program of the tree with the tree's own loader and libraries, whatever this machine has.
pub fn command_of(root: &Path, program: &str) -> Command {
    let libraries = root.join(LIBRARIES);
    let mut command = Command::new(root.join(LOADER));
    command
        .args(["--inhibit-cache", "--library-path"])
        .arg(libraries)
        .arg(root.join(program));
    // A plugin or preload of this machine's QEMU or libc must not leak in.
    command
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD");
    command
}

/// What the tree's QEMU calls itself.
pub fn qemu_version(folder: &Path) -> Result<String> {
    let mut command = command_of(&folder.join("root"), crate::machine::QEMU);
    let text = child::output(
        command.arg("--version"),
        "asking the lab's QEMU for its version",
        "remove the image's folder and try again",
    )?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_after_what_they_need() {
        let module = |needs: &[&str]| {
            (
                PathBuf::new(),
                needs.iter().map(|&n| n.to_owned()).collect(),
            )
        };
        let known = BTreeMap::from([
            ("ext4".to_owned(), module(&["jbd2", "mbcache", "crc16"])),
            ("jbd2".to_owned(), module(&["crc16"])),
            ("mbcache".to_owned(), module(&[])),
            ("crc16".to_owned(), module(&[])),
        ]);
        let modules = Modules { known };
        let mut order = Vec::new();
        modules.visit("ext4", &mut order);
        modules.visit("built_in", &mut order);
        assert_eq!(order, ["crc16", "jbd2", "mbcache", "ext4"]);
        assert_eq!(module_name("kernel/arch/x86/kvm/kvm-amd.ko.xz"), "kvm_amd");
    }
}
