//! One guest's agent, as a state machine that does no IO and is told the time.
//!
//! The line is strictly one request, one reply. That alone makes most attacks plain: whatever arrives when nothing was asked is a
//! lie, so a flood ends the connection with its first surplus byte, and whatever is asked must be answered *in whole* by one
//! deadline, so dripping bytes buys no time. What is held for a guest is one frame at most.
//!
//! Settings are level-triggered: what is desired is compared with the last state reported, and only a difference makes
//! a request. A guest that acknowledges and doesn't comply is asked again at a bounded pace.
//!
//! A connection that ends badly is tried again after a pause that doubles up to [`Timing::backoff_max`]. Only a connection that
//! has stood for that long makes the pause short again, or a guest could lie in every other reply at full speed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ostler_abi::guest::{
    bits, bounded_text,
    frame::{self, FrameDecoder, FrameError, Kind},
    wire,
};
use wire::{Capability, ErrorCode, reply, request};

use super::state::{GuestState, Lie, validate};
use super::{Desired, GuestLimits, Health, Timing};

/// How far the connection is.
#[derive(Debug)]
enum Link {
    /// None; next attempt at the time.
    Down { retry_at: Instant },
    /// An attempt is under way.
    Connecting { deadline: Instant },
    /// There is one.
    Up(Box<Session>),
}

/// What a request asked, as far as its reply needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Hello,
    State,
    Vcpus,
    Queues,
    Restore,
}

#[derive(Debug)]
struct Pending {
    id: u32,
    asked: Asked,
    since: Instant,
}

#[derive(Debug)]
struct Session {
    since: Instant,
    decoder: FrameDecoder,
    outgoing: Vec<u8>,
    pending: Option<Pending>,
    next_id: u32,
    /// From the agent's Hello.
    acts: Option<bool>,
    state: Option<Arc<GuestState>>,
    /// A setting was acknowledged, but the state doesn't show it yet.
    stale: bool,
    next_state_at: Instant,
    vcpus_hold: Option<Instant>,
    queues_hold: Option<Instant>,
    /// As the last, but whatever is desired: the vCPUs were set not long before. Never in the past once something was looked for to ask.
    queues_after: Option<Instant>,
}

/// A guest's agent.
#[derive(Debug)]
pub struct Peer {
    limits: GuestLimits,
    timing: Timing,
    desired: Desired,
    restore: bool,
    link: Link,
    failures: u32,
    health: Health,
    seen: Option<(Arc<GuestState>, Instant)>,
    refusal: Option<String>,
}

impl Peer {
    /// A peer to connect to at once.
    pub fn new(limits: GuestLimits, timing: Timing, now: Instant) -> Self {
        Self {
            limits,
            timing,
            desired: Desired::default(),
            restore: false,
            link: Link::Down { retry_at: now },
            failures: 0,
            health: Health::Connecting,
            seen: None,
            refusal: None,
        }
    }

    /// Says what is wanted from now on.
    pub fn desire(&mut self, desired: Desired) {
        if desired != self.desired {
            self.desired = desired;
            self.refusal = None;
            if let Link::Up(session) = &mut self.link {
                session.vcpus_hold = None;
                session.queues_hold = None;
            }
        }
    }

    /// Asks that all be put back; nothing is desired from then on.
    pub fn restore(&mut self) {
        self.desired = Desired::default();
        self.restore = true;
    }

    /// Whether a restore is still to be acknowledged.
    pub fn restore_pending(&self) -> bool {
        self.restore
    }

    /// What is thought of the agent.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The last state it gave, and when.
    pub fn seen(&self) -> Option<&(Arc<GuestState>, Instant)> {
        self.seen.as_ref()
    }

    /// Why it doesn't do what is desired.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Whether it is time to try and connect.
    pub fn wants_connection(&self, now: Instant) -> bool {
        matches!(self.link, Link::Down { retry_at } if now >= retry_at)
    }

    /// Whether there should be a socket.
    pub fn has_link(&self) -> bool {
        !matches!(self.link, Link::Down { .. })
    }

