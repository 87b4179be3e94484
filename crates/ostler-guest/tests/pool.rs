//! The pool against agents that misbehave in every way a guest could, over real sockets, with an honest guest beside each to
//! show that it doesn't suffer.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ostler_abi::guest::frame::{self, FrameDecoder};
use ostler_abi::guest::wire;
use ostler_guest::host::{
    AgentPool, AgentView, Desired, Endpoint, GuestLimits, Health, Lie, PoolError, Timing,
};
use wire::{reply, request};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const LIMITS: GuestLimits = GuestLimits {
    vcpus: 4,
    max_queues: 4,
};
/// Far beyond anything that should happen here; reached only by failure.
const PATIENCE: Duration = Duration::from_mins(1);

fn timing() -> Timing {
    Timing {
        state_interval: Duration::from_millis(10),
        reply_timeout: Duration::from_millis(400),
        slow_after: Duration::from_millis(400),
        connect_timeout: Duration::from_millis(400),
        setting_retry: Duration::from_millis(20),
        queues_after_vcpus: Duration::from_millis(10),
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
    }
}

/// Reads the level until it is as wanted. The pool has no events to wait for, by design.
fn wait_for(
    pool: &AgentPool,
    id: &str,
    what: &str,
    test: impl Fn(&AgentView) -> bool,
) -> AgentView {
    let start = Instant::now();
    loop {
        let view = pool.view(id).expect("a guest of the pool");
        if test(&view) {
            return view;
        }
        assert!(start.elapsed() < PATIENCE, "{id} never {what}: {view:?}");
        std::thread::yield_now();
    }
}

/// Serves every connection to `path` with `serve`, for as long as the process lives.
fn listen(path: &Path, serve: impl Fn(UnixStream) + Send + 'static) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(path).unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            serve(stream);
        }
    });
    connections
}

/// The next request on `stream`; `None` when it ends.
fn read_request(stream: &mut UnixStream) -> Option<(u32, request::Body)> {
    let mut decoder = FrameDecoder::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte).ok()?;
        if let Some(frame) = decoder.push(&mut &byte[..]).unwrap() {
            let request: wire::Request = frame::decode_payload(&frame.payload).unwrap();
            return Some((frame.request_id, request.body.unwrap()));
        }
    }
}

fn encode(id: u32, body: reply::Body) -> Vec<u8> {
    frame::encode_reply(id, &wire::Reply { body: Some(body) }).unwrap()
}

fn hello() -> reply::Body {
    reply::Body::Hello(wire::Hello {
        versions: vec![1],
        build: "test".into(),
        capabilities: vec![
            wire::Capability::Vcpus.into(),
            wire::Capability::Queues.into(),
        ],
    })
}

fn state(clock_ns: u64, applied: Vec<u8>) -> wire::State {
    wire::State {
        online_vcpus: vec![0b1111],
        confined: applied != [0b1111],
        applied_vcpus: applied,
        nics: vec![wire::Nic {
            name: "eth0".into(),
            mac: MAC.to_vec(),
            combined_current: 4,
            combined_max: 4,
            irqs: vec![],
        }],
        vcpu_times: vec![],
        monotonic_ns: clock_ns,
        time_resolution_ns: 1,
    }
}

