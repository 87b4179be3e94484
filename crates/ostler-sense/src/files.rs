//! Small files of the kernel, read often.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// No file that we read whole is longer, but for `/proc/stat` and `/proc/interrupts`; who offers more is not believed.
const TEXT_MAX: usize = 64 * 1024;

/// Reads a small text file whole.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut text = String::new();
    File::open(path)?
        .take(TEXT_MAX as u64)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a file that holds a single value, without its line end.
pub(crate) fn value(path: &Path) -> io::Result<String> {
    let mut text = text(path)?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// Reads a file that holds a single number or set, or `None` when it isn't there or holds something else.
pub(crate) fn parsed<T: std::str::FromStr>(path: &Path) -> Option<T> {
    value(path).ok()?.parse().ok()
}

/// The names in a folder, or none when it can't be read; at most `max`.
pub(crate) fn names(folder: &Path, max: usize) -> Vec<String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .take(max)
        .collect()
}

/// The names in a folder that are numbers, ascending.
pub(crate) fn numbers(folder: &Path, max: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = names(folder, max)
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// A file that stays open and is read from its start each time: half the cost of opening it anew, and it
/// goes on meaning the same thread or interrupt when its number is given to another.
#[derive(Debug)]
pub(crate) struct KeptFile(File);

impl KeptFile {
    pub(crate) fn open(path: &Path) -> io::Result<KeptFile> {
        File::open(path).map(KeptFile)
    }

    /// Reads the start of the file, as much as the buffer holds, as text.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a str> {
        let len = self.0.read_at(buffer, 0)?;
        str::from_utf8(&buffer[..len])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}
