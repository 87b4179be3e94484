//! What is asked of guests.

use serde::{Deserialize, Serialize};

/// What is asked of a guest.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Load {
    /// The guest.
    pub guest: String,
    /// Connections to it.
    pub connections: u32,
    /// Further words for the load generator.
    pub args: Vec<String>,
    /// Rates, one after the other.
    pub steps: Vec<Step>,
    /// How requests come.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Whether it goes on, again and again, in the cells of all other loads, and has none of its own.
    #[serde(default)]
    pub background: bool,
    /// How many packets each request is, which go together from stage to stage.
    #[serde(default = "one")]
    pub packets: u32,
}

fn one() -> u32 {
    1
}

/// How requests come at a rate.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independently of each other.
    #[default]
    Poisson,
    /// One after the other, evenly.
    Even,
    /// In bursts like those of Facebook's ETC.
    Etc,
}

/// A rate for some time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Requests per second; 0 for a guest that answers none and is measured by its work.
    pub rate: f64,
    /// For how long.
    pub seconds: f64,
}

/// The load generator's word for how many requests a connection may have on their way.
pub(crate) const DEPTH: &str = "--depth";

/// Its word for how many different keys are asked for.
const KEYS_WORD: &str = "--keys";

/// How many there are unless told (`ostler-load memcached --help`).
pub const KEYS: u32 = 10_000;

/// The most that it takes.
pub(crate) const DEPTH_MAX: u32 = 1024;

impl Load {
    /// Poisson's, of these rates, and nothing special.
    pub fn new(guest: &str, connections: u32, steps: Vec<Step>) -> Load {
        Load {
            guest: guest.to_owned(),
            connections,
            args: Vec::new(),
            steps,
            arrivals: Arrivals::default(),
            background: false,
            packets: 1,
        }
    }

    /// Requests that may be on their way on each connection, by the words for the load generator.
    pub fn depth(&self) -> u32 {
        self.said_depth().unwrap_or(1)
    }

    /// The same, or the word that is none.
    pub(crate) fn said_depth(&self) -> Result<u32, &str> {
        self.said(DEPTH).try_fold(1, |_, said| {
            let number = said.parse().ok();
            number
                .filter(|number| (1..=DEPTH_MAX).contains(number))
                .ok_or(said)
        })
    }

    /// How many different keys are asked for, by the words for the load generator, which refuses what is none.
    pub fn keys(&self) -> u32 {
        let said = self.said(KEYS_WORD).last();
        said.and_then(|said| said.parse().ok()).unwrap_or(KEYS)
    }

    /// What is said of a word for the load generator, each time that it comes, as two words or as one.
    fn said(&self, name: &'static str) -> impl Iterator<Item = &str> {
        let mut words = self.args.iter().map(String::as_str);
        std::iter::from_fn(move || {
            loop {
                match words.next()?.strip_prefix(name) {
                    Some("") => return Some(words.next().unwrap_or_default()),
                    Some(rest) => {
                        if let Some(said) = rest.strip_prefix('=') {
                            return Some(said);
                        }
                    }
                    None => {}
                }
            }
        })
    }

    /// Whether it has other words for the load generator than these two.
    pub fn says_more(&self) -> bool {
        let mut words = self.args.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let known = [DEPTH, KEYS_WORD];
            match known.iter().find_map(|known| word.strip_prefix(known)) {
                Some("") => {
                    words.next();
                }
                Some(rest) if rest.starts_with('=') => {}
                _ => return true,
            }
        }
        false
    }

    /// How long it takes.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    /// Its steps as the load generator wants them, like `500x5,1000x5`.
    pub fn steps_text(&self) -> String {
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|step| format!("{}x{}", step.rate, step.seconds))
            .collect();
        steps.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_keys_are_what_the_load_generator_would_make_of_its_words() {
        let load = |args: &[&str]| Load {
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            ..Load::new("lc", 4, Vec::new())
        };
        for (args, depth, keys, more) in [
            (&[][..], 1, KEYS, false),
            (&["--keys", "1000"], 1, 1000, false),
            (&["--depth", "3"], 3, KEYS, false),
            (&["--depth=4"], 4, KEYS, false),
            (&["--keys=9", "--depth", "2", "--keys", "8"], 2, 8, false),
            (&["--keys", "9", "--max-value", "2"], 1, 9, true),
            (&["--depths", "7"], 1, KEYS, true),
            (&["--keyspace=7"], 1, KEYS, true),
        ] {
            let load = load(args);
            assert_eq!(load.said_depth(), Ok(depth));
            assert_eq!(load.keys(), keys);
            assert_eq!(load.says_more(), more);
        }
        for (args, word) in [
            (&["--depth", "x"][..], "x"),
            (&["--depth=0"], "0"),
            (&["--depth", "1025"], "1025"),
            (&["--depth"], ""),
        ] {
            assert_eq!(load(args).said_depth(), Err(word));
        }
    }
}
