//! The programs on a real interface: a client on this side of a veth pair, a server with a delay of its own in a
//! network namespace on the other, and the client's own figures beside ours.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ostler_model::{GuestId, LatencyView, Nanos, TapView};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

use super::{TapLatency, Window};
use crate::bpf::tap::TapBpf;
use crate::sys::now;

const PORT: u16 = 7000;

/// Moves this thread, and what it starts from now on, to a network namespace of its own.
#[allow(unsafe_code)]
pub(super) fn own_network() -> rustix::io::Result<()> {
    // SAFETY: a new network namespace closes no descriptor and shares no memory; only this thread changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// The delay of a request: its first byte, in milliseconds. A response may be long.
fn delay_of(request: &[u8]) -> Duration {
    Duration::from_millis(u64::from(request[0]))
}

const REQUEST_LEN: usize = 64;

/// Serves in a namespace of its own until the test ends. `addresses` are given to its end of the pair, `dev` by `dev`.
fn guest(setup: Vec<String>, response_len: usize) -> mpsc::Sender<()> {
    let (tell, told) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel::<()>();
    let (release, released) = mpsc::channel::<()>();
    thread::spawn(move || {
        own_network().unwrap();
        tell.send(gettid().as_raw_nonzero().get()).unwrap();
        released.recv().unwrap();
        ip("link set lo up");
        for line in setup {
            ip(&line);
        }
        let any: IpAddr = "::".parse().unwrap();
        let listener = TcpListener::bind(SocketAddr::new(any, PORT)).unwrap();
        let datagrams = UdpSocket::bind(SocketAddr::new(any, PORT)).unwrap();
        thread::spawn(move || {
            let mut request = [0; REQUEST_LEN];
            while let Ok((_, from)) = datagrams.recv_from(&mut request) {
                thread::sleep(delay_of(&request));
                datagrams.send_to(&request, from).unwrap();
            }
        });
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let mut request = [0; REQUEST_LEN];
                let response = vec![1; response_len];
                while stream.read_exact(&mut request).is_ok() {
                    thread::sleep(delay_of(&request));
                    stream.write_all(&response).unwrap();
                }
            });
        }
    });
    let tid = told.recv().unwrap();
    ip(&format!("link set veth1 netns {tid}"));
    release.send(()).unwrap();
    is_ready.recv().unwrap();
    release
}

struct Watch {
    latency: TapLatency,
    id: GuestId,
    taps: Vec<TapView>,
    began: Nanos,
}

impl Watch {
    fn new(bpf: TapBpf) -> Watch {
        let window = Window {
            responses_min: 1000,
            span_max: Nanos::from_secs(60),
        };
        let mut watch = Watch {
            latency: TapLatency::new(bpf, window),
            id: GuestId::from("g"),
            taps: vec![TapView {
                name: "veth0".to_owned(),
                guest_mac: None,
                queues: 1,
            }],
            began: now(),
        };
        watch.latency.follow(
            [(&watch.id, watch.taps.as_slice())].into_iter(),
            watch.began,
        );
        assert!(watch.latency.refused.is_empty(), "attached");
        watch
    }

    fn view(&mut self) -> Option<LatencyView> {
        let now = now();
        let view = self.latency.view(&self.id, &self.taps, self.began, now);
        self.began = now;
        view
    }
}

/// Runs `body` in a network namespace of its own, or says why it can't.
fn with_pair(test: &'static str, body: impl FnOnce(TapBpf) + Send + 'static) {
    thread::spawn(move || {
        if let Err(error) = own_network() {
            println!("SKIP {test}: no network namespace of its own ({error})");
            return;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            println!("SKIP {test}: iproute2 is not installed");
            return;
        }
        let bpf = match TapBpf::load(Path::new("/sys")) {
            Ok(bpf) => bpf,
            Err(error) => {
                println!("SKIP {test}: {error}");
                return;
            }
        };
        ip("link add veth0 type veth peer name veth1");
        ip("addr add 10.9.0.1/24 dev veth0");
        ip("addr add fd09::1/64 dev veth0 nodad");
        ip("link set veth0 up");
        body(bpf);
    })
    .join()
    .unwrap();
}

