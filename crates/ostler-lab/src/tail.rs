//! Follows a file that QEMU appends to, line by line.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most of a line that is kept; the rest of a longer one is dropped.
const LINE_AT_MOST: usize = 1 << 20;

/// A file being followed. It need not exist yet.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: Option<File>,
    partial: Vec<u8>,
}

impl Tail {
    /// Follows `path` from its start.
    pub fn new(path: impl Into<PathBuf>) -> Tail {
        Tail {
            path: path.into(),
            file: None,
            partial: Vec::new(),
        }
    }

    /// The lines completed since the last call.
    pub fn lines(&mut self) -> std::io::Result<Vec<String>> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(e) => return Err(e),
            }
        }
        let Some(file) = &mut self.file else {
            return Ok(Vec::new());
        };
        let mut fresh = Vec::new();
        file.take(LINE_AT_MOST as u64).read_to_end(&mut fresh)?;
        let mut lines = Vec::new();
        for byte in fresh {
            match byte {
                b'\n' => {
                    lines.push(
                        String::from_utf8_lossy(&self.partial)
                            .trim_end_matches('\r')
                            .to_owned(),
                    );
                    self.partial.clear();
                }
                _ if self.partial.len() < LINE_AT_MOST => self.partial.push(byte),
                _ => {}
            }
        }
        Ok(lines)
    }
}

/// The last lines of a log, for a message.
pub fn last_lines(path: &Path, count: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let start = bytes.len().saturating_sub(16 << 10);
    let text = String::from_utf8_lossy(&bytes[start..]);
    let lines: Vec<_> = text
        .lines()
        .map(str::trim_end)
        .filter(|l| !l.is_empty())
        .collect();
    let mut last = String::new();
    for line in &lines[lines.len().saturating_sub(count)..] {
        last += "    ";
        last += line;
        last.push('\n');
    }
    last
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_when_they_are_complete() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("log");
        let mut tail = Tail::new(&path);
        assert!(tail.lines().expect("no file is no error").is_empty());
        let mut file = File::create(&path).expect("a file");
        file.write_all(b"one\r\ntw").expect("a write");
        assert_eq!(tail.lines().expect("lines"), ["one"]);
        file.write_all(b"o\n\nthree").expect("a write");
        assert_eq!(tail.lines().expect("lines"), ["two", ""]);
        assert_eq!(last_lines(&path, 2), "    two\n    three\n");
    }
}
