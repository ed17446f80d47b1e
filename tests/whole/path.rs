//! `longhaul probe HOST` over an emulated link. Figures are looked at in wide bounds only: whether they are exact is for a bench.

use std::process::Command;
use std::time::Duration;

use longhaul_report::kept::Kept;
use longhaul_report::path::{self, Path, Side};
use nix::sys::signal::{Signal, kill};

use crate::stage::process::{Ended, LIMIT, wait_for};
use crate::stage::tree::walk;
use crate::stage::{Host, LONGHAUL, Need, Stage, Way, give_to_nobody};

fn probe(stage: &Stage, key: &str, words: &str) -> Ended {
    probe_at(stage, "far", key, words)
}

fn probe_at(stage: &Stage, far: &str, key: &str, words: &str) -> Ended {
    stage.run(&mut probe_command(stage, far, key, words))
}

fn probe_command(stage: &Stage, far: &str, key: &str, words: &str) -> Command {
    let mut command: Command = stage.on(Host::Near, LONGHAUL);
    command.args(["probe", far, "--identity"]).arg(stage.path(key));
    command.arg("--known-hosts").arg(stage.path("known_hosts")).args(words.split_whitespace());
    command
}

/// All that was printed.
fn json(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

#[test]
fn a_path_is_measured_and_judged() {
    require!(Need::Emulator);
    let stage = Stage::alone("--rtt 20ms --rate 20Mbit");
    let _server = stage.serve();
    let measured = || {
        let ended = probe(&stage, "client", "--quick --controls reno --pacing 50 --json").expect(0);
        (Path::from_json(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out)), ended)
    };
    // Where a busy machine itself bounds what is sent, nothing is known of the path.
    let is_known = |record: &Path| path::Way::BOTH.iter().all(|&way| record.capacity(way).is_some());
    let (mut record, mut ended) = measured();
    for _ in 0..4 {
        if is_known(&record) {
            break;
        }
        (record, ended) = measured();
    }
    assert!(
        ended.err.contains("round-trip time") && ended.err.contains("UDP from the server"),
        "{}",
        ended.err
    );
    let rtt = record.rtt.unwrap();
    assert!(rtt.back > 0 && rtt.min_ms >= 19.9 && rtt.min_ms < 200.0, "{rtt:?}");
    assert_eq!(record.mtu.iter().map(|mtu| mtu.bytes).collect::<Vec<_>>(), [Some(1500); 2]);
    for way in path::Way::BOTH {
        let capacity = record.capacity(way).unwrap_or_else(|| panic!("{way}: {record:#?}"));
        assert!((8.0..23.0).contains(&capacity), "{way}: {capacity}");
        let tcp = record.tcp.iter().filter(|tcp| tcp.way == way).map(|tcp| tcp.mbps).fold(0.0, f64::max);
        assert!((1.0..25.0).contains(&tcp), "{way}: {tcp}");
        assert!(record.verdicts.iter().any(|verdict| verdict.way == way && !verdict.evidence.is_empty()));
        assert!(record.loaded.iter().any(|loaded| loaded.way == way), "{record:#?}");
        let reno = record.controlled.iter().filter(|controlled| controlled.tcp.way == way);
        assert_eq!(reno.map(|reno| reno.tcp.streams).collect::<Vec<_>>(), [1, 8]);
        let paced = record.paced.iter().find(|paced| paced.tcp.way == way).unwrap();
        assert!((0.3..1.1).contains(&(paced.tcp.mbps / paced.rate_mbps)), "{way}: {paced:?}");
    }
    let kept = Kept::read(ended.out.as_bytes()).unwrap();
    assert!(kept.markdown("p").contains("UDP to the server") && !kept.series().is_empty());
}

