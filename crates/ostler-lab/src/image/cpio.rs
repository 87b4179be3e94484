//! An archive in the "newc" format of cpio, which the kernel unpacks as an initial root. Uncompressed on purpose: under
//! emulation, unpacking costs far more than loading. The kernel accepts several archives one after the other, so what
//! changes from run to run is a small second archive.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::{IoContext, Result};

/// Kinds of entry, as the high bits of the mode.
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// An archive being written.
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    /// Adds a folder; its parents must have been added.
    pub fn folder(&mut self, path: &str) -> &mut Cpio {
        self.entry(path, FOLDER | 0o755, (0, 0), &[])
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Cpio {
        self.entry(path, REGULAR | mode, (0, 0), content)
    }

    /// Adds a copy of a file on disk.
    pub fn copy(&mut self, path: &str, mode: u32, from: &Path) -> Result<&mut Cpio> {
        let content = std::fs::read(from).on("read", from)?;
        Ok(self.file(path, mode, &content))
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Cpio {
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> &mut Cpio {
        self.entry(path, CHARACTER | 0o600, (major, minor), &[])
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> &mut Cpio {
        self.entries += 1;
        let name = path.trim_start_matches('/');
        let links = if mode & FOLDER != 0 && mode & REGULAR == 0 {
            2
        } else {
            1
        };
        // Files over 4 GiB don't fit the format's fields; an initial root never has one.
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let (inode, major, minor) = (self.entries, device.0, device.1);
        // Owner, group and time are 0, so that the same input gives the same bytes.
        let header = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{size:08x}{0:08x}{0:08x}{major:08x}{minor:08x}{name_size:08x}{0:08x}",
            0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }

    /// Writes the finished archive so that `path` either holds all of it or doesn't exist.
    pub fn write(self, path: &Path) -> Result<()> {
        let bytes = self.finish();
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut temporary =
            tempfile::NamedTempFile::new_in(folder).on("create a file in", folder)?;
        temporary.write_all(&bytes).on("write", temporary.path())?;
        temporary
            .persist(path)
            .map_err(|e| e.error)
            .on("rename into", path)?;
        // A temporary file is the maker's alone; an image may be booted by anyone.
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(path, readable).on("set permissions of", path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader written apart from the writer, from the format's description in the kernel.
    fn list(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).expect("hex");
                u32::from_str_radix(text, 16).expect("hex")
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).expect("a name");
            let content = (at + 110 + name_size).next_multiple_of(4) - at;
            let next = (at + content + size).next_multiple_of(4) - at;
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[content..content + size].to_vec()));
            bytes = &bytes[next..];
            at += next;
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut cpio = Cpio::default();
        cpio.folder("a")
            .file("/a/odd", 0o644, b"12345")
            .symlink("a/link", "odd")
            .file("a/empty", 0o755, b"")
            .character_device("console", 5, 1);
        let bytes = cpio.finish();
        assert_eq!(
            bytes.len() % 512,
            0,
            "archives are concatenated, so each must end aligned"
        );
        assert_eq!(
            list(&bytes),
            [
                ("a".to_owned(), 0o040_755, vec![]),
                ("a/odd".to_owned(), 0o100_644, b"12345".to_vec()),
                ("a/link".to_owned(), 0o120_777, b"odd".to_vec()),
                ("a/empty".to_owned(), 0o100_755, vec![]),
                ("console".to_owned(), 0o020_600, vec![]),
            ]
        );
    }
}
