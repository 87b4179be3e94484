//! A guest's turn to work. Where several guests take turns under load in one boot of the host, those that work by themselves, whether
//! anybody asks them to or not, would disturb the others' turns; so they rest, and work while the lab holds a connection to them. Between cells
//! all of them rest. On the connection they also say on request what they have done, to the instant: on their serial lines they say it once a second.
//!
//! It is the guest that freezes its own work. Frozen from outside, its QEMU would answer no monitor, and a steward would have
//! to be told of a state that is no guest's.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::done::Done;
use super::net::CLIENT;
use crate::machine;

/// Where guests listen for it: `assets/guest-init.sh` has the same number.
const PORT: u16 = 9;
/// A guest of one vCPU among seven others, on an emulated core, gets there in a second or two.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Two numbers and their line end.
const ANSWER_BYTES_MAX: u64 = 48;

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Turn {
    /// Has guest number `index` work.
    pub fn begin(index: usize) -> anyhow::Result<Turn> {
        let address: IpAddr = machine::guest_address(index).parse()?;
        let address = SocketAddr::new(address, PORT);
        // A socket stays in the namespace in which it was made, so a thread of its own is all that has to go there.
        let connecting = std::thread::spawn(move || connect(address));
        let stream = connecting
            .join()
            .map_err(|_| anyhow::anyhow!("the thread that connects to {address} failed"))?
            .with_context(|| format!("could not begin a guest's turn at {address}"))?;
        let mut turn = Turn {
            stream: BufReader::new(stream),
            address,
        };
        // Answered once it works.
        turn.work()?;
        Ok(turn)
    }

    /// Has guests work, by their numbers: all of them at once, as whoever comes later waits for a core that those before have.
    pub fn begin_all(guests: &[usize]) -> Vec<(usize, anyhow::Result<Turn>)> {
        let start = |&index: &usize| (index, std::thread::spawn(move || Turn::begin(index)));
        let beginning: Vec<_> = guests.iter().map(start).collect();
        let begun = beginning.into_iter().map(|(index, turn)| {
            let failed = |_| Err(anyhow::anyhow!("the thread of guest {index}'s turn failed"));
            (index, turn.join().unwrap_or_else(failed))
        });
        begun.collect()
    }

    /// What the guest has done since its boot.
    pub fn work(&mut self) -> anyhow::Result<Done> {
        let asked = ask(&mut self.stream);
        asked.with_context(|| format!("the guest at {} didn't say its work", self.address))
    }
}

fn ask(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Done> {
    stream.get_mut().write_all(b"\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    Done::parse(&answer).with_context(|| format!("it said `{}`", answer.escape_debug()))
}

fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let path = format!("/run/netns/{CLIENT}");
    let namespace = File::open(&path).with_context(|| format!("could not open {path}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("could not enter {path}"))?;
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What is asked of a guest that says this.
    fn asked(answer: &'static [u8]) -> anyhow::Result<Done> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address");
        let guest = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut line = [0];
            stream.read_exact(&mut line).expect("a question");
            stream.write_all(answer).expect("an answer");
        });
        let stream = TcpStream::connect(address).expect("a connection");
        let work = ask(&mut BufReader::new(stream));
        guest.join().expect("the guest");
        work
    }

    #[test]
    fn a_guest_says_what_it_has_done_or_what_it_said_is_told() {
        let done = Done {
            work: 1234,
            at_s: 56.78,
        };
        assert_eq!(asked(b"1234 56.78\n").expect("what it has done"), done);
        let told = asked(b"no\x07\n").expect_err("no number").to_string();
        assert!(told.contains("it said `no\\u{7}\\n`"), "{told}");
        assert!(asked(b"").is_err(), "it hung up");
        assert!(
            asked(&[b'9'; 1000]).is_err(),
            "no more is read than two numbers take"
        );
    }
}
