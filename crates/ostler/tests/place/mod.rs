//! A folder for a steward to live in, the steward itself, and ways to ask it.

#![allow(dead_code)] // Each test binary uses its own part.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a steward may take to come to something. Long, for machines under load; nothing waits for it when all is well.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Runs the program to its end.
pub fn ostler(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ostler"))
        .args(args)
        .env("NO_COLOR", "1")
        .env_remove("COLUMNS")
        .output()
        .expect("the program runs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)))
}

/// A steward's place: its configuration, and the files it keeps.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new(more: &str) -> Place {
        let place = Place {
            folder: tempfile::tempdir().expect("a folder"),
        };
        place.write(more);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Names of the files in it, in order.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.folder.path())
            .expect("the folder")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Writes the configuration: the places of files, and `more`.
    pub fn write(&self, more: &str) {
        let config = format!(
            "[api]\nsocket = \"{}\"\n[record]\npath = \"{}\"\n[journal]\npath = \"{}\"\n{more}",
            self.shown("api.sock"),
            self.shown("record.db"),
            self.shown("journal.db")
        );
        std::fs::write(self.path("ostler.toml"), config).expect("a configuration");
    }

    pub fn start(&self, more: &[&str]) -> Steward<'_> {
        self.start_into(more, Stdio::null())
    }

    /// The same with its standard output told.
    pub fn start_into(&self, more: &[&str], output: impl Into<Stdio>) -> Steward<'_> {
        self.start_between(more, output, Stdio::piped())
    }

    /// The same with its log told, too.
    pub fn start_between(
        &self,
        more: &[&str],
        output: impl Into<Stdio>,
        log: impl Into<Stdio>,
    ) -> Steward<'_> {
        let child = Command::new(env!("CARGO_BIN_EXE_ostler"))
            .args(["run", "--config", &self.shown("ostler.toml")])
            .args(more)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log)
            .spawn()
            .expect("the program runs");
        Steward { place: self, child }
    }

    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        request(&self.path("api.sock"), "GET", path)
    }

    pub fn get_json(&self, path: &str) -> Value {
        let (status, body) = self.get(path).expect("an answer");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }
}

/// A steward that runs until it is ended, or the test is.
pub struct Steward<'p> {
    place: &'p Place,
    child: Child,
}

impl Steward<'_> {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the steward answers and what it says is as wanted.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let due = Instant::now() + PATIENCE;
        let mut last = None;
        while Instant::now() < due {
            if let Some((200, body)) = self.place.get("/v1/status") {
                let status: Value = serde_json::from_str(&body).expect("JSON");
                if wanted(&status) {
                    return status;
                }
                last = Some(body);
            }
            if let Some(ended) = self.child.try_wait().expect("a child") {
                panic!("the steward ended ({ended}) before {what}: {}", self.log());
            }
            // Asked again, not waited for: how long it takes is the machine's affair.
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the steward did not come to {what}: {last:?}");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal is sent");
    }

    fn log(&mut self) -> String {
        let mut log = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut log);
        }
        log
    }

    /// Closes the end of its log that we read.
    pub fn lose_log(&mut self) {
        self.child.stderr = None;
    }

    /// Ends it in order; gives its log.
    pub fn end(mut self) -> String {
        self.signal(Signal::TERM);
        let log = self.log();
        let ended = self.child.wait().expect("a child");
        assert!(ended.success(), "{ended}: {log}");
        log
    }

    /// Tells it to end; whether it does.
    pub fn ends(mut self) -> bool {
        self.signal(Signal::TERM);
        let due = Instant::now() + PATIENCE;
        while Instant::now() < due {
            if let Some(ended) = self.child.try_wait().expect("a child") {
                assert!(ended.success(), "{ended}: {}", self.log());
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a child");
    }
}

impl Drop for Steward<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request, one connection. `None` when nobody answers.
pub fn request(socket: &Path, method: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: ostler\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(!head.to_ascii_lowercase().contains("chunked"), "{head}");
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