fn plain_guest() -> Vec<String> {
    [
        "addr add 10.9.0.2/24 dev veth1",
        "addr add fd09::2/64 dev veth1 nodad",
        "link set veth1 up",
    ]
    .map(str::to_owned)
    .into()
}

/// Requests with the delays given; returns the client's own times.
fn ask(stream: &mut TcpStream, delays: &[u8], response_len: usize) -> Vec<Duration> {
    let mut response = vec![0; response_len];
    delays
        .iter()
        .map(|&delay| {
            let mut request = [0; REQUEST_LEN];
            request[0] = delay;
            let sent = Instant::now();
            stream.write_all(&request).unwrap();
            // A sample ends where the response begins: reading all of a long one takes a slow machine as long as the delay.
            stream.read_exact(&mut response[..1]).unwrap();
            let took = sent.elapsed();
            stream.read_exact(&mut response[1..]).unwrap();
            took
        })
        .collect()
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[(times.len() * percent).div_ceil(100) - 1].as_nanos() as f64
}

/// The client sees what we see and its own way to the interface beside; both take delays of many milliseconds, so that
/// the scheduling of a busy machine is small against them.
fn agrees(view: &LatencyView, times: &[Duration]) {
    assert_eq!(view.responses, times.len() as u64, "{view:?}");
    for (ours, percent) in [(view.p50, 50), (view.p95, 95)] {
        let theirs = percentile(times, percent);
        let ratio = ours.0 as f64 / theirs;
        println!("P{percent}: ours {ours} ns, the client's {theirs} ns, ratio {ratio:.3}");
        assert!(
            (0.75..1.08).contains(&ratio),
            "P{percent}: {ours} against {theirs}"
        );
    }
}

const DELAYS: [u8; 40] = {
    let mut delays = [8; 40];
    delays[5] = 30;
    delays[15] = 30;
    delays[25] = 30;
    delays[35] = 30;
    delays
};

#[test]
fn tcp_times_agree_with_the_clients_own() {
    with_pair("tcp_times_agree_with_the_clients_own", |bpf| {
        let _guest = guest(plain_guest(), 64);
        for address in ["10.9.0.2", "fd09::2"] {
            let address: IpAddr = address.parse().unwrap();
            let mut watch = Watch::new(TapBpf::load(Path::new("/sys")).unwrap());
            let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
            let times = ask(&mut stream, &DELAYS, 64);
            agrees(&watch.view().expect("responses were seen"), &times);
        }
        drop(bpf);
    });
}

#[test]
fn a_connection_older_than_the_sensor_is_seen_too() {
    with_pair("a_connection_older_than_the_sensor_is_seen_too", |bpf| {
        let _guest = guest(plain_guest(), 64);
        let address: IpAddr = "10.9.0.2".parse().unwrap();
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        ask(&mut stream, &[1, 1], 64);
        let mut watch = Watch::new(bpf);
        let times = ask(&mut stream, &DELAYS, 64);
        agrees(&watch.view().expect("responses were seen"), &times);
    });
}

#[test]
fn a_long_response_is_one_sample() {
    with_pair("a_long_response_is_one_sample", |bpf| {
        let _guest = guest(plain_guest(), 300_000);
        let address: IpAddr = "10.9.0.2".parse().unwrap();
        let mut watch = Watch::new(bpf);
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        let times = ask(&mut stream, &DELAYS, 300_000);
        agrees(&watch.view().expect("responses were seen"), &times);
    });
}

