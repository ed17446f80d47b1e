//! A peer that wants an iperf3 server to send packets to somebody else.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use longhaul_probe::iperf3::client::Observer;
use longhaul_probe::iperf3::report::Start;
use longhaul_probe::iperf3::server::{Server, Service};
use longhaul_probe::iperf3::state::State;
use longhaul_probe::traffic::FlowInterval;

struct Nobody;

impl Observer for Nobody {
    fn started(&mut self, _: &Start) {}
    fn interval(&mut self, _: &Start, _: &[FlowInterval]) {}
}

/// Another address of this host: 127.0.0.0/8 is all loopback.
const VICTIM: &str = "127.0.0.2:0";

/// What asks for a stream by UDP.
const HELLO: &[u8; 4] = b"9876";

fn expect(control: &mut TcpStream, state: State) {
    let mut code = [0];
    control.read_exact(&mut code).unwrap();
    assert_eq!(State::from_code(code[0]), Some(state));
}

/// Begins a test in which the server is to send, up to where it waits for the stream.
fn ask_for_packets(server: SocketAddr) -> TcpStream {
    let mut control = TcpStream::connect(server).unwrap();
    control.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    control.write_all(&[b'a'; 37]).unwrap();
    expect(&mut control, State::ParamExchange);
    let wanted = br#"{"udp":true,"reverse":true,"time":60,"len":1000,"bandwidth":10000000}"#;
    control.write_all(&(wanted.len() as u32).to_be_bytes()).unwrap();
    control.write_all(wanted).unwrap();
    expect(&mut control, State::CreateStreams);
    control
}

#[test]
fn nobody_is_sent_packets_that_another_host_asked_for() {
    let mut server = Server::listen("127.0.0.1:0".parse().unwrap(), Service::default()).unwrap();
    let address = server.address().unwrap();
    let serving = std::thread::spawn(move || server.serve_one(&mut Nobody).is_err());

    let mut control = ask_for_packets(address);
    // As if the peer had forged the address: whoever this is has never spoken TCP.
    let victim = UdpSocket::bind(VICTIM).unwrap();
    for _ in 0..10 {
        victim.send_to(HELLO, address).unwrap();
    }
    // Longer and shorter ones, and such that mean nothing, are not answered either, wherever they come from.
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    own.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for packet in [&b"98765"[..], b"987", b"", b"abcd"] {
        own.send_to(packet, address).unwrap();
    }
    // What came first is read first: when this has its answer, the others have been thrown away.
    own.send_to(HELLO, address).unwrap();
    let mut bytes = [0; 2000];
    assert_eq!(own.recv_from(&mut bytes).unwrap(), (4, address));
    assert_eq!(&bytes[..4], b"6789");
    // The packets come here, and only here.
    expect(&mut control, State::TestStart);
    expect(&mut control, State::TestRunning);
    for _ in 0..100 {
        assert_eq!(own.recv(&mut bytes).unwrap(), 1000);
    }
    victim.set_nonblocking(true).unwrap();
    assert_eq!(victim.recv(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    // They end with the peer's connection.
    drop(control);
    assert!(serving.join().unwrap());
}
