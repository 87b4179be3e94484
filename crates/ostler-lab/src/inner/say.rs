//! Events on their way out, by a virtio-serial port.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;

use crate::machine::EVENTS_PORT;
use ostler_outcome::events::{Event, Stamped};

/// Says events. Clones share the port; a line is never broken by another.
#[derive(Clone, Debug)]
pub struct Say {
    port: Arc<Mutex<File>>,
}

impl Say {
    /// Opens the port.
    pub fn open() -> anyhow::Result<Say> {
        let path = port()?;
        let port = File::options()
            .write(true)
            .open(&path)
            .with_context(|| format!("could not open {}", path.display()))?;
        Ok(Say {
            port: Arc::new(Mutex::new(port)),
        })
    }

    /// Says an event. One that can't be said is lost: the lab notices silence, and there is no one else to tell.
    pub fn say(&self, event: Event) {
        let stamped = Stamped {
            t_ms: uptime_ms(),
            event,
        };
        let Ok(mut line) = serde_json::to_vec(&stamped) else {
            return;
        };
        line.push(b'\n');
        if let Ok(mut port) = self.port.lock() {
            let _ = port.write_all(&line);
        }
    }

    /// Says that set-up came to another stage.
    pub fn stage(&self, name: impl Into<String>) {
        self.say(Event::Stage { name: name.into() });
    }
}

/// Without udev, the port's name is only in sysfs.
fn port() -> anyhow::Result<PathBuf> {
    for _ in 0..250 {
        for entry in std::fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == EVENTS_PORT {
                return Ok(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        // The port's name arrives by a message from the device, a moment after the device.
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("there is no virtio port named {EVENTS_PORT}")
}

/// Milliseconds since boot.
pub fn uptime_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000
        + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}
