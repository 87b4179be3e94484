//! `ostler run`: the steward itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::SystemTime;

use anyhow::Context as _;
use ostler_model::ActMode;
use ostler_model::config::{Config, ConfigErrors, RecordConfig};
use ostler_record::{Limits, Recorder, Wall};
use tracing::{error, info, warn};

use super::{ConfigArg, Loaded, read_config};
use crate::api::{self, CONTROL_QUEUE, Control, Controller};
use crate::steward::control::{Parts, Steward};
use crate::steward::lines::Lines;
use crate::steward::lock::{HostLock, InstanceLock};
use crate::steward::priority;
use crate::steward::timer::{Event, Waiter, monotonic};
use crate::steward::view::{ConfigStatus, Shared};
use crate::steward::{Clock, Sense as _};
use crate::wire::{self, Roots};

/// Run the steward: sense, decide, and, when told to act, carry plans out
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // Each is a switch of the command line.
#[command(
    after_help = "Without --act, and unless the configuration says mode = \"act\", nothing on the host is written.\n\
    SIGHUP reads the configuration again; one with a mistake is refused and the old one stays in force. SIGTERM and SIGINT end the steward; \
    what it wrote is taken back unless on_exit = \"keep\".\n\n\
    Examples:\n  ostler run                               # observe, with the usual configuration\n  ostler run --config ostler.toml --act\n  \
    curl --unix-socket /run/ostler/ostler.sock http://ostler/v1/status\n\n\
    Exit codes: 0 ended as told; 4 the configuration was refused; 1 otherwise."
)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Carry plans out, whatever the configuration says
    #[arg(long, conflicts_with = "observe")]
    act: bool,
    /// Write nothing to the host, whatever the configuration says
    #[arg(long)]
    observe: bool,
    /// End after so many periods
    #[arg(long, value_name = "N")]
    periods: Option<u64>,
    /// End after one decision: two periods, since the first only begins to count
    #[arg(long, conflicts_with = "periods")]
    once: bool,
    /// Print each period as a line of JSON on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    roots: Roots,
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> ostler_model::Nanos {
        monotonic()
    }

    fn wall(&self) -> Wall {
        Wall::from(SystemTime::now())
    }
}

impl Args {
    /// What the command line says outranks what the file says, also when it is read again.
    fn override_mode(&self, config: &mut Config) {
        if self.act {
            config.intent.act.mode = ActMode::Act;
        } else if self.observe {
            config.intent.act.mode = ActMode::Observe;
        }
    }

    /// The host's lock, where the steward is to act.
    fn right_to_act(&self, config: &Config) -> anyhow::Result<Option<HostLock>> {
        (config.intent.act.mode == ActMode::Act)
            .then(|| HostLock::take(&self.roots.proc()))
            .transpose()
            .map_err(|error| error.into_error("have this one act"))
    }

