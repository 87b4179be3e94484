//! The event loop around a [`Driver`]: sockets, the clock, and nothing else.
//!
//! One thread owns its connections, its driver and a timer. A turn is: take in what is due, write what can be written, wait for
//! replies or for the next due instant, read. A short read means the socket is empty (edge-triggered polling is sound with that rule
//! on streams), which saves a system call per reply. A lost connection is opened again after a pause, for ever; requests
//! meanwhile wait their turn and are charged for it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::clock::{Timer, monotonic_ns};
use crate::driver::Driver;
use crate::error::LoadError;
use crate::ledger::Window;
use crate::link::Link;
use crate::proto::{Protocol, Wire};

/// Below this the loop polls instead of sleeping: arming a timer and waking up costs about as much.
const SPIN_NS: u64 = 20_000;
/// A lost connection is opened again after this.
const RECONNECT_NS: u64 = 100_000_000;
const READ_BYTES: usize = 256 << 10;
/// A connection with more to read than this waits until the others have had their turn.
const READS_PER_TURN_MAX: usize = 16;

#[derive(Debug)]
enum Socket {
    Open(Link),
    Opening(Link),
    Down { retry_ns: u64 },
}

/// One thread of load.
pub struct Worker<P: Protocol> {
    driver: Driver<P>,
    wire: Wire,
    target: SocketAddr,
    sockets: Vec<Socket>,
    poll: Poll,
    timer: Timer,
    buffer: Vec<u8>,
    /// Monotonic time of the run's zero.
    start_ns: u64,
    down: usize,
    /// Lanes that may hold more to read though poll won't say so again.
    unread: Vec<usize>,
}

