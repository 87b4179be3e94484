//! What is wrong with a configuration, and where.

use std::fmt;
use std::ops::Range;

/// More errors than this are not reported one by one.
pub const ERRORS_MAX: usize = 100;

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as it was named to the parser.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// Its column, from 1, in characters.
    pub column: usize,
    /// How many characters it covers on that line, at least 1.
    pub width: usize,
    /// The line itself.
    pub source_line: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    /// Several lines: what is wrong, where, the line itself underlined, and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let margin = self.line.to_string().len();
        writeln!(f, "error: {}", self.what)?;
        writeln!(
            f,
            "{:margin$}--> {}:{}:{}",
            "", self.file, self.line, self.column
        )?;
        writeln!(f, "{:margin$} |", "")?;
        writeln!(f, "{} | {}", self.line, self.source_line)?;
        // Tabs are kept, so that the marks stand under what they mark however wide the terminal draws a tab.
        let indent: String = self
            .source_line
            .chars()
            .take(self.column - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        writeln!(f, "{:margin$} | {indent}{}", "", "^".repeat(self.width))?;
        write!(f, "{:margin$} = {}", "", self.remedy)
    }
}

/// Everything that is wrong with a configuration, in order of place. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// The errors in order of place.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a ConfigErrors {
    type Item = &'a ConfigError;
    type IntoIter = std::slice::Iter<'a, ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// What is wrong with a value, before it is known where it stands.
#[derive(Debug)]
pub(super) struct Problem {
    pub what: String,
    pub remedy: String,
}

impl Problem {
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem {
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

/// Collects errors while a text is read.
pub(super) struct Errors<'t> {
    file: &'t str,
    text: &'t str,
    found: Vec<ConfigError>,
    /// Set while values are read that a broken syntax may have distorted: then lines that already have an error get no second one.
    one_per_line: bool,
}

impl<'t> Errors<'t> {
    pub fn new(file: &'t str, text: &'t str) -> Errors<'t> {
        Errors {
            file,
            text,
            found: Vec::new(),
            one_per_line: false,
        }
    }

    /// From now on, a line that already has an error gets no other.
    pub fn one_per_line(&mut self) {
        self.one_per_line = true;
    }

    /// Reports a problem with the text at these bytes.
    pub fn at(&mut self, bytes: Range<usize>, problem: Problem) {
        if self.found.len() >= ERRORS_MAX {
            return;
        }
        let start = floor_char(self.text, bytes.start);
        let end = floor_char(self.text, bytes.end.max(start));
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..]
            .find('\n')
            .map_or(self.text.len(), |at| start + at);
        let line = self.text[..start].matches('\n').count() + 1;
        if self.one_per_line && self.found.iter().any(|error| error.line == line) {
            return;
        }
        let source_line = self.text[line_start..line_end].trim_end_matches('\r');
        let width = self.text[start..end.min(line_end)].chars().count().max(1);
        self.found.push(ConfigError {
            file: self.file.to_owned(),
            line,
            column: self.text[line_start..start].chars().count() + 1,
            width,
            // A control character in a configuration must not reach an operator's terminal.
            source_line: source_line
                .chars()
                .map(|c| {
                    if c.is_control() && c != '\t' {
                        '\u{fffd}'
                    } else {
                        c
                    }
                })
                .collect(),
            what: problem.what,
            remedy: problem.remedy,
        });
    }

    /// Ends the collection: nothing when all is well.
    pub fn finish(mut self) -> Option<ConfigErrors> {
        self.found.sort_by_key(|error| (error.line, error.column));
        (!self.found.is_empty()).then_some(ConfigErrors(self.found))
    }
}

/// The greatest character boundary at or before `at`.
fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