    fn periods(&self) -> Option<u64> {
        if self.once { Some(2) } else { self.periods }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    crate::steward::heap::keep_freed();
    // Twice: first to know which NICs and sockets to look at, then to check it against what was found.
    let mut first = args.config.load(None)?.config;
    args.override_mode(&mut first);
    if first.intent.act.mode == ActMode::Act {
        // Before any thread is started.
        priority::raise();
    }
    let journal = PathBuf::from(&first.daemon.journal.path);
    let _lock = InstanceLock::take(&journal).map_err(|error| error.into_error("start another"))?;
    let mut waiter = Waiter::new(first.intent.period)?;
    let sense = wire::sense(&first, &args.roots, waiter.hasten()?)?;
    let Loaded { mut config, file } = args.config.load(Some(sense.facts()))?;
    args.override_mode(&mut config);
    let host = args.right_to_act(&config)?;
    let daemon = config.daemon.clone();
    let (agents, port) = wire::agents(&daemon.agent)?;
    let parts = Parts {
        sense: Box::new(sense),
        agents: Box::new(agents),
        decide: Box::new(wire::decider()),
        act: Box::new(wire::act(&journal, &args.roots, port)),
        clock: Box::new(SystemClock),
    };
    let recorder = record(&daemon.record)?;
    let status = ConfigStatus {
        file: file.as_ref().map(|file| file.display().to_string()),
        loaded: Wall::from(SystemTime::now()),
        refused: None,
        needs_restart: Vec::new(),
    };
    // The secret of hints is made of it: no guest may guess it.
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .context("could not draw a random number from the kernel")?;
    waiter.set_period(config.intent.period)?;
    let mut steward = Steward::new(
        parts,
        config.intent.clone(),
        u64::from_le_bytes(seed),
        recorder,
        status,
    )?;
    let shared = Arc::new(Shared::new(steward.view()));
    let (queue, control) = sync_channel(CONTROL_QUEUE);
    let server = api::Server::start(
        &daemon.api,
        Arc::clone(&shared),
        daemon
            .record
            .enabled
            .then(|| PathBuf::from(&daemon.record.path)),
        Controller {
            queue,
            waker: waiter.waker()?,
        },
    )?;
    greet(&config, file.as_deref());

    let mut files = Files {
        args,
        file,
        running: config,
        host,
    };
    // Until all is put back: who reads them must not hold that up.
    let mut lines = args.json.then(Lines::start).transpose()?;
    let result = serve(
        args,
        &mut lines,
        &mut steward,
        &mut waiter,
        &shared,
        &control,
        &mut files,
    );
    // Others see the steward until it has put things back; then the socket goes.
    let ended = steward.end();
    drop(server);
    drop(lines);
    result.and(ended).map(|()| ExitCode::SUCCESS)
}

fn greet(config: &Config, file: Option<&Path>) {
    let from = file.map_or_else(|| "defaults".to_owned(), |file| file.display().to_string());
    let policy = crate::steward::view::policy_name(&config.intent);
    match config.intent.act.mode {
        ActMode::Act => info!(
            config = from,
            policy,
            socket = config.daemon.api.socket,
            "acting"
        ),
        ActMode::Observe => info!(
            config = from,
            policy,
            socket = config.daemon.api.socket,
            "observing: nothing on this host is written (--act or mode = \"act\" changes that)"
        ),
    }
}

fn record(config: &RecordConfig) -> anyhow::Result<Option<Recorder>> {
    if !config.enabled {
        return Ok(None);
    }
    let limits = Limits {
        size_max: config.max_size,
        age_max: config.max_age,
    };
    let recorder = Recorder::start(Path::new(&config.path), limits)
        .context("could not begin to record; set [record] path to a place that can be written, or enabled = false")?;
    if let Some(aside) = recorder.moved_aside() {
        warn!(
            "{} could not be read as a record; it was moved to {} and a new one is begun",
            config.path,
            aside.display()
        );
    }
    Ok(Some(recorder))
}

fn serve(
    args: &Args,
    lines: &mut Option<Lines>,
    steward: &mut Steward,
    waiter: &mut Waiter,
    shared: &Shared,
    control: &Receiver<Control>,
    files: &mut Files<'_>,
) -> anyhow::Result<()> {
    let most = args.periods().unwrap_or(u64::MAX);
    let mut turns = 0_u64;
    // The first snapshot is where counting begins: there is nothing to wait for.
    let mut due = Some((0, ostler_model::Nanos::ZERO));
    while turns < most {
        if let Some((missed, lateness)) = due.take() {
            steward.turn(missed, lateness);
            steward.publish(shared);
            if let Some(lines) = lines {
                lines.offer(&shared.get());
            }
            turns += 1;
            continue;
        }
        match waiter.wait()? {
            Event::Tick { missed, lateness } => due = Some((missed, lateness)),
            Event::Stop => {
                info!("told to end");
                break;
            }
            Event::Reload => {
                // Told in the log, and by /v1/status.
                let _ = files.reload(steward, waiter);
                steward.publish(shared);
            }
            Event::Control => {
                while let Ok(Control::Reload(answer)) = control.try_recv() {
                    let result = files.reload(steward, waiter);
                    steward.publish(shared);
                    // Whoever asked may have gone; what was done stays done.
                    let _ = answer.send(result);
                }
            }
        }
    }
    Ok(())
}

/// The configuration's file and what was made of it.
struct Files<'a> {
    args: &'a Args,
    file: Option<PathBuf>,
    running: Config,
    /// Held once the steward acts, and until it ends: what it set may be put back long after it was told to only observe.
    host: Option<HostLock>,
}

impl Files<'_> {
    /// Reads the configuration again. A bad one changes nothing, and the answer says what is wrong with it.
    fn reload(&mut self, steward: &mut Steward, waiter: &mut Waiter) -> Result<(), String> {
        let result = self.try_reload(steward, waiter);
        if let Err(error) = &result {
            let text = match error.downcast_ref::<ConfigErrors>() {
                Some(errors) => errors.to_string(),
                None => format!("{error:#}"),
            };
            error!("the configuration is refused and the old one stays in force:\n{text}");
            steward.refuse(text.clone());
            return Err(text);
        }
        Ok(())
    }

    fn try_reload(&mut self, steward: &mut Steward, waiter: &mut Waiter) -> anyhow::Result<()> {
        // The usual file may have come since the start.
        let file = self.file.clone().or_else(|| self.args.config.file());
        let Some(file) = file else {
            anyhow::bail!(
                "there is no configuration to read again: the steward runs with defaults"
            );
        };
        let mut config = read_config(&file, Some(steward.facts()))?;
        self.args.override_mode(&mut config);
        if self.host.is_none() {
            self.host = self.args.right_to_act(&config)?;
        }
        let needs_restart = needs_restart(&self.running, &config);
        for key in &needs_restart {
            warn!("{key} was changed and takes effect when the steward is started again");
        }
        let period = config.intent.period;
        if period != steward.intent().period {
            waiter.set_period(period)?;
        }
        steward.adopt(
            config.clone(),
            ConfigStatus {
                file: Some(file.display().to_string()),
                loaded: Wall::from(SystemTime::now()),
                refused: None,
                needs_restart,
            },
        )?;
        info!(config = %file.display(), "the configuration was read again");
        self.file = Some(file);
        // What needs a restart is still as it was.
        self.running.intent = config.intent;
        self.running.daemon.discovery = config.daemon.discovery;
        Ok(())
    }
}

/// Keys that were changed but that only a start puts in force.
fn needs_restart(running: &Config, new: &Config) -> Vec<String> {
    let (running, new) = (&running.daemon, &new.daemon);
    let mut keys = Vec::new();
    for (changed, key) in [
        (running.agent != new.agent, "[agent]"),
        (running.api.metrics != new.api.metrics, "[metrics]"),
        (
            (&running.api.socket, &running.api.group, &running.api.uids)
                != (&new.api.socket, &new.api.group, &new.api.uids),
            "[api]",
        ),
        (running.record != new.record, "[record]"),
        (running.journal != new.journal, "[journal]"),
    ] {
        if changed {
            keys.push(key.to_owned());
        }
    }
    keys
}