#[test]
fn single_tests_have_the_letters_of_iperf3() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 50Mbit");
    let _server = stage.serve();
    for words in
        ["-t 1", "-t 1 -R -P 3", "-t 1 -w 64K -C reno", "-t 1 -Z --fq-rate 4M", "-t 1 -Z --fq-rate 4M -R"]
    {
        let record = probe(&stage, "client", &format!("{words} --json")).expect(0);
        let record = json(&record);
        assert!(record["server"]["bytes"].as_u64().unwrap() > 10_000, "{words}: {record}");
        assert!(record["here"]["bytes"].as_u64().unwrap() > 10_000, "{words}: {record}");
        assert_eq!(record["reverse"].as_bool(), Some(words.contains("-R")), "{words}");
        let rate = record["bits_per_second"].as_f64().unwrap();
        assert!(rate < 8e6 || !words.contains("--fq-rate"), "{words}: {rate}");
    }
    for words in ["-u -b 4M -t 1", "-u -b 2M -t 1 -R -P 2 -l 200"] {
        let record = probe(&stage, "client", &format!("{words} --json")).expect(0);
        let record = json(&record);
        let (packets, lost) = (record["packets"].as_u64().unwrap(), record["lost"].as_u64().unwrap());
        assert!(packets > 100 && lost < packets, "{words}: {record}");
    }
    let ended = probe(&stage, "client", "-u -b 1M -t 1").expect(0);
    assert!(ended.out.contains("packets: ") && ended.out.contains("Processors: here"), "{}", ended.out);
}

#[test]
fn who_may_not_measure_is_told_why() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 10ms");
    let server = stage.serve();
    stage.run(stage.longhaul(&["key", "generate", "-f"]).arg(stage.path("stranger"))).expect(0);
    probe(&stage, "stranger", "-t 1").expect(2).says(&["does not know your key", "authorized_keys"]);
    let line = std::fs::read_to_string(stage.path("client.pub")).unwrap();
    std::fs::write(stage.path("authorized_keys"), format!("ro,no-probe {line}")).unwrap();
    probe(&stage, "client", "-t 1")
        .expect(2)
        .says(&["may not measure the path or look at the host (no-probe)"]);
    // Who may only read may measure.
    std::fs::write(stage.path("authorized_keys"), format!("ro {line}")).unwrap();
    probe(&stage, "client", "-t 1").expect(0);
    server.stop().expect(0);
    let _server = stage.serve_with(&["--no-probe"]);
    probe(&stage, "client", "-t 1")
        .expect(2)
        .says(&["lets nobody measure the path or look at the host (--no-probe)"]);
    probe(&stage, "client", "-n 1M").expect(2).says(&["-n goes with --iperf3 only"]);
}

#[test]
fn both_ways_at_once_have_a_record_of_each() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 50Mbit");
    let _server = stage.serve();
    for words in ["-t 2 -P 2", "-u -b 4M -t 2"] {
        let record = json(&probe(&stage, "client", &format!("--bidir {words} -i 0.5 --json")).expect(0));
        assert_eq!((&record["bidir"], &record["interrupted"]), (&true.into(), &false.into()), "{record}");
        let ways = record["directions"].as_array().unwrap();
        let reverse: Vec<_> = ways.iter().map(|way| way["reverse"].as_bool()).collect();
        assert_eq!(reverse, [Some(false), Some(true)], "{record}");
        for way in ways {
            assert!(way["here"]["bytes"].as_u64().unwrap() > 100_000, "{words}: {record}");
            assert!(way["server"]["bytes"].as_u64().unwrap() > 100_000, "{words}: {record}");
            assert_whole(way["intervals"].as_array().unwrap(), 4);
        }
    }
    let ended = probe(&stage, "client", "--bidir -t 1 -i 0.5").expect(0);
    for words in ["s  to the server ", "s  from the server ", " to the server in ", " from the server in "] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    assert_eq!(ended.out.matches("Processors: here").count(), 1, "{}", ended.out);
}

