//! Peers that send garbage, or next to nothing, while others work.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_transport::identity::PublicKey;
use nix::sched::{CloneFlags, setns};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use crate::stage::process::{LIMIT, Running, wait_for};
use crate::stage::tree::{assert_no_leftovers, assert_same_bytes, write_random};
use crate::stage::{Host, LISTEN, Need, Stage, Way};

/// A server at rest takes some 20 MB; each lane of the one copy, each handshake and each session adds less than one.
const SERVER_BYTES_MAX: u64 = 300 << 20;

/// More than the server's handshakes at a time (512).
const SLOW_PEERS: usize = 600;

/// Bytes that differ from call to call.
fn random(bytes: usize) -> Vec<u8> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut out = vec![0; bytes];
    let seed = CALLS.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    blake3::Hasher::new().update(&seed).finalize_xof().fill(&mut out);
    out
}

fn connect() -> Option<TcpStream> {
    let address: SocketAddr = LISTEN.parse().unwrap();
    let tcp = TcpStream::connect_timeout(&address, LIMIT).ok()?;
    set_patience(&tcp, BRIEFLY);
    Some(tcp)
}

/// Nobody here waits long for anybody, but for an answer that must come: this machine may be slow.
const BRIEFLY: Duration = Duration::from_secs(2);

fn set_patience(tcp: &TcpStream, limit: Duration) {
    tcp.set_read_timeout(Some(limit)).unwrap();
    tcp.set_write_timeout(Some(limit)).unwrap();
}

/// Whatever a peer does, the other may have hung up by then.
fn send(mut tcp: &TcpStream, bytes: &[u8]) {
    let _ = tcp.write_all(bytes);
}

/// A key as a client of one's own making has it.
#[derive(Clone)]
struct Key(Arc<dyn SigningKey>);

impl Key {
    fn new() -> Self {
        // RFC 8410: PKCS #8 of an Ed25519 key is this prefix and 32 random bytes.
        let mut der = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
        der.extend(random(32));
        Self(aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).unwrap())
    }

    fn spki(&self) -> Vec<u8> {
        self.0.public_key().unwrap().to_vec()
    }

    fn authorized_line(&self) -> String {
        PublicKey::from_spki(&self.spki()).unwrap().to_openssh()
    }

    /// A handshake that is about to begin, for a lane or the control channel.
    fn handshake(&self, purpose: &str) -> ClientConnection {
        let certified = CertifiedKey::new(vec![CertificateDer::from(self.spki())], Arc::clone(&self.0));
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(certified))));
        config.alpn_protocols = vec![format!("longhaul-{purpose}/1").into_bytes()];
        ClientConnection::new(Arc::new(config), ServerName::try_from("longhaul").unwrap()).unwrap()
    }
}

/// Trusts all servers.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_tls12_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Not TLS at all, or the start of a record that announces more.
fn speak_nonsense() {
    let Some(tcp) = connect() else { return };
    send(&tcp, &random(64 << 10));
    let Some(tcp) = connect() else { return };
    send(&tcp, b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb");
    send(&tcp, &random(20 << 10));
    let Some(tcp) = connect() else { return };
    send(&tcp, b"GET / HTTP/1.1\r\nHost: far\r\n\r\n");
    let _ = (&tcp).read(&mut [0; 100]);
}

/// TLS that ends in the middle, or goes on as something else.
fn break_handshakes(key: &Key) {
    let mut hello = Vec::new();
    key.handshake("lane").write_tls(&mut hello).unwrap();
    for part in [hello.len() / 3, hello.len()] {
        let Some(tcp) = connect() else { return };
        send(&tcp, &hello[..part]);
    }
    let Some(tcp) = connect() else { return };
    send(&tcp, &hello);
    send(&tcp, &random(10_000));
    let _ = (&tcp).read(&mut [0; 100]);
}

/// Proves to be somebody who may come in, and then sends `words`. Whether it came so far.
fn enter_and_say(key: &Key, purpose: &str, words: &[u8]) -> bool {
    let Some(mut tcp) = connect() else { return false };
    set_patience(&tcp, LIMIT);
    let mut tls = key.handshake(purpose);
    while tls.is_handshaking() {
        if tls.complete_io(&mut tcp).is_err() {
            return false;
        }
    }
    set_patience(&tcp, BRIEFLY);
    let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
    // The server may hang up in the middle of it: that is its right.
    let _ = stream.write_all(words).and_then(|()| stream.flush());
    let _ = stream.read(&mut [0; 1000]);
    true
}

/// A lane's frame: see the protocol's description of frames.
fn frame(kind: u8, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 1, 0, 0];
    bytes.extend(length.to_le_bytes());
    bytes.extend(random(32));
    bytes.extend(payload);
    bytes
}