    /// Whether the socket's connection is still being made.
    pub fn is_connecting(&self) -> bool {
        matches!(self.link, Link::Connecting { .. })
    }

    /// An attempt is under way.
    pub fn connecting(&mut self, now: Instant) {
        let deadline = now + self.timing.connect_timeout;
        self.link = Link::Connecting { deadline };
    }

    /// There is a connection.
    pub fn connected(&mut self, now: Instant) {
        self.link = Link::Up(Box::new(Session {
            since: now,
            decoder: FrameDecoder::new(),
            outgoing: Vec::new(),
            pending: None,
            next_id: 1,
            acts: None,
            state: None,
            stale: false,
            next_state_at: now,
            vcpus_hold: None,
            queues_hold: None,
            queues_after: None,
        }));
    }

    /// There is none to be had, or it was closed by the guest.
    pub fn refused(&mut self, now: Instant) {
        self.fail(now, Health::Refused);
    }

    /// What there is to send.
    pub fn outgoing(&self) -> &[u8] {
        match &self.link {
            Link::Up(session) => &session.outgoing,
            _ => &[],
        }
    }

    /// So much of it was sent.
    pub fn sent(&mut self, bytes: usize) {
        if let Link::Up(session) = &mut self.link {
            session.outgoing.drain(..bytes.min(session.outgoing.len()));
        }
    }

