//! Writes the first inputs of every corpus: `cargo run -p longhaul-fuzz-properties --example seeds`.
//!
//! Valid ones, so that fuzzing begins behind the first check. Inputs of the same name are replaced, others stay.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_copy::fuzzing::{make_bundle, make_journal};
use longhaul_transport::fuzzing::{handshake_with, seal_record};
use longhaul_transport::identity::PublicKey;

type Seeds = Vec<(&'static str, Vec<Vec<u8>>)>;

fn main() -> Result<(), Box<dyn Error>> {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let keys = fuzz.join("../crates/transport/src/identity/testdata");
    let all = identities(&keys)?.into_iter().chain(wire()).chain(copies()).chain(emulator()).chain(probe());
    for (target, inputs) in all {
        let corpus = fuzz.join("corpus").join(target);
        fs::create_dir_all(&corpus)?;
        for (number, input) in inputs.iter().enumerate() {
            fs::write(corpus.join(format!("seed-{number:02}")), input)?;
        }
    }
    Ok(())
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn identities(keys: &Path) -> Result<Seeds, Box<dyn Error>> {
    let key = PublicKey::from_bytes([5; 32]);
    let k = key.to_openssh();
    let authorized = [
        format!("{k} alice@example\n"),
        format!("# comment\n\nuser=\"alice\",export=\"data\",export=\"scratch\" {k} a b\n"),
        format!("export=\"public\",ro {k} guest\nro {k}\n"),
        format!("user=alice {k}\n"),
        format!("ro, {k}\n"),
        format!("user=\"a b\",user=\"c\" {k}\r\n"),
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ== x\n".to_owned(),
    ];
    let known = [
        format!("far {k}\n"),
        format!("[far]:99 {k} joe@x\n# c\n\nother\t{k}\n"),
        format!("|1|aGFzaGVk|aGFzaA= {k}\n"),
        format!("@revoked far {k}\n"),
        "far ssh-rsa AAAA\nhalf\n".to_owned(),
    ];
    let mut private = Vec::new();
    for name in ["id_ed25519", "encrypted", "rsa", "id_ed25519.pub"] {
        private.push(fs::read(keys.join(name))?);
    }
    private.push(b"-----BEGIN OPENSSH PRIVATE KEY-----\n\n-----END OPENSSH PRIVATE KEY-----\n".to_vec());
    let ecdsa = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA== x";
    let mut public = texts(&[&k, &format!("{k} a comment"), ecdsa, "ssh-ed25519 AAAA"]);
    public.push(key.to_spki().to_vec());
    Ok(vec![
        ("authorized_keys", authorized.map(String::into_bytes).to_vec()),
        ("known_hosts", known.map(String::into_bytes).to_vec()),
        ("private_key", private),
        ("public_key", public),
    ])
}

/// A lane's frame header.
fn header(kind: u8, length: u32, offset: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 1, 7, 0];
    bytes.extend(length.to_le_bytes());
    for number in [3, 5, offset, 0x1122_3344_5566_7788] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn control_frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (17 + body.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend([1; 16]);
    bytes.extend(body);
    bytes
}

fn with(first: &[u8], rest: &[u8]) -> Vec<u8> {
    [first, rest].concat()
}

fn wire() -> Seeds {
    let headers =
        [(1, 16, 0), (2, 0, 0), (3, 1 << 18, 1 << 40), (4, 8192, 0), (5, 8, 0), (3, 8, u64::MAX), (99, 0, 0)];
    let frames = headers.map(|(kind, length, offset)| header(kind, length, offset)).to_vec();
    let records = [
        with(&[1, 0, 0, 0], b"content\x17"),
        with(&[1, 0, 9, 0], b"content\x17"),
        with(&[1, 1, 0, 0], &[24, 0, 0, 1, 0, 22]),
        with(&[1, 0, 0, 0], &[1, 0, 21]),
        with(&[1, 0, 0, 0x40], b"x\x17"),
        vec![1, 0, 0, 0],
        with(&[0], &seal_record(b"other\x17")[..9]),
        with(&[0], b"GET / HTTP/1.1\r\n"),
    ];
    let hello = handshake_with(&[], false).1;
    let answer = handshake_with(&hello, true).1;
    let handshakes = vec![
        with(&[0], &hello),
        with(&[1], &answer),
        with(&[0], b"GET / HTTP/1.1\r\n\r\n"),
        vec![0, 0x16, 3, 1, 0xff, 0xff],
        vec![2, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0],
        vec![2, 60, 0, 1, 0, 1, 0, 0, 0, 0, 1],
        vec![3, 0, 0, 0, 0, 2, 200, 0, 128, 5, 0],
    ];
    let control = vec![
        with(&[1], &control_frame(0, b"hello")),
        with(&[7], &[control_frame(0, b""), control_frame(1, &[0; 300])].concat()),
        with(&[3], &[255, 255, 255, 255, 0]),
        with(&[9], &[0; 40]),
        with(&[9], &control_frame(5, b"kind 5")[..20]),
    ];
    let piece = |length: u32| with(&[1, 1], &[&length.to_le_bytes()[..], &[9; 9]].concat());
    let lanes = vec![
        with(&piece(100_000), &[4, 40, 0, 4, 0, 0x40, 10, 255, 255, 6, 5, 10, 255, 255, 7]),
        with(&[2, 0, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &[5, 10, 1, 0, 10, 20, 0, 10, 255, 255]),
        [piece(262_143), piece(1), piece(16_384), vec![4, 10, 0, 4, 0, 0, 6, 5, 7]].concat(),
        [piece(50), vec![5, 8, 70, 0, 1, 10, 255, 255]].concat(),
        [vec![3], header(3, 20, 0), vec![0, 20], vec![1; 20], vec![4, 20, 0, 10, 2, 0, 4, 40, 0]].concat(),
        [vec![3], header(99, 20, 0), vec![5, 10, 255, 255]].concat(),
        [piece(10), vec![5, 9, 5, 23, 3, 3, 0, 4]].concat(),
    ];
    let session = vec![
        vec![0, 8, 1],
        vec![0, 16, 48],
        vec![0, 24, 1],
        with(&[1], b"for the application"),
        with(&[8, 1, 18, 16], &with(&[4; 16], &[24, 2])),
        with(&[10, 6, 8, 1, 18, 2], &with(b"no", &[16, 1, 24, 128, 2])),
    ];
    vec![
        ("lane_frame", frames),
        ("tls_record", records.to_vec()),
        ("tls_handshake", handshakes),
        ("control_frames", control),
        ("lane", lanes),
        ("session_message", session),
    ]
}

/// A field's number and wire type, as Protocol Buffers write them.
fn tag(number: u8, wire_type: u8) -> Vec<u8> {
    let key = u16::from(number) << 3 | u16::from(wire_type);
    varint(key.into())
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field that is bytes, or another message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [tag(number, 2), varint(content.len()), content.to_vec()].concat()
}

/// A field that is a number.
fn number(number: u8, value: u8) -> Vec<u8> {
    [tag(number, 0), varint(value.into())].concat()
}

fn entry(kind: u8, name: &[u8], more: &[Vec<u8>]) -> Vec<u8> {
    let fields = [number(1, 5), number(2, 0), field(3, name), number(4, kind), number(8, 100)];
    field(2, &[fields.concat(), more.concat()].concat())
}

fn offer(entries: &[Vec<u8>]) -> Vec<u8> {
    field(2, &[number(1, 1), entries.concat()].concat())
}

fn range(start: u8, end: u8) -> Vec<u8> {
    [number(1, start), number(2, end)].concat()
}

fn copies() -> Seeds {
    let data = |start, end| field(16, &range(start, end));
    let xattr = field(15, &[field(1, b"user.a"), field(2, b"value")].concat());
    let options = field(3, &[number(1, 1), number(7, 2), field(11, b"*.o")].concat());
    let offers = vec![
        offer(&[entry(1, b"file", &[number(5, 3), xattr, data(1, 5), data(7, 9)])]),
        offer(&[entry(2, b"dir", &[]), entry(8, b"", &[])]),
        offer(&[entry(2, b"", &[]), entry(3, b"link", &[field(12, b"to/there")])]),
        offer(&[entry(1, b"second name", &[number(13, 4), number(14, 1)])]),
        offer(&[entry(6, b"device", &[number(11, 3)])]),
        offer(&[entry(1, b"..", &[])]),
        offer(&[entry(2, b"", &[number(13, 4)])]),
        offer(&[entry(1, b"file", &[data(50, 120)])]),
    ];
    let messages = vec![
        field(1, &[number(1, 1), field(2, b"/data/x"), options, number(4, 1), field(5, b"a/b")].concat()),
        field(3, &field(1, &[1, 2, 3])),
        field(4, &number(1, 9)),
        field(5, &field(1, &[field(1, b"/p"), field(2, b"why")].concat())),
        field(6, &[]),
        offers[0].clone(),
        [field(1, &[2, 3, 1]), field(2, &field(1, &range(1, 9))), number(3, 1)].concat(),
        [number(1, 4), number(2, 5), number(6, 6)].concat(),
        field(1, b"refused"),
    ];
    let small = |id, content: &[u8]| (id, Some(content.to_vec()));
    let bundles = vec![
        make_bundle(&[small(1, b"one"), small(2, b""), (3, None)]),
        make_bundle(&[small(u64::MAX, &[7; 300])]),
        make_bundle(&[]),
        make_bundle(&[small(1, b"cut off")])[..20].to_vec(),
        vec![255; 16],
    ];
    let parts: Vec<u8> = [(0u64, 1000u32), (5000, 1 << 18), (1000, 500)]
        .iter()
        .flat_map(|&(offset, length)| part(offset, length))
        .collect();
    let journals = vec![
        with(&[0], &make_journal(1 << 30, &[(0, 4096), (4096, 100), (1 << 20, 1 << 18)])),
        with(&[0], &make_journal(10, &[(0, 10), (5, 3), (9, 2)])),
        with(&[0], &[0; 200]),
        [&[1][..], &(1u64 << 30).to_le_bytes(), &[70, 0, 1], &parts].concat(),
        [&[1][..], &u64::MAX.to_le_bytes(), &[0, 0, 0], &part(u64::MAX - 5, 5), &part(0, u32::MAX)].concat(),
    ];
    let ranges = vec![
        vec![0, 0, 10, 0, 20, 30, 0, 10, 20, 1, 5, 7, 1, 0, 6, 1, 0, 255],
        vec![0, 0, 255, 1, 100, 220, 0, 150, 201, 1, 254, 255],
        (0..150u8).map(|i| i.wrapping_mul(7)).collect(),
        vec![0, 5, 5, 1, 9, 3],
        vec![],
    ];
    let excludes = texts(&[
        "*.o\nbuild/\n/top\na/*/c\n**/deep/x\nq/r/deep/x",
        "[a-c]?[!x]\n{a,b{c,d}}\\*\nab",
        "[",
        "/",
        "{a,b\nb",
        "**/**/**\n**\nx/y",
    ]);
    let paths = texts(&["a//b/./c/", "/data/x/y", "data", "a/../b", "/", "data/./../x", "\u{ff}/..."]);
    let attributes =
        [&b"user.comment"[..], b"security.capability", b"system.posix_acl_access", b"bad\0name", b""]
            .map(|name| [&[0; 16][..], &[name.len() as u8], name, b"value"].concat());
    vec![
        ("copy_offer", offers),
        ("copy_messages", messages),
        ("bundle", bundles),
        ("journal", journals),
        ("ranges", ranges),
        ("excludes", excludes),
        ("relative_path", paths),
        ("file_attributes", attributes.to_vec()),
    ]
}

fn part(offset: u64, length: u32) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &length.to_le_bytes()].concat()
}

/// A GSO packet: vnet header, IP of `version`, transport `protocol`, `payload` bytes.
fn gso_packet(version: u8, protocol: u8, gso: u16, payload: usize) -> Vec<u8> {
    let ip_header = if version == 4 { 20 } else { 40 };
    let mut ip = vec![0; ip_header + 32];
    ip[0] = version << 4 | if version == 4 { 5 } else { 0 };
    ip[if version == 4 { 9 } else { 6 }] = protocol;
    ip[ip_header + 12] = 8 << 4;
    ip.extend((0..payload).map(|i| i as u8));
    let gso = gso.to_ne_bytes();
    let vnet = [1, u8::from(gso != [0, 0]), 0, 0, gso[0], gso[1], 20, 0, 16, 0];
    [&[1, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8][..], &vnet, &ip].concat()
}

fn emulator() -> Seeds {
    let packets = vec![
        gso_packet(4, 6, 100, 1000),
        gso_packet(6, 6, 100, 250),
        gso_packet(4, 17, 64, 500),
        gso_packet(4, 1, 0, 60),
        gso_packet(4, 6, 0, 0),
        vec![0; 30],
    ];
    let lines = texts(&[
        r#"{"op":"set","change":{"delay":[{"secs":0,"nanos":50000000},null],"rate_bps":[1000000000,1000000]}}"#,
        r#"{"op":"set","change":{"rate_bps":[1000,2],"queue":[{"bdp":0.5},{"bytes":100000}],"loss":[0.1,1.0],"corrupt":[0.5,null]}}"#,
        "{\"op\":\"show\"}\n{\"op\":\"enter\",\"host\":\"far\"}\n{\"op\":\"down\"}",
        "\"done\"\n{\"refused\":\"no\"}\n\"namespaces\"",
        r#"{"op":"set","change":{"delay":[{"secs":18446744073709551615,"nanos":999999999},null]}}"#,
        "{\"op\":\"set\",\"change\":{\"rate_bps\":[2,2],\"queue\":[{\"bytes\":18446744073709551615},null]}}\n{\"op\":\"set\",\"change\":{\"rate_bps\":[18446744073709551615,1000000000000000]}}",
        "{\"refused\":[[[[[[[[[[[[[[[[",
    ]);
    vec![("packet", packets), ("emulated_link", lines)]
}

fn probe() -> Seeds {
    let messages = texts(&[
        r#"{"tcp":true,"omit":0,"time":10,"num":0,"blockcount":0,"parallel":1,"len":131072,"pacing_timer":1000,"client_version":"3.12"}"#,
        r#"{"udp":true,"omit":1,"time":1,"num":0,"blockcount":0,"parallel":2,"len":100,"bandwidth":100000,"udp_counters_64bit":1}"#,
        r#"{"tcp":true,"time":1,"MSS":1000,"parallel":128,"reverse":true,"window":65536,"len":1,"nodelay":true,"congestion":"cubic"}"#,
        r#"{"tcp":true,"time":1e3,"bidirectional":true,"bandwidth":18446744073709551615}"#,
        r#"{"cpu_util_total":24.08,"cpu_util_user":0,"cpu_util_system":24.04,"sender_has_retransmits":1,"congestion_used":"bbr",
            "streams":[{"id":1,"bytes":1048576,"retransmits":0,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.001091}]}"#,
        r#"{"sender_has_retransmits":18446744073709551615,"streams":[
            {"id":1,"bytes":5,"retransmits":18446744073709551615,"jitter":1e-5,"errors":-3,"packets":9,"start_time":1,"end_time":2},
            {"id":3,"bytes":5.0,"retransmits":-1}]}"#,
        r#"{"streams":[]}"#,
    ]);
    let packets = |wide: bool, numbers: &[u64]| {
        let mut bytes = vec![u8::from(wide), 20];
        for number in numbers {
            let mut packet = [0; 20];
            packet[7] = 9;
            match wide {
                true => packet[8..16].copy_from_slice(&number.to_be_bytes()),
                false => packet[8..12].copy_from_slice(&(*number as u32).to_be_bytes()),
            }
            bytes.extend(packet);
        }
        bytes
    };
    let lists: [&[u64]; 4] =
        [&[1, 2, 3, 4], &[5, 1, 5, 3, 0], &[1, 1 << 40, 70_000, (1 << 40) - 5], &[u64::MAX, 1, u64::MAX - 1]];
    let packets = lists.iter().flat_map(|list| [packets(true, list), packets(false, list)]).collect();
    let flow = field(2, &[number(1, 100), number(2, 5), number(3, 1), field(9, &number(1, 2))].concat());
    let open =
        [number(1, 1), number(2, 1), number(3, 100), number(4, 1), number(7, 100), number(8, 9)].concat();
    let knock = |kind: u8| with(b"longhaul\0\0\0\0\0\0\0\0", &with(&[kind], &[kind; 39]));
    let finding = |state, subject: &[u8]| {
        let words =
            [field(1, subject), number(2, state), field(3, b"what"), field(4, b"why"), field(5, b"todo")];
        field(1, &[words.concat(), field(6, &[1, 4, 9])].concat())
    };
    let path = vec![
        number(1, 1),
        field(2, &open),
        field(2, &[number(3, 100), number(4, 8), field(6, b"cubic"), number(7, 100)].concat()),
        number(3, 7),
        field(1, b"it is busy"),
        field(
            2,
            &[field(1, b"0.1.0"), number(2, 2), field(4, &[field(1, b"a.b"), field(2, b"1 2 3")].concat())]
                .concat(),
        ),
        field(3, &[number(1, 1), field(2, &[7; 16]), field(3, &[1, 2])].concat()),
        field(4, &[flow.clone(), flow, field(4, b"its time is up")].concat()),
        knock(1),
        knock(2),
        knock(3),
        knock(4),
        field(6, &[field(1, b"data/runs"), number(2, 100)].concat()),
        field(5, &[number(1, 90), number(2, 9), number(3, 80), number(4, 7), number(5, 1)].concat()),
        field(5, &field(6, b"the file system is full")),
        number(7, 1),
        number(8, 1),
        field(6, &[finding(1, b"TUN"), finding(3, b"F\nUSE"), finding(9, b"")].concat()),
        number(7, 200),
    ];
    vec![("iperf3_messages", messages), ("udp_packets", packets), ("path_messages", path)]
}
