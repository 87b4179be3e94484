//! An agent that misbehaves, for the lab's fault tests: `ostler-guest-evil KIND PORT`.
//!
//! It is in no user's guest: what it shows is that the host's half of the conversation bears with the worst a guest can run.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use ostler_abi::guest::frame::{self, FrameDecoder};
use ostler_abi::guest::wire::{Ack, Capability, Hello, Reply, Request, State, reply, request};
use vsock::{VMADDR_CID_ANY, VsockListener, VsockStream};

/// What it does to whoever connects.
type Evil = fn(&mut VsockStream) -> io::Result<()>;

const KINDS: [(&str, Evil); 4] = [
    ("silent", silent),
    ("slow", slow),
    ("random", random),
    ("lying", lying),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let evil = args.first().and_then(|wanted| {
        let known = KINDS.iter().find(|(name, _)| name == wanted);
        known.map(|(_, evil)| *evil)
    });
    let port = args.get(1).and_then(|port| port.parse().ok());
    let (Some(evil), Some(port)) = (evil, port) else {
        eprintln!("usage: ostler-guest-evil silent|slow|random|lying PORT");
        return ExitCode::from(2);
    };
    let listener = match VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("can't listen on vsock port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    for stream in listener.incoming() {
        // The host hangs up on it sooner or later; then it is as evil to the next connection.
        let _ = stream.and_then(|mut stream| evil(&mut stream));
    }
    ExitCode::SUCCESS
}

/// Hears everything and says nothing.
fn silent(stream: &mut VsockStream) -> io::Result<()> {
    let mut heard = [0; 4096];
    while stream.read(&mut heard)? > 0 {}
    Ok(())
}

/// Answers byte by byte, and so slowly that no answer is ever whole in time.
fn slow(stream: &mut VsockStream) -> io::Result<()> {
    let mut heard = [0; 4096];
    while stream.read(&mut heard)? > 0 {
        for byte in encoded(1, hello())? {
            stream.write_all(&[byte])?;
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    Ok(())
}

/// Sends what no protocol knows, as fast as it is taken.
fn random(stream: &mut VsockStream) -> io::Result<()> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    loop {
        let mut noise = [0; 256];
        for chunk in noise.chunks_mut(8) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            chunk.copy_from_slice(&seed.to_le_bytes());
        }
        stream.write_all(&noise)?;
    }
}

/// Speaks the protocol to the letter, and claims five hundred vCPUs.
fn lying(stream: &mut VsockStream) -> io::Result<()> {
    let mut decoder = FrameDecoder::new();
    let mut heard = [0; 4096];
    loop {
        let len = stream.read(&mut heard)?;
        if len == 0 {
            return Ok(());
        }
        let mut input = &heard[..len];
        while let Some(frame) = decoder.push(&mut input).map_err(io::Error::other)? {
            let asked: Request = frame::decode_payload(&frame.payload).map_err(io::Error::other)?;
            let body = match asked.body {
                Some(request::Body::Hello(_)) => hello(),
                Some(request::Body::GetState(_)) => reply::Body::State(State {
                    online_vcpus: vec![0xff; 64],
                    applied_vcpus: vec![0xff; 64],
                    ..State::default()
                }),
                _ => reply::Body::Ack(Ack::default()),
            };
            stream.write_all(&encoded(frame.request_id, body)?)?;
        }
    }
}

fn hello() -> reply::Body {
    reply::Body::Hello(Hello {
        versions: frame::VERSIONS.iter().map(|&v| u32::from(v)).collect(),
        build: "evil".to_owned(),
        capabilities: vec![Capability::Vcpus.into(), Capability::Queues.into()],
    })
}

fn encoded(request_id: u32, body: reply::Body) -> io::Result<Vec<u8>> {
    frame::encode_reply(request_id, &Reply { body: Some(body) }).map_err(io::Error::other)
}
