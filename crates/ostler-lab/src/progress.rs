//! Long steps show that they are alive: a spinner with the step's last line of output on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Where progress goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A spinner per step, on standard error.
    Spinner,
    /// A line at a step's start and one at its end, on standard error: for logs and CI.
    Lines,
    /// Nothing: for tests.
    Silent,
}

/// One long step. Dropped without [`Step::done`], it counts as failed.
#[derive(Debug)]
pub struct Step {
    how: Progress,
    name: String,
    bar: Option<ProgressBar>,
    since: Instant,
    finished: bool,
}

impl Progress {
    /// A spinner where standard error is a terminal, else lines.
    pub fn detect() -> Progress {
        if std::io::stderr().is_terminal() {
            Progress::Spinner
        } else {
            Progress::Lines
        }
    }

    /// Begins a step.
    pub fn step(self, name: impl Into<String>) -> Step {
        let name = name.into();
        let bar = match self {
            Progress::Spinner => {
                let bar = ProgressBar::new_spinner();
                if let Ok(style) =
                    ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {wide_msg:.dim}")
                {
                    bar.set_style(style);
                }
                bar.set_prefix(name.clone());
                bar.enable_steady_tick(Duration::from_millis(120));
                Some(bar)
            }
            Progress::Lines => {
                crate::tell!("lab: {name} ...");
                None
            }
            Progress::Silent => None,
        };
        Step {
            how: self,
            name,
            bar,
            since: Instant::now(),
            finished: false,
        }
    }

    /// Says something that must be seen whatever happens next.
    pub fn note(self, text: &str) {
        if self != Progress::Silent {
            crate::tell!("lab: {text}");
        }
    }
}

impl Step {
    /// Shows the latest detail.
    pub fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.trim().to_owned());
        }
    }

    /// Says something that must stay on the screen.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| crate::tell!("lab: {text}")),
            None => self.how.note(text),
        }
    }

    /// The step is complete.
    pub fn done(mut self, result: &str) {
        self.finish(result);
    }

    fn finish(&mut self, result: &str) {
        self.finished = true;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let tail = if result.is_empty() {
            String::new()
        } else {
            format!(": {result}")
        };
        self.how.note(&format!(
            "{} ({:.1} s){tail}",
            self.name,
            self.since.elapsed().as_secs_f64()
        ));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.finished {
            self.finish("not completed");
        }
    }
}