    /// Bytes arrived.
    pub fn received(&mut self, now: Instant, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Link::Up(session) = &mut self.link else {
                return; // Closed on account of what came before.
            };
            // A reply to a request that hasn't left yet is as unasked as one to none.
            let asked = session.pending.take_if(|_| session.outgoing.is_empty());
            let Some(pending) = asked else {
                return self.lie(now, Lie::Unasked);
            };
            match session.decoder.push(&mut bytes) {
                Ok(None) => session.pending = Some(pending),
                Ok(Some(frame)) => {
                    if frame.kind != Kind::Reply || frame.request_id != pending.id {
                        return self.lie(now, Lie::Unasked);
                    }
                    if let Err(lie) = self.replied(now, &pending, &frame.payload) {
                        return self.lie(now, lie);
                    }
                }
                Err(error @ FrameError::Version { .. }) => {
                    self.refusal = Some(bounded_text(&error.to_string()));
                    return self.fail(now, Health::Refused);
                }
                Err(error) => return self.lie(now, error.into()),
            }
        }
    }

    /// Lets time act: deadlines pass, and the next request is made.
    pub fn poll(&mut self, now: Instant) {
        match &self.link {
            Link::Connecting { deadline } if now >= *deadline => self.fail(now, Health::Silent),
            Link::Down { .. } | Link::Connecting { .. } => {}
            Link::Up(session) => match &session.pending {
                Some(pending) if now >= pending.since + self.timing.reply_timeout => {
                    // Part of an answer is an agent that can't or won't finish; none at all may be a guest that is stopped.
                    let health = if session.decoder.held_bytes() > 0 {
                        Health::Slow
                    } else {
                        Health::Silent
                    };
                    self.fail(now, health);
                }
                Some(_) => {}
                None => self.ask(now),
            },
        }
    }

    /// When [`Peer::poll`] or a connection is due next.
    pub fn next_deadline(&self) -> Instant {
        match &self.link {
            Link::Down { retry_at } => *retry_at,
            Link::Connecting { deadline } => *deadline,
            Link::Up(session) => match &session.pending {
                Some(pending) => pending.since + self.timing.reply_timeout,
                None => session
                    .queues_after
                    .map_or(session.next_state_at, |at| at.min(session.next_state_at)),
            },
        }
    }

    fn lie(&mut self, now: Instant, lie: Lie) {
        // Nothing a liar said is worth keeping.
        self.seen = None;
        self.fail(now, Health::Lying { what: lie });
    }

    fn fail(&mut self, now: Instant, health: Health) {
        if let Link::Up(session) = &self.link
            && now.duration_since(session.since) >= self.timing.backoff_max
        {
            self.failures = 0;
        }
        self.health = health;
        let doublings = self.failures.min(16);
        let pause = (self.timing.backoff_min * (1 << doublings)).min(self.timing.backoff_max);
        self.failures = self.failures.saturating_add(1);
        self.link = Link::Down {
            retry_at: now + pause,
        };
    }

    /// Makes the next request, if one is due.
    fn ask(&mut self, now: Instant) {
        let Link::Up(session) = &mut self.link else {
            return;
        };
        session.queues_after = session.queues_after.filter(|at| now < *at);
        let Some((asked, body)) = session.next_request(now, &self.desired, self.restore) else {
            return;
        };
        let id = session.next_id;
        session.next_id = session.next_id.wrapping_add(1);
        let request = wire::Request { body: Some(body) };
        // Limits bound every request far below a frame.
        let Ok(bytes) = frame::encode_request(id, &request) else {
            return;
        };
        session.outgoing.extend_from_slice(&bytes);
        session.pending = Some(Pending {
            id,
            asked,
            since: now,
        });
    }

    fn replied(&mut self, now: Instant, pending: &Pending, payload: &[u8]) -> Result<(), Lie> {
        let Link::Up(session) = &mut self.link else {
            return Ok(());
        };
        let reply: wire::Reply = frame::decode_payload(payload)?;
        let body = reply.body.ok_or(Lie::WrongReply)?;
        match (pending.asked, body) {
            (Asked::Hello, reply::Body::Hello(hello)) => {
                let acts = |c: Capability| hello.capabilities.contains(&c.into());
                session.acts = Some(acts(Capability::Vcpus) && acts(Capability::Queues));
            }
            (Asked::State, reply::Body::State(state)) => {
                let acts = session.acts.unwrap_or(false);
                let state = validate(&state, acts, self.limits, session.state.as_deref())?;
                let state = Arc::new(state);
                session.state = Some(Arc::clone(&state));
                session.stale = false;
                session.next_state_at = now + self.timing.state_interval;
                self.seen = Some((state, now));
                let late = now.duration_since(pending.since) >= self.timing.slow_after;
                self.health = if late { Health::Slow } else { Health::Healthy };
            }
            (asked @ (Asked::Vcpus | Asked::Queues | Asked::Restore), reply::Body::Ack(ack)) => {
                session.stale = true;
                session.hold(asked, now + self.timing.setting_retry);
                if asked == Asked::Vcpus {
                    let after = now + self.timing.queues_after_vcpus;
                    session.queues_after.get_or_insert(after);
                }
                self.restore &= asked != Asked::Restore;
                let left = ack.left_alone;
                self.refusal = (left > 0).then(|| format!("{left} settings are left as they are"));
            }
            (asked, reply::Body::Error(error)) => {
                let text = bounded_text(&error.text);
                self.refusal = Some(format!("{}: {text}", error.code().as_str_name()));
                match asked {
                    // Without these there is nothing to do with this agent.
                    Asked::Hello | Asked::State => self.fail(now, Health::Refused),
                    Asked::Vcpus | Asked::Queues => {
                        session.hold(asked, now + self.timing.setting_retry);
                        session.stale = error.code() != ErrorCode::Unsupported;
                    }
                    // An agent that can't restore never changed anything.
                    Asked::Restore => self.restore = false,
                }
            }
            _ => return Err(Lie::WrongReply),
        }
        // The next request needs no tick.
        self.poll(now);
        Ok(())
    }
}

impl Session {
    fn hold(&mut self, asked: Asked, until: Instant) {
        match asked {
            Asked::Vcpus => self.vcpus_hold = Some(until),
            Asked::Queues => self.queues_hold = Some(until),
            Asked::Hello | Asked::State | Asked::Restore => {}
        }
    }

