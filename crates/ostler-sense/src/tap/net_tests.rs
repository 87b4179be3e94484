//! The programs on a real interface: a client on this side of a veth pair, a server with a delay of its own in a
//! network namespace on the other, and our figures between theirs.

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

/// A server at the far end of the pair.
struct Guest {
    /// How long it had each request, from its last byte read to its response's first byte written, in order.
    served: mpsc::Receiver<Duration>,
    /// It ends when this does.
    _release: mpsc::Sender<()>,
}

impl Guest {
    /// How long it had each of the requests that were answered since the last call.
    fn served(&self) -> Vec<Duration> {
        self.served.try_iter().collect()
    }
}

/// Waits as long as the request asks, and says what that took.
fn serve(request: &[u8], served: &mpsc::Sender<Duration>) {
    let read = Instant::now();
    thread::sleep(delay_of(request));
    // Who waits for the response finds its time told.
    let _ = served.send(read.elapsed());
}

/// Serves in a namespace of its own until the test ends. `setup` is what `ip` is told there before.
fn guest(setup: Vec<String>, response_len: usize) -> Guest {
    let (tell, told) = mpsc::channel();
    let (tell_served, served) = mpsc::channel();
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
        let tell = tell_served.clone();
        thread::spawn(move || {
            let mut request = [0; REQUEST_LEN];
            while let Ok((_, from)) = datagrams.recv_from(&mut request) {
                serve(&request, &tell);
                datagrams.send_to(&request, from).unwrap();
            }
        });
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let tell = tell_served.clone();
            thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let mut request = [0; REQUEST_LEN];
                let response = vec![1; response_len];
                while stream.read_exact(&mut request).is_ok() {
                    serve(&request, &tell);
                    stream.write_all(&response).unwrap();
                }
            });
        }
    });
    let tid = told.recv().unwrap();
    ip(&format!("link set veth1 netns {tid}"));
    release.send(()).unwrap();
    is_ready.recv().unwrap();
    Guest {
        served,
        _release: release,
    }
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
            span_max: Nanos::from_secs(600),
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

/// TCP segments that this network namespace has sent again since it was made.
fn sent_again() -> usize {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    let column = names.split(' ').position(|name| name == "RetransSegs");
    let value = values.split(' ').nth(column.unwrap()).unwrap();
    value.parse().unwrap()
}

/// Each request is on the interface after the client has begun to send it and before the server has read it, and its
/// response before the client has read of it and after the server has begun to send it. So each of our times lies
/// between the server's and the client's, and so does each percentile, however busy the machine is. A bucket of the
/// histogram may be 1/16 off.
///
/// Of a request that was sent again no time can be told (Karn): on a machine that stalls for 200 ms that happens, and
/// so many may be missing. The n-th of what is left was then between the n-th and the (n + missing)-th of all.
fn agrees(view: &LatencyView, client: &[Duration], server: &[Duration]) {
    let seen = usize::try_from(view.responses).unwrap();
    assert_eq!(client.len(), server.len());
    let missing = client.len().checked_sub(seen).expect("one time each");
    let again = sent_again();
    assert!(
        missing <= again,
        "{missing} of {} requests have no time, and {again} were sent again",
        client.len()
    );
    let sorted = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times
    };
    let (client, server) = (sorted(client), sorted(server));
    for (ours, percent) in [(view.p50, 50), (view.p95, 95)] {
        let rank = (seen * percent).div_ceil(100) - 1;
        let at_least = server[rank].as_nanos() as f64 * (1.0 - 1.0 / 16.0);
        let at_most = client[rank + missing].as_nanos() as f64 * (1.0 + 1.0 / 16.0);
        println!("P{percent}: {ours} ns, between {at_least:.0} and {at_most:.0}");
        assert!(
            (at_least..=at_most).contains(&(ours.0 as f64)),
            "P{percent}: {ours} ns, and it lies between {at_least:.0} and {at_most:.0}"
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
        let guest = guest(plain_guest(), 64);
        for address in ["10.9.0.2", "fd09::2"] {
            let address: IpAddr = address.parse().unwrap();
            let mut watch = Watch::new(TapBpf::load(Path::new("/sys")).unwrap());
            let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
            let times = ask(&mut stream, &DELAYS, 64);
            agrees(
                &watch.view().expect("responses were seen"),
                &times,
                &guest.served(),
            );
        }
        drop(bpf);
    });
}

#[test]
fn a_connection_older_than_the_sensor_is_seen_too() {
    with_pair("a_connection_older_than_the_sensor_is_seen_too", |bpf| {
        let guest = guest(plain_guest(), 64);
        let address: IpAddr = "10.9.0.2".parse().unwrap();
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        ask(&mut stream, &[1, 1], 64);
        guest.served();
        let mut watch = Watch::new(bpf);
        let times = ask(&mut stream, &DELAYS, 64);
        agrees(
            &watch.view().expect("responses were seen"),
            &times,
            &guest.served(),
        );
    });
}

#[test]
fn a_long_response_is_one_sample() {
    with_pair("a_long_response_is_one_sample", |bpf| {
        let guest = guest(plain_guest(), 300_000);
        let address: IpAddr = "10.9.0.2".parse().unwrap();
        let mut watch = Watch::new(bpf);
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        let times = ask(&mut stream, &DELAYS, 300_000);
        agrees(
            &watch.view().expect("responses were seen"),
            &times,
            &guest.served(),
        );
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
        let guest = guest(setup, 64);
        let address: IpAddr = "10.10.0.2".parse().unwrap();
        let mut watch = Watch::new(bpf);
        let mut stream = TcpStream::connect(SocketAddr::new(address, PORT)).unwrap();
        let times = ask(&mut stream, &DELAYS, 64);
        agrees(
            &watch.view().expect("responses were seen"),
            &times,
            &guest.served(),
        );
    });
}

#[test]
fn udp_times_agree_with_the_clients_own() {
    with_pair("udp_times_agree_with_the_clients_own", |bpf| {
        let guest = guest(plain_guest(), 64);
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
        agrees(
            &watch.view().expect("responses were seen"),
            &times,
            &guest.served(),
        );
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
        // One that was sent again has no time (Karn).
        let seen = watch.view().expect("seen").responses - before;
        assert!(
            (10_u64.saturating_sub(sent_again() as u64)..=10).contains(&seen),
            "{seen} of 10 have a time"
        );
    });
}