/// An honest agent, whose state replies pass through `twist`.
fn agent(mut stream: UnixStream, twist: impl Fn(u32, wire::State) -> Vec<u8>) {
    let mut applied = vec![0b1111];
    let mut clock_ns = 1000;
    while let Some((id, body)) = read_request(&mut stream) {
        clock_ns += 1;
        let bytes = match body {
            request::Body::Hello(_) => encode(id, hello()),
            request::Body::GetState(_) => twist(id, state(clock_ns, applied.clone())),
            request::Body::SetVcpus(set) => {
                applied = set.vcpus;
                encode(id, reply::Body::Ack(wire::Ack::default()))
            }
            request::Body::Restore(_) => {
                applied = vec![0b1111];
                encode(id, reply::Body::Ack(wire::Ack::default()))
            }
            request::Body::SetQueues(_) => encode(id, reply::Body::Ack(wire::Ack::default())),
        };
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn honest(stream: UnixStream) {
    agent(stream, |id, state| encode(id, reply::Body::State(state)));
}

struct Inn {
    pool: AgentPool,
    folder: tempfile::TempDir,
}

impl Inn {
    fn new() -> Self {
        Self {
            pool: AgentPool::new(timing()).unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.path().join(id)
    }

    fn take_on(&self, id: &str) {
        let endpoint = Endpoint::Unix(self.path(id));
        self.pool.ensure(id, endpoint, LIMITS).unwrap();
    }

    fn add(&self, id: &str, serve: impl Fn(UnixStream) + Send + 'static) -> Arc<AtomicUsize> {
        let connections = listen(&self.path(id), serve);
        self.take_on(id);
        connections
    }
}

/// An evil guest beside a good one: the evil one ends with the health expected, again and again, and the good one is heard
/// and obeys all the while.
fn evil(serve: impl Fn(UnixStream) + Send + 'static, expected: impl Fn(&Health) -> bool) {
    let inn = Inn::new();
    inn.add("good", honest);
    let connections = inn.add("evil", serve);
    for round in 1..=3_usize {
        wait_for(&inn.pool, "evil", "came to its health", |view| {
            expected(&view.health) && connections.load(Ordering::Relaxed) >= round
        });
        let vcpus = vec![u32::try_from(round).unwrap()];
        let desired = Desired {
            vcpus: Some(vcpus.clone()),
            queues: None,
        };
        inn.pool.desire("good", desired).unwrap();
        wait_for(&inn.pool, "good", "obeyed in good health", |view| {
            let seen = view.seen.as_ref();
            view.health == Health::Healthy
                && seen.is_some_and(|seen| seen.state.applied_vcpus == vcpus)
        });
    }
}

#[test]
fn a_silent_agent() {
    evil(
        |mut stream| {
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        },
        |health| *health == Health::Silent,
    );
}

#[test]
fn an_agent_that_drips_and_never_ends_its_frame() {
    evil(
        |mut stream| {
            read_request(&mut stream);
            // A header that promises 64 KiB, then as little as keeps a naive reader hoping.
            let header = b"OSTL\x01\x00\x02\x00\x01\x00\x00\x00\x00\x00\x01\x00";
            for byte in header.iter().chain(std::iter::repeat_n(&0, 40_000)) {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::park_timeout(Duration::from_millis(5));
            }
        },
        |health| *health == Health::Slow,
    );
}

#[test]
fn a_lying_agent() {
    let liar = |stream| {
        agent(stream, |id, mut state| {
            state.online_vcpus = vec![0xff; 64];
            encode(id, reply::Body::State(state))
        });
    };
    evil(liar, |health| {
        matches!(
            health,
            Health::Lying {
                what: Lie::Vcpus { .. }
            }
        )
    });
}

#[test]
fn an_agent_whose_clock_goes_back() {
    let liar = |stream| {
        agent(stream, |id, mut state| {
            state.monotonic_ns = 5000 - state.monotonic_ns;
            encode(id, reply::Body::State(state))
        });
    };
    evil(liar, |health| {
        matches!(
            health,
            Health::Lying {
                what: Lie::ClockBack { .. }
            }
        )
    });
}

#[test]
fn an_agent_that_sends_random_bytes() {
    evil(
        |mut stream| {
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
            let noise: Vec<u8> = std::iter::repeat_with(|| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                seed.to_le_bytes()[3]
            })
            .take(4096)
            .collect();
            read_request(&mut stream);
            let _ = stream.write_all(&noise);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        },
        |health| {
            matches!(
                health,
                Health::Lying {
                    what: Lie::Frame(_)
                }
            )
        },
    );
}

#[test]
fn an_agent_whose_frame_is_too_large() {
    evil(
        |mut stream| {
            read_request(&mut stream);
            let _ = stream.write_all(b"OSTL\x01\x00\x02\x00\x01\x00\x00\x00\xff\xff\xff\xff");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        },
        |health| {
            matches!(
                health,
                Health::Lying {
                    what: Lie::Frame(_)
                }
            )
        },
    );
}

#[test]
fn an_agent_that_hangs_up_in_the_middle_of_a_frame() {
    let quitter = |mut stream: UnixStream| {
        if let Some((id, _)) = read_request(&mut stream) {
            let bytes = encode(id, hello());
            let _ = stream.write_all(&bytes[..bytes.len() / 2]);
        }
    };
    evil(quitter, |health| *health == Health::Refused);
}

#[test]
fn an_agent_that_floods() {
    let flooder = |mut stream: UnixStream| {
        let flood = encode(1, hello()).repeat(1000);
        while stream.write_all(&flood).is_ok() {}
    };
    evil(flooder, |health| {
        matches!(health, Health::Lying { what: Lie::Unasked })
    });
}

#[test]
fn nobody_there() {
    let inn = Inn::new();
    inn.take_on("nobody");
    wait_for(&inn.pool, "nobody", "was found absent", |view| {
        view.health == Health::Refused
    });
    // An agent that starts later is found without being asked for.
    listen(&inn.path("nobody"), honest);
    wait_for(&inn.pool, "nobody", "was found", |view| {
        view.health == Health::Healthy
    });
}

#[test]
fn desires_and_restores_reach_the_guest() {
    let inn = Inn::new();
    inn.add("g", honest);
    let desired = Desired {
        vcpus: Some(vec![0, 3]),
        queues: None,
    };
    inn.pool.desire("g", desired).unwrap();
    let is = |expected: &'static [u32]| {
        move |view: &AgentView| {
            view.seen
                .as_ref()
                .is_some_and(|seen| seen.state.applied_vcpus == expected)
        }
    };
    wait_for(&inn.pool, "g", "obeyed", is(&[0, 3]));
    inn.pool.restore("g").unwrap();
    wait_for(&inn.pool, "g", "acknowledged", |view| !view.restore_pending);
    wait_for(&inn.pool, "g", "was restored", is(&[0, 1, 2, 3]));
    // Forgotten and taken on again, its restores count from the start, and still arrive.
    inn.pool.forget("g");
    assert!(inn.pool.view("g").is_none());
    inn.take_on("g");
    let desired = Desired {
        vcpus: Some(vec![2]),
        queues: None,
    };
    inn.pool.desire("g", desired).unwrap();
    wait_for(&inn.pool, "g", "obeyed", is(&[2]));
    inn.pool.restore("g").unwrap();
    wait_for(&inn.pool, "g", "was restored", is(&[0, 1, 2, 3]));
}

#[test]
fn impossible_wishes_are_refused_to_the_caller() {
    let inn = Inn::new();
    inn.take_on("g");
    for vcpus in [vec![], vec![4], vec![1, 1], vec![2, 1]] {
        let desired = Desired {
            vcpus: Some(vcpus),
            queues: None,
        };
        let outcome = inn.pool.desire("g", desired);
        assert!(matches!(outcome, Err(PoolError::Vcpus { .. })));
    }
    for queues in [0, 5] {
        let desired = Desired {
            vcpus: None,
            queues: Some((MAC, queues)),
        };
        let outcome = inn.pool.desire("g", desired);
        assert!(matches!(outcome, Err(PoolError::Queues { .. })));
    }
    let outcome = inn.pool.desire("stranger", Desired::default());
    assert!(matches!(outcome, Err(PoolError::UnknownGuest { .. })));
}