    /// The most urgent thing to ask, if anything.
    fn next_request(
        &self,
        now: Instant,
        desired: &Desired,
        restore: bool,
    ) -> Option<(Asked, request::Body)> {
        let Some(acts) = self.acts else {
            let hello = wire::Hello {
                versions: frame::VERSIONS.iter().map(|&v| v.into()).collect(),
                build: concat!("ostler ", env!("CARGO_PKG_VERSION")).into(),
                capabilities: Vec::new(),
            };
            return Some((Asked::Hello, request::Body::Hello(hello)));
        };
        if restore {
            return Some((Asked::Restore, request::Body::Restore(wire::Restore {})));
        }
        let get_state = Some((Asked::State, request::Body::GetState(wire::GetState {})));
        let Some(state) = self.state.as_ref().filter(|_| !self.stale) else {
            return get_state;
        };
        let free = |hold: Option<Instant>| acts && hold.is_none_or(|until| now >= until);
        if let Some(vcpus) = &desired.vcpus
            && (*vcpus != state.applied_vcpus || !state.confined)
            && free(self.vcpus_hold)
        {
            let set = wire::SetVcpus {
                vcpus: bits::from_ids(vcpus.iter().copied()),
            };
            return Some((Asked::Vcpus, request::Body::SetVcpus(set)));
        }
        if let Some((mac, count)) = desired.queues
            && free(self.queues_hold)
            && self.queues_after.is_none()
            && state.nics.iter().any(|nic| {
                nic.mac == mac && nic.queues.is_some_and(|queues| queues.current != count)
            })
        {
            let set = wire::SetQueues {
                mac: mac.to_vec(),
                count,
            };
            return Some((Asked::Queues, request::Body::SetQueues(set)));
        }
        (now >= self.next_state_at).then_some(get_state).flatten()
    }
}

/// See [`super::fuzz_entry`]. Each step is an operation byte with its argument.
pub fn fuzz(data: &[u8]) -> Peer {
    const VCPUS: u32 = 8;
    let limits = GuestLimits {
        vcpus: VCPUS,
        max_queues: 4,
    };
    let mut now = Instant::now();
    let mut peer = Peer::new(limits, Timing::default(), now);
    peer.desire(Desired {
        vcpus: Some(vec![1, 3]),
        queues: Some(([2, 0, 0, 0, 0, 1], 2)),
    });
    let mut rest = data;
    while let [operation, argument, tail @ ..] = rest {
        rest = tail;
        match operation % 8 {
            0 => now += Duration::from_millis(u64::from(*argument) * 20),
            1 => peer.refused(now),
            2 => peer.restore(),
            3 if peer.wants_connection(now) => peer.connecting(now),
            4 if peer.wants_connection(now) || peer.is_connecting() => peer.connected(now),
            5 => {
                // A well-formed frame around arbitrary bytes reaches far deeper than arbitrary bytes do.
                let (payload, tail) = rest.split_at(usize::from(*argument).min(rest.len()));
                rest = tail;
                let id = match &peer.link {
                    Link::Up(session) => session.pending.as_ref().map_or(0, |pending| pending.id),
                    _ => 0,
                };
                let mut bytes = b"OSTL\x01\x00\x02\x00".to_vec();
                bytes.extend(id.to_le_bytes());
                bytes.extend(
                    u32::from(u8::try_from(payload.len()).unwrap_or(u8::MAX)).to_le_bytes(),
                );
                bytes.extend(payload);
                peer.received(now, &bytes);
            }
            6 => {
                let (bytes, tail) = rest.split_at(usize::from(*argument).min(rest.len()));
                rest = tail;
                peer.received(now, bytes);
            }
            _ => peer.sent(usize::from(*argument)),
        }
        peer.poll(now);
        assert!(
            peer.outgoing().len() <= frame::HEADER_BYTES + 256,
            "one small request at most"
        );
        if let Link::Up(session) = &peer.link {
            let held = session.decoder.held_bytes();
            assert!(
                held <= frame::HEADER_BYTES + frame::PAYLOAD_BYTES_MAX,
                "one frame at most"
            );
        }
        if let Some((state, _)) = peer.seen() {
            let known = |vcpus: &[u32]| !vcpus.is_empty() && vcpus.iter().all(|&v| v < VCPUS);
            assert!(
                known(&state.online_vcpus) && known(&state.applied_vcpus),
                "impossible vCPUs"
            );
        }
        if matches!(peer.health(), Health::Lying { .. }) {
            assert!(peer.seen().is_none(), "a liar's word was kept");
        }
    }
    peer
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