/// One follows the other, and there are as many as there should be: a machine that is busy may have missed one.
fn assert_whole(intervals: &[serde_json::Value], expected: usize) {
    assert!((expected - 1..=expected).contains(&intervals.len()), "{intervals:#?}");
    let mut end = 0.0;
    for interval in intervals {
        assert_eq!(interval["start"].as_f64(), Some(end), "{intervals:#?}");
        end = interval["end"].as_f64().unwrap();
        assert!(interval["bits_per_second"].as_f64().unwrap() >= 0.0, "{intervals:#?}");
    }
    assert!(intervals.iter().any(|interval| interval["bytes"].as_u64().unwrap() > 10_000), "{intervals:#?}");
}

#[test]
fn intervals_are_as_long_as_they_are_wanted() {
    require!(Need::Emulator);
    // An answer takes longer than an interval.
    let stage = Stage::shared("--rtt 700ms --rate 50Mbit");
    let _server = stage.serve();
    let record = json(&probe(&stage, "client", "-R -t 3 -i 0.5 --json").expect(0));
    assert_whole(record["intervals"].as_array().unwrap(), 6);
    let none = json(&probe(&stage, "client", "-t 1 -i 0 --json").expect(0));
    assert_eq!(none["intervals"].as_array().map(Vec::len), Some(0), "{none}");
    let ended = probe(&stage, "client", "-t 1 -i 0 --graph always").expect(0);
    assert!(
        ended.err.contains('┼') && ended.err.contains("mean ") && !ended.err.contains('\u{1b}'),
        "{}",
        ended.err
    );
    assert!(!ended.out.contains(" s  "), "{}", ended.out);
}

#[test]
fn an_interrupted_test_says_what_it_has_measured_and_leaves_the_server_free() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 50Mbit");
    let _server = stage.serve();
    for words in ["", "-u -b 20M", "--bidir", "--bidir -u -b 20M"] {
        let before = stage.carried(Way::Push);
        let mut command = probe_command(&stage, "far", "client", &format!("-t 300 {words} --json"));
        let mut test = stage.start(&mut command);
        stage.wait_until_carried(Way::Push, before, 1_000_000, &mut test);
        kill(test.pid(), Signal::SIGINT).unwrap();
        let ended = test.wait().expect(130).says(&["interrupted; what was measured"]);
        assert!(ended.took < Duration::from_secs(60), "{words}: {:?}", ended.took);
        let record = json(&ended);
        assert_eq!(record["interrupted"], true, "{record}");
        for way in record["directions"].as_array().unwrap_or(&vec![record.clone()]) {
            let (near, far) =
                (way["here"]["bytes"].as_u64().unwrap(), way["server"]["bytes"].as_u64().unwrap());
            assert!(near > 100_000 && far > 100_000, "{words}: {record}");
            // What is still on its way is not lost.
            assert!(way["lost"].as_u64().is_none_or(|lost| lost < 1000), "{words}: {record}");
        }
        // The next client need not wait.
        probe(&stage, "client", "-u -t 1").expect(0);
    }
}

/// The least of the network that a measurement has.
const SHORTEST: &str = "--quick --streams 1 --burst 150ms --json";

