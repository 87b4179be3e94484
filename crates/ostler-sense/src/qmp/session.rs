//! The conversation with one guest's monitor, without any IO.
//!
//! One request is on its way at a time: QEMU answers in order anyway, and a guest that doesn't answer then owes
//! us exactly one answer, however long it stays frozen. Bytes come in by [`Session::receive`], requests go out by
//! [`Session::next_request`], and when a round is complete its [`Answers`] are there to be taken.

use std::collections::VecDeque;

use serde_json::{Value, json};

use ostler_model::Tid;

use super::reply::{self, Device, Network};

/// The longest line that is read. `query-cpus-fast` takes some 300 bytes per vCPU.
const LINE_MAX: usize = 1024 * 1024;
/// Devices asked for more about per round.
const DETAILS_MAX: usize = 8;

/// Why a conversation can't go on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QmpError {
    /// A line is longer than any answer.
    #[error("a line of more than {LINE_MAX} bytes; whatever listens there is no QMP monitor")]
    TooLong,
    /// A line is no JSON object.
    #[error("a line that is no JSON object; whatever listens there is no QMP monitor")]
    NotJson,
    /// The first line is no greeting.
    #[error("no QMP greeting; whatever listens there is no QMP monitor")]
    NoGreeting,
    /// The monitor refuses to leave its negotiation mode.
    #[error("qmp_capabilities was refused: {0}")]
    Refused(String),
}

/// How much to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// Only what changes most often: the vCPUs and their threads.
    Threads,
    /// Everything.
    Full,
}

/// What a monitor said in one round; what it did not say, or not so that it could be understood, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) full: bool,
    /// Whether the guest has ever been made to run.
    pub(crate) started: Option<bool>,
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) vcpus: Option<Vec<(u32, Tid)>>,
    pub(crate) network: Option<Vec<Network>>,
    pub(crate) cid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Query {
    Capabilities,
    Status,
    Name,
    Uuid,
    Vcpus,
    Network,
    Devices(&'static str),
    Cid(String),
}

impl Query {
    fn request(&self, id: u64) -> Value {
        let (command, arguments) = match self {
            Query::Capabilities => ("qmp_capabilities", None),
            Query::Status => ("query-status", None),
            Query::Name => ("query-name", None),
            Query::Uuid => ("query-uuid", None),
            Query::Vcpus => ("query-cpus-fast", None),
            Query::Network => (
                "human-monitor-command",
                Some(json!({"command-line": "info network"})),
            ),
            Query::Devices(path) => ("qom-list", Some(json!({"path": path}))),
            Query::Cid(path) => (
                "qom-get",
                Some(json!({"path": path, "property": "guest-cid"})),
            ),
        };
        match arguments {
            Some(arguments) => json!({"execute": command, "arguments": arguments, "id": id}),
            None => json!({"execute": command, "id": id}),
        }
    }
}

/// One conversation.
#[derive(Debug, Default)]
pub(crate) struct Session {
    greeted: bool,
    /// Bytes of a line that has not ended yet.
    partial: Vec<u8>,
    /// What is still to be asked in this round.
    plan: VecDeque<Query>,
    /// What was asked and not answered yet.
    waiting: Option<(u64, Query)>,
    last_id: u64,
    draft: Answers,
    done: Option<Answers>,
    /// An event said that something about the guest's devices or CPUs changed.
    changed: bool,
}

impl Session {
    pub(crate) fn new() -> Session {
        Session::default()
    }

    /// Begins a round of questions, unless one is under way.
    pub(crate) fn ask(&mut self, depth: Depth) {
        if !self.is_idle() {
            return;
        }
        self.draft = Answers {
            full: depth == Depth::Full,
            ..Answers::default()
        };
        if depth == Depth::Full {
            // First: what is asked after a guest was made to run is true of one that was put together.
            self.plan.extend([Query::Status, Query::Name, Query::Uuid]);
        }
        self.plan.push_back(Query::Vcpus);
        if depth == Depth::Full {
            self.plan.extend([
                Query::Network,
                Query::Devices("/machine/peripheral"),
                Query::Devices("/machine/peripheral-anon"),
            ]);
        }
    }

    /// Whether a round may begin: the monitor is ready and owes nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.greeted && self.waiting.is_none() && self.plan.is_empty()
    }

    /// Whether there is a question to ask, and none that awaits its answer.
    pub(crate) fn has_question(&self) -> bool {
        self.greeted && self.waiting.is_none() && !self.plan.is_empty()
    }

    /// The number of the question that awaits its answer.
    pub(crate) fn owes(&self) -> Option<u64> {
        self.waiting.as_ref().map(|(id, _)| *id)
    }

    /// The next line to send, if it is our turn.
    pub(crate) fn next_request(&mut self) -> Option<Vec<u8>> {
        if self.waiting.is_some() {
            return None;
        }
        let query = self.plan.pop_front()?;
        self.last_id += 1;
        let mut line = query.request(self.last_id).to_string().into_bytes();
        line.push(b'\n');
        self.waiting = Some((self.last_id, query));
        Some(line)
    }

    /// The answers of a round that is complete.
    pub(crate) fn take_answers(&mut self) -> Option<Answers> {
        self.done.take()
    }

    /// Whether an event since the last call said that something changed.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Takes what the monitor sent.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<(), QmpError> {
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.partial.is_empty() {
                self.line(line)?;
            } else {
                if self.partial.len() + line.len() > LINE_MAX {
                    return Err(QmpError::TooLong);
                }
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole)?;
            }
        }
        if self.partial.len() + bytes.len() > LINE_MAX {
            return Err(QmpError::TooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), QmpError> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        let value: Value = serde_json::from_slice(line).map_err(|_| QmpError::NotJson)?;
        let object = value.as_object().ok_or(QmpError::NotJson)?;
        if !self.greeted {
            if !object.contains_key("QMP") {
                return Err(QmpError::NoGreeting);
            }
            self.greeted = true;
            self.plan.push_back(Query::Capabilities);
            return Ok(());
        }
        if let Some(event) = object.get("event") {
            self.changed |= event.as_str().is_some_and(changes_devices);
            return Ok(());
        }
        // An answer to what we did not ask is nobody's.
        let Some((id, query)) = self.waiting.take() else {
            return Ok(());
        };
        if object.get("id").and_then(Value::as_u64) != Some(id) {
            self.waiting = Some((id, query));
            return Ok(());
        }
        match object.get("return") {
            Some(answer) => self.answer(&query, answer),
            None if query == Query::Capabilities => {
                let why = object.get("error").map(|error| error["desc"].clone());
                let why = why.unwrap_or_default().to_string();
                return Err(QmpError::Refused(why.chars().take(200).collect()));
            }
            // A command this QEMU doesn't have: that answer stays unknown.
            None => {}
        }
        if self.plan.is_empty() && self.draft != Answers::default() {
            self.done = Some(std::mem::take(&mut self.draft));
        }
        Ok(())
    }

    fn answer(&mut self, query: &Query, answer: &Value) {
        match query {
            Query::Capabilities => {}
            Query::Status => self.draft.started = reply::started(answer),
            Query::Name => self.draft.name = reply::name(answer),
            Query::Uuid => self.draft.uuid = reply::uuid(answer),
            Query::Vcpus => self.draft.vcpus = reply::vcpus(answer),
            Query::Network => {
                self.draft.network = answer.as_str().map(reply::taps_of_network);
            }
            Query::Devices(folder) => {
                for Device::Vsock(path) in reply::devices(folder, answer) {
                    let details = self.plan.iter().filter(|q| matches!(q, Query::Cid(_)));
                    if details.count() < DETAILS_MAX {
                        self.plan.push_back(Query::Cid(path));
                    }
                }
            }
            Query::Cid(_) => self.draft.cid = self.draft.cid.or(reply::cid(answer)),
        }
    }
}