#[test]
fn a_vlan_is_looked_through() {
    with_pair("a_vlan_is_looked_through", |bpf| {
        let vlan = "link add link veth0 name vlan5 type vlan id 5".split(' ');
        if !Command::new("ip").args(vlan).status().unwrap().success() {
            println!("SKIP a_vlan_is_looked_through: this kernel has no VLAN interfaces");
            return;
        }
        ip("addr add 10.10.0.1/24 dev vlan5");
        ip("link set vlan5 up");
        let mut setup = plain_guest();
        setup.extend(
            [
                "link add link veth1 name vlan5 type vlan id 5",
                "addr add 10.10.0.2/24 dev vlan5",
                "link set vlan5 up",
            ]
            .map(str::to_owned),
        );
        let _guest = guest(setup, 64);
        let address: IpAddr = "10.10.0.2".parse().unwrap();
        let mut watch = Watch::new(bpf);
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        let times = ask(&mut stream, &DELAYS, 64);
        agrees(&watch.view().expect("responses were seen"), &times);
    });
}

#[test]
fn udp_times_agree_with_the_clients_own() {
    with_pair("udp_times_agree_with_the_clients_own", |bpf| {
        let _guest = guest(plain_guest(), 64);
        let mut watch = Watch::new(bpf);
        let socket = UdpSocket::bind("10.9.0.1:40000").unwrap();
        socket.connect(("10.9.0.2", PORT)).unwrap();
        let times: Vec<Duration> = DELAYS
            .iter()
            .map(|&delay| {
                let mut datagram = [0; REQUEST_LEN];
                datagram[0] = delay;
                let sent = Instant::now();
                socket.send(&datagram).unwrap();
                socket.recv(&mut datagram).unwrap();
                sent.elapsed()
            })
            .collect();
        agrees(&watch.view().expect("responses were seen"), &times);
    });
}

/// The guest as a client: the time it takes to think of its next request is no response time. The far end of the pair
/// asks, and this side, which is the one that is watched, answers; from ports that would tell the opposite by custom.
#[test]
fn a_guest_that_asks_yields_no_samples() {
    with_pair("a_guest_that_asks_yields_no_samples", |bpf| {
        let mut watch = Watch::new(bpf);
        let (tell, told) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let listener = TcpListener::bind("10.9.0.1:60999").unwrap();
        let asking = thread::spawn(move || {
            own_network().unwrap();
            tell.send(gettid().as_raw_nonzero().get()).unwrap();
            released.recv().unwrap();
            for line in plain_guest() {
                ip(&line);
            }
            // Its own port is an ephemeral one, below 60999.
            let mut stream = TcpStream::connect("10.9.0.1:60999").unwrap();
            let mut response = [0; REQUEST_LEN];
            for _ in 0..20 {
                stream.write_all(&[1; REQUEST_LEN]).unwrap();
                stream.read_exact(&mut response).unwrap();
            }
        });
        let tid = told.recv().unwrap();
        ip(&format!("link set veth1 netns {tid}"));
        release.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; REQUEST_LEN];
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&request).unwrap();
        }
        asking.join().unwrap();
        assert_eq!(watch.view(), None);
    });
}

/// More flows than the table holds: what is remembered is bounded, and later requests are sampled all the same.
#[test]
fn a_flood_of_flows_leaves_later_ones_their_samples() {
    with_pair("a_flood_of_flows_leaves_later_ones_their_samples", |bpf| {
        let _guest = guest(plain_guest(), 64);
        let mut watch = Watch::new(bpf);
        let flood = UdpSocket::bind("10.9.0.1:0").unwrap();
        for port in 1..=20_000u16 {
            // Nobody listens on most of them; refusals that come back are of no interest.
            let _ = flood.send_to(&[0; REQUEST_LEN], ("10.9.0.2", port));
        }
        watch.view();
        let before = watch.view().map_or(0, |view| view.responses);
        let address: IpAddr = "10.9.0.2".parse().unwrap();
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        ask(&mut stream, &[1; 10], 64);
        assert_eq!(watch.view().expect("seen").responses, before + 10);
    });
}