impl<P: Protocol> Worker<P> {
    /// A worker over connections that stand.
    pub fn new(
        mut driver: Driver<P>,
        target: SocketAddr,
        links: Vec<Link>,
        start_ns: u64,
    ) -> Result<Self, LoadError> {
        let fail = |what| move |source| LoadError::Loop { what, source };
        let poll = Poll::new().map_err(fail("epoll_create"))?;
        let timer = Timer::new()?;
        let timer_token = Token(links.len());
        poll.registry()
            .register(
                &mut SourceFd(&timer.raw_fd()),
                timer_token,
                Interest::READABLE,
            )
            .map_err(fail("registering the timer"))?;
        let mut sockets = Vec::with_capacity(links.len());
        for (lane, mut link) in links.into_iter().enumerate() {
            poll.registry()
                .register(
                    &mut link,
                    Token(lane),
                    Interest::READABLE | Interest::WRITABLE,
                )
                .map_err(fail("registering a connection"))?;
            driver.lane_opened(lane);
            sockets.push(Socket::Open(link));
        }
        Ok(Self {
            wire: driver.wire(),
            driver,
            target,
            sockets,
            poll,
            timer,
            buffer: vec![0; READ_BYTES],
            start_ns,
            down: 0,
            unread: Vec::new(),
        })
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.start_ns)
    }

    /// Runs the whole schedule; settled windows go to `windows`, in order.
    pub fn run(mut self, windows: &Sender<Window>) -> Result<(), LoadError> {
        let mut events = Events::with_capacity(1_024);
        let timer_token = Token(self.sockets.len());
        loop {
            let now_ns = self.now_ns();
            self.driver.advance(now_ns);
            while let Some(lane) = self.driver.take_dirty() {
                self.flush(lane);
            }
            while let Some(window) = self.driver.settle(now_ns) {
                if windows.send(window).is_err() {
                    // Nobody listens any more.
                    return Ok(());
                }
            }
            if self.driver.is_done() {
                return Ok(());
            }
            let retry_ns = self.reopen(now_ns);
            let Some(wake_ns) = self
                .driver
                .next_wake_ns(now_ns)
                .into_iter()
                .chain(retry_ns)
                .min()
            else {
                return Ok(());
            };
            let timeout = if !self.unread.is_empty() || wake_ns <= self.now_ns() + SPIN_NS {
                Some(Duration::ZERO)
            } else {
                self.timer.arm(self.start_ns + wake_ns)?;
                None
            };
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other.map_err(|source| LoadError::Loop {
                    what: "epoll_wait",
                    source,
                })?,
            }
            for lane in std::mem::take(&mut self.unread) {
                self.readable(lane);
            }
            for event in &events {
                if event.token() == timer_token {
                    self.timer.fired();
                    continue;
                }
                let lane = event.token().0;
                if event.is_writable() {
                    self.writable(lane);
                }
                if event.is_readable() || event.is_read_closed() {
                    self.readable(lane);
                }
            }
        }
    }

    fn writable(&mut self, lane: usize) {
        if let Socket::Opening(link) = &self.sockets[lane] {
            if !link.stands() {
                return self.lost(lane);
            }
            let down = Socket::Down { retry_ns: 0 };
            if let Socket::Opening(link) = std::mem::replace(&mut self.sockets[lane], down) {
                self.sockets[lane] = Socket::Open(link);
                self.down -= 1;
                self.driver.lane_opened(lane);
            }
        }
        self.flush(lane);
    }

    fn flush(&mut self, lane: usize) {
        while let Socket::Open(link) = &mut self.sockets[lane] {
            let unsent = self.driver.unsent(lane);
            let piece = match self.wire {
                Wire::Stream => unsent,
                Wire::Icmp { bytes } => &unsent[..bytes.min(unsent.len())],
            };
            if piece.is_empty() {
                return;
            }
            match link.send(piece) {
                Ok(0) => return self.lost(lane),
                Ok(count) => self.driver.wrote(lane, count),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.lost(lane),
            }
        }
    }

    fn readable(&mut self, lane: usize) {
        let mut reads = 0;
        while let Socket::Open(link) = &mut self.sockets[lane] {
            reads += 1;
            let stream = self.wire == Wire::Stream;
            match link.receive(&mut self.buffer) {
                Ok(0) if stream => return self.lost(lane),
                Ok(count) => {
                    let now_ns = monotonic_ns().saturating_sub(self.start_ns);
                    if self
                        .driver
                        .received(lane, &self.buffer[..count], now_ns)
                        .is_err()
                    {
                        return self.lost(lane);
                    }
                    if stream && count < self.buffer.len() {
                        return;
                    }
                    if reads >= READS_PER_TURN_MAX {
                        return self.unread.push(lane);
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.lost(lane),
            }
        }
    }

    fn lost(&mut self, lane: usize) {
        let now_ns = self.now_ns();
        let down = Socket::Down {
            retry_ns: now_ns + RECONNECT_NS,
        };
        match std::mem::replace(&mut self.sockets[lane], down) {
            Socket::Open(mut link) => {
                // It is closed in the next line; failing to unregister it is of no consequence.
                let _ = self.poll.registry().deregister(&mut link);
                self.down += 1;
                self.driver.lane_closed(lane, now_ns);
            }
            Socket::Opening(mut link) => {
                let _ = self.poll.registry().deregister(&mut link);
            }
            Socket::Down { .. } => {}
        }
    }

    /// Opens lost connections whose pause is over; returns when the next pause ends.
    fn reopen(&mut self, now_ns: u64) -> Option<u64> {
        if self.down == 0 {
            return None;
        }
        let mut next: Option<u64> = None;
        for lane in 0..self.sockets.len() {
            if let Socket::Down { retry_ns } = self.sockets[lane] {
                let retry_ns = if retry_ns > now_ns {
                    retry_ns
                } else {
                    self.open_again(lane, now_ns)
                };
                next = Some(next.map_or(retry_ns, |n| n.min(retry_ns)));
            }
        }
        next
    }

    fn open_again(&mut self, lane: usize, now_ns: u64) -> u64 {
        let opened = Link::reopen(self.target, self.wire).and_then(|mut link| {
            self.poll.registry().register(
                &mut link,
                Token(lane),
                Interest::READABLE | Interest::WRITABLE,
            )?;
            Ok(link)
        });
        let retry_ns = now_ns + RECONNECT_NS;
        self.sockets[lane] = opened.map_or(Socket::Down { retry_ns }, Socket::Opening);
        retry_ns
    }
}