/// Events after which threads or devices may differ.
fn changes_devices(event: &str) -> bool {
    matches!(
        event,
        "DEVICE_DELETED"
            | "DEVICE_UNPLUG_GUEST_ERROR"
            | "ACPI_DEVICE_OST"
            | "CPU_POLARIZATION_CHANGE"
            | "NIC_RX_FILTER_CHANGED"
            | "FAILOVER_NEGOTIATED"
            | "RESET"
            | "RESUME"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GREETING: &str = "{\"QMP\": {\"version\": {}}}\r\n";

    /// Answers each request by its command, with the events given in between.
    fn converse(session: &mut Session, event: &str, chunk: usize) -> Option<Answers> {
        for _ in 0..32 {
            let Some(line) = session.next_request() else {
                break;
            };
            let request: Value = serde_json::from_slice(&line).unwrap();
            let answer = match request["execute"].as_str().unwrap() {
                "query-name" => json!({"name": "a"}),
                "query-cpus-fast" => json!([{"cpu-index": 0, "thread-id": 12}]),
                "qom-list" => json!([{"name": "v", "type": "child<vhost-vsock-pci>"}]),
                "qom-get" => json!(9),
                _ => json!({}),
            };
            let reply = json!({"return": answer, "id": request["id"]});
            let text = format!("{event}\r\n{{\"return\": {{}}, \"id\": 4711}}\r\n{reply}\r\n");
            for part in text.as_bytes().chunks(chunk) {
                session.receive(part).unwrap();
            }
        }
        session.take_answers()
    }

    proptest! {
        /// However the bytes are cut, and whatever else is said in between, the answers are the same.
        #[test]
        fn a_round_is_understood_in_any_pieces(chunk in 1usize..200) {
            let mut session = Session::new();
            session.receive(GREETING.as_bytes()).unwrap();
            prop_assert!(converse(&mut session, "", chunk).is_none(), "nothing was asked yet");
            prop_assert!(session.is_idle());
            session.ask(Depth::Full);
            let event = "{\"event\": \"DEVICE_DELETED\"}";
            let answers = converse(&mut session, event, chunk).unwrap();
            prop_assert_eq!(answers.name.as_deref(), Some("a"));
            prop_assert_eq!(answers.vcpus, Some(vec![(0, Tid(12))]));
            prop_assert_eq!(answers.cid, Some(9));
            prop_assert!(session.take_changed() && !session.take_changed());
        }

        #[test]
        fn any_bytes_end_in_an_error_or_in_nothing(bytes in prop::collection::vec(any::<u8>(), 0..2000), greeted in any::<bool>()) {
            let mut session = Session::new();
            if greeted {
                session.receive(GREETING.as_bytes()).unwrap();
            }
            let _ = session.receive(&bytes);
            crate::qmp::fuzz_entry(&bytes);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut session = Session::new();
        let result = (0..=LINE_MAX / 4096).try_for_each(|_| session.receive(&[b' '; 4096]));
        assert_eq!(result, Err(QmpError::TooLong));
    }

    #[test]
    fn one_question_at_a_time() {
        let mut session = Session::new();
        session.receive(GREETING.as_bytes()).unwrap();
        assert!(session.next_request().is_some());
        assert!(
            session.next_request().is_none(),
            "the first is not answered yet"
        );
        session.ask(Depth::Full);
        assert!(session.next_request().is_none(), "nor may a round begin");
    }
}
