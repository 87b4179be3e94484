//! Files that a guest has in memory of its host (Hylics, section 5.3): one that isn't asked for in a minute is put out; while the memory is full, others come from
//! the disk.

use ostler_model::{Bytes, Nanos};

/// A file nobody has asked for in this time is put out (5.3).
pub const EVICT: Nanos = Nanos::from_secs(60);

/// Files in memory.
#[derive(Clone, Debug, Default)]
pub struct FileCache {
    capacity: Bytes,
    file: Bytes,
    /// By name: when each was asked for last.
    files: Vec<(u64, Nanos)>,
    hits: u64,
    misses: u64,
}

impl FileCache {
    /// Of files of a size.
    pub fn new(capacity: Bytes, file: Bytes) -> FileCache {
        FileCache {
            capacity,
            file: Bytes(file.0.max(1)),
            ..FileCache::default()
        }
    }

    /// What they take.
    pub fn used(&self) -> Bytes {
        Bytes(self.files.len() as u64 * self.file.0)
    }

    /// Changes what they may take. What is above it goes, those first that nobody asked for the longest.
    pub fn resize(&mut self, capacity: Bytes) {
        self.capacity = capacity;
        while self.used() > capacity {
            let files = self.files.iter().enumerate();
            let oldest = files.min_by_key(|(_, (name, at))| (*at, *name));
            let Some(oldest) = oldest.map(|(place, _)| place) else {
                break;
            };
            self.files.remove(oldest);
        }
    }

    /// Asks for a file; says whether it was there. If not, it is from now on, if there is room.
    pub fn ask(&mut self, name: u64, now: Nanos) -> bool {
        self.files
            .retain(|(_, at)| now.saturating_sub(*at) <= EVICT);
        match self.files.binary_search_by_key(&name, |(name, _)| *name) {
            Ok(place) => {
                self.files[place].1 = now;
                self.hits += 1;
                true
            }
            Err(place) => {
                self.misses += 1;
                if self.used().0 + self.file.0 <= self.capacity.0 {
                    self.files.insert(place, (name, now));
                }
                false
            }
        }
    }

    /// What they did.
    pub fn view(&self) -> super::FilesView {
        super::FilesView {
            capacity: self.capacity,
            used: self.used(),
            hits: self.hits,
            misses: self.misses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_when_there_is_room_and_go_when_nobody_asks() {
        let mut cache = FileCache::new(Bytes(20), Bytes(10));
        let s = Nanos::from_secs;
        assert!(!cache.ask(1, s(0)) && !cache.ask(2, s(10)));
        assert!(!cache.ask(3, s(20)) && !cache.ask(3, s(30)), "it is full");
        assert!(cache.ask(1, s(50)));
        assert!(!cache.ask(3, s(71)), "2 has gone, so there is room");
        assert!(cache.ask(3, s(72)) && cache.ask(1, s(100)));
        cache.resize(Bytes(10));
        assert!(!cache.ask(3, s(101)) && cache.ask(1, s(102)));
        let view = cache.view();
        assert_eq!((view.used, view.hits, view.misses), (Bytes(10), 4, 6));
    }
}