fn record(ended: Ended) -> Path {
    let ended = ended.expect(0);
    Path::from_json(&ended.out).unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

/// The network was measured, and no disk, for this reason.
fn assert_left_out(record: &Path, why: &str) {
    assert!(record.disks.is_empty() && !record.tcp.is_empty() && !record.verdicts.is_empty(), "{record:#?}");
    assert!(record.left_out.iter().any(|line| line.contains(why)), "{why}: {:?}", record.left_out);
}

fn is_empty(directory: &std::path::Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn disks_at_both_ends_are_measured_and_nothing_is_left_on_them() {
    require!(Need::Emulator);
    let stage = Stage::alone("--rtt 5ms --rate 20Mbit");
    let _server = stage.serve();
    let (here, there) = (stage.path("near"), stage.path("far/runs"));
    std::fs::create_dir(&there).unwrap();
    let ended =
        probe_at(&stage, "far:/data/runs", "client", &format!("{SHORTEST} --disk {}", here.display()));
    assert!(ended.err.contains("the disk of the server (/data/runs)"), "{}", ended.err);
    assert!(ended.err.contains("[11/11] disk to disk from the server"), "{}", ended.err);
    let kept = Kept::read(ended.out.as_bytes()).unwrap();
    for words in ["Disks, Mbit/s", "Disk to disk, Mbit/s", "of the slowest part (network)"] {
        assert!(kept.markdown("p").contains(words), "{}", kept.markdown("p"));
    }
    let record = record(ended);
    let named: Vec<_> = record.disks.iter().map(|disk| (disk.side, disk.directory.clone())).collect();
    assert_eq!(named, [(Side::Server, "/data/runs".to_owned()), (Side::Here, here.display().to_string())]);
    assert!(record.disks.iter().all(|disk| disk.write_mbps > 0.0 && disk.read_mbps > 0.0), "{record:#?}");
    assert_eq!(record.disk_to_disk.iter().map(|one| one.way).collect::<Vec<_>>(), path::Way::BOTH);
    for one in &record.disk_to_disk {
        assert!(one.bytes >= 1 << 20 && one.seconds > 0.0 && one.lanes > 0, "{one:?}");
        assert!((1.0..25.0).contains(&one.mbps), "{one:?}");
    }
    assert_eq!((record.host.as_str(), record.left_out.len(), record.verdicts.len()), ("far", 0, 2));
    assert!(is_empty(&here) && is_empty(&there));
    probe_at(&stage, "far:/data", "client", "-t 1").expect(2).says(&["leave out -t"]);
    probe(&stage, "client", "-u --disk .").expect(2).says(&["leave out -t"]);
}

#[test]
fn nothing_is_left_of_a_file_that_was_stopped_on_its_way_from_disk_to_disk() {
    require!(Need::Emulator);
    let stage = Stage::alone("--rtt 10ms --rate 100Mbit");
    let _server = stage.serve();
    let (here, there) = (stage.path("near"), stage.path("far"));
    let words = format!("{SHORTEST} --disk {}", here.display());
    for (way, receiver) in [("to the server", &there), ("from the server", &here)] {
        let mut probing = stage.start(&mut probe_command(&stage, "far:/data", "client", &words));
        probing.wait_to_say(&format!("disk to disk {way}"));
        stage.set_link("--rate 5Mbit");
        wait_for("a part of the file", LIMIT, || {
            let mut names = std::fs::read_dir(receiver).unwrap().map(|entry| entry.unwrap().file_name());
            names.any(|name| name.to_string_lossy().ends_with(".part")).then_some(())
        });
        kill(probing.pid(), Signal::SIGINT).unwrap();
        let ended = probing.wait().expect(1);
        assert!(ended.err.contains("interrupted; nothing is left of the file"), "{}", ended.err);
        assert!(is_empty(&here) && is_empty(&there), "{way}: {:?} {:?}", walk(&here), walk(&there));
        // What was measured before is not lost.
        let record = Path::from_json(&ended.out).unwrap();
        assert_eq!(
            (record.disks.len(), record.disk_to_disk.len()),
            (2, usize::from(way == "from the server"))
        );
        assert!(record.left_out.iter().any(|line| line.contains("interrupted")), "{:?}", record.left_out);
        stage.set_link("--rate 100Mbit");
    }
}

fn record_at(stage: &Stage, far: &str, key: &str, words: &str) -> Path {
    record(probe_at(stage, far, key, &format!("{SHORTEST} {words}")))
}

#[test]
fn disks_that_a_key_may_not_write_to_are_left_out() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 5ms --rate 20Mbit");
    let server = stage.serve_with(&["--export", &format!("pub={}:ro", stage.path("far").display())]);
    let at = |far: &str| record_at(&stage, far, "client", "");
    assert_left_out(&at("far:/pub"), "the disk of the server (/pub): export `pub` is read-only for you");
    let both = record_at(&stage, "far:/pub", "client", &format!("--disk {}", stage.path("near").display()));
    assert_eq!((both.disks.len(), both.disk_to_disk.len()), (1, 0));
    for why in ["export `pub` is read-only for you", "disk to disk: it takes both disks"] {
        assert!(both.left_out.iter().any(|line| line.contains(why)), "{why}: {:?}", both.left_out);
    }
    assert!(is_empty(&stage.path("near")));
    let line = std::fs::read_to_string(stage.path("client.pub")).unwrap();
    let line = format!("user=\"root\",export=\"pub\" {line}");
    std::fs::write(stage.path("authorized_keys"), line).unwrap();
    assert_left_out(&at("longhaul://far/data"), "there is no export `/data` for you here");
    assert!(is_empty(&stage.path("far")));
    server.stop().expect(0);
    let mut command = stage.on(Host::Far, LONGHAUL);
    command.args(["probe", "--listen", "--authorized-keys"]).arg(stage.path("authorized_keys"));
    let mut server = stage.start(command.arg("--host-key").arg(stage.path("host_key")));
    server.wait_to_say("host key");
    assert_left_out(&at("far:/data"), "it has no exports");
}

#[test]
fn disks_are_written_with_the_rights_of_the_key_s_user() {
    require!(Need::Emulator, Need::Root, Need::Nobody);
    let stage = Stage::shared("--rtt 5ms --rate 20Mbit");
    let line = std::fs::read_to_string(stage.path("client.pub")).unwrap();
    std::fs::write(stage.path("authorized_keys"), format!("user=\"nobody\" {line}")).unwrap();
    let theirs = stage.path("far/theirs");
    std::fs::create_dir(&theirs).unwrap();
    give_to_nobody(&theirs);
    let _server = stage.serve();
    let refused = record_at(&stage, "far:/data", "client", "--disk /nowhere/at/all");
    assert_left_out(&refused, "the disk of the server (/data): no right to write there");
    assert_left_out(&refused, "the disk of this host (/nowhere/at/all): there is no such directory");
    let record = record_at(&stage, "far:/data/theirs", "client", "");
    assert_eq!((record.disks.len(), record.left_out.len()), (1, 0), "{record:#?}");
    assert!(is_empty(&theirs));
}

#[test]
fn a_host_without_exports_can_be_measured() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 10ms");
    let mut command = stage.on(Host::Far, LONGHAUL);
    command.args(["probe", "--listen", "--rate-max", "8M", "--authorized-keys"]);
    command.arg(stage.path("authorized_keys")).arg("--host-key").arg(stage.path("host_key"));
    let mut server = stage.start(&mut command);
    server.wait_to_say("host key");
    let record = probe(&stage, "client", "-t 2 --json").expect(0);
    let record = json(&record);
    // What sockets hold comes at once.
    assert!(record["server"]["bytes"].as_u64().unwrap() < 8_000_000, "{record}");
    probe(&stage, "client", "-u -b 9M -t 1").expect(2).says(&["its operator allows 8000000 bit/s of UDP"]);
    probe(&stage, "client", "-u -b 7M -t 1").expect(0);
    std::fs::write(stage.path("near/f"), "words").unwrap();
    let mut copy = stage.cp(&[]);
    copy.arg(stage.path("near/f")).arg("longhaul://far/data/f");
    stage.run(&mut copy).expect(2).says(&["it is there to be measured"]);
    server.stop().expect(0);
}

#[test]
fn several_clients_load_a_host_that_is_told_so() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 10ms --rate 20Mbit");
    let mut command = stage.on(Host::Far, LONGHAUL);
    command.args(["probe", "--listen", "--clients", "2", "--authorized-keys"]);
    command.arg(stage.path("authorized_keys")).arg("--host-key").arg(stage.path("host_key"));
    let mut server = stage.start(&mut command);
    server.wait_to_say("host key");
    let both = [(); 2].map(|()| stage.start(&mut probe_command(&stage, "far", "client", "-t 3 --json")));
    for client in both {
        let record = json(&client.wait().expect(0));
        assert!(record["server"]["bytes"].as_u64().unwrap() > 100_000, "{record}");
    }
    server.stop().expect(0);
}