fn misuse_a_key(key: &Key) -> usize {
    let words = [
        ("lane", random(100_000)),
        // A lane of a session that nobody has begun; pieces before any hello; a frame that is too long.
        ("lane", frame(1, 16, &random(16))),
        ("lane", frame(3, 1000, &random(1000))),
        ("lane", frame(3, u32::MAX, &random(1000))),
        ("control", random(100_000)),
        // A control frame of impossible length, and one whose body is nothing known.
        ("control", u32::MAX.to_le_bytes().to_vec()),
        ("control", [&117_u32.to_le_bytes()[..], &[0], &random(116)].concat()),
    ];
    words.iter().filter(|(purpose, words)| enter_and_say(key, purpose, words)).count()
}

/// Datagrams of all sizes; half of them look like the first packet of a QUIC connection.
fn flood_udp(stop: &AtomicBool) -> usize {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) && sent < 20_000 {
        let mut datagram = random(1 + sent * 37 % 1400);
        if sent.is_multiple_of(2) && datagram.len() > 6 {
            datagram[..6].copy_from_slice(b"\xc3\x00\x00\x00\x01\x08");
        }
        let _ = socket.send_to(&datagram, LISTEN); // the queue may be full
        sent += 1;
        if sent.is_multiple_of(100) {
            std::thread::sleep(Duration::from_millis(5)); // some 20,000 a second
        }
    }
    sent
}

/// Connections that send a byte now and then.
fn dawdle(key: &Key, stop: &AtomicBool) -> usize {
    let mut hello = Vec::new();
    key.handshake("control").write_tls(&mut hello).unwrap();
    let peers: Vec<TcpStream> = std::iter::repeat_with(connect).take(SLOW_PEERS).flatten().collect();
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        peers.iter().for_each(|tcp| send(tcp, &hello[at % hello.len()..][..1]));
        at += 1;
        std::thread::sleep(Duration::from_millis(200));
    }
    peers.len()
}

/// Moves this thread to the host that a process is on.
fn move_to_host_of(process: &Running) {
    let path = format!("/proc/{}/ns/net", process.pid());
    setns(std::fs::File::open(Path::new(&path)).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
}

#[test]
fn garbage_does_not_disturb_those_who_work() {
    require!(Need::Emulator, Need::Root);
    const FILE_BYTES: u64 = 256 << 20;
    let stage = Stage::alone("--rtt 30ms --rate 300Mbit");
    let key = Key::new();
    let own = std::fs::read_to_string(stage.path("authorized_keys")).unwrap();
    let keys = format!("{own}user=\"root\" {}\n", key.authorized_line());
    std::fs::write(stage.path("authorized_keys"), keys).unwrap();
    let mut server = stage.serve();
    write_random(&stage.path("near/big"), FILE_BYTES, 1);
    let holder = stage.start(stage.on(Host::Near, "sleep").arg("1000"));
    wait_for("host near is entered", LIMIT, || {
        let at = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        (at(&holder.pid().to_string())? != at("self")?).then_some(())
    });
    let before = stage.carried(Way::Push);
    // It goes on for half a minute, until all of them have begun on a slow machine, too.
    let mut copy = stage.start(&mut stage.copy(Way::Push, &["--json", "--rate", "60Mbit"], "big"));
    stage.wait_until_carried(Way::Push, before, FILE_BYTES / 20, &mut copy);
    let stop = AtomicBool::new(false);
    let mut most = 0;
    std::thread::scope(|scope| {
        let on_near = |job: &'_ (dyn Fn() -> usize + Sync)| {
            move_to_host_of(&holder);
            job()
        };
        let misuse = || misuse_a_key(&key);
        let nonsense = || {
            for _ in 0..20 {
                speak_nonsense();
                break_handshakes(&key);
            }
            20
        };
        let (udp, slow) = (|| flood_udp(&stop), || dawdle(&key, &stop));
        let entered = scope.spawn(move || on_near(&misuse)).join().unwrap();
        assert_eq!(entered, 7, "all of them got in before they spoke");
        let jobs = [
            scope.spawn(move || on_near(&nonsense)),
            scope.spawn(move || on_near(&udp)),
            scope.spawn(move || on_near(&slow)),
        ];
        // Jobs end when they are told to: they are, in any case.
        let deadline = Instant::now() + LIMIT;
        while !copy.has_ended() && Instant::now() < deadline {
            most = most.max(server.resident_bytes());
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        let counts = jobs.map(|job| job.join().unwrap());
        eprintln!("rounds, datagrams, slow peers: {counts:?}; the server took {} MiB at most", most >> 20);
        assert!(counts[1] > 1000 && counts[2] > 500, "{counts:?}");
    });
    let ended = copy.wait().expect(0);
    assert_eq!(ended.json()["problems"], serde_json::json!([]));
    assert_same_bytes(&stage.path("near/big"), &stage.path("far/big"));
    assert_no_leftovers(&stage.path("far"));
    assert!(most < SERVER_BYTES_MAX, "the server took {} MiB", most >> 20);
    // The same server goes on for others.
    assert!(!server.has_ended(), "{}", server.said());
    std::fs::write(stage.path("near/more"), "more").unwrap();
    stage.run(&mut stage.copy(Way::Push, &[], "more")).expect(0);
    assert!(!server.said().contains("panicked"), "{}", server.said());
}
