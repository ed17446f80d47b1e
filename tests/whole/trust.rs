//! Who may come in, and whom one speaks with.

use crate::stage::{Need, Stage};

#[test]
fn a_server_is_learnt_on_first_use_and_refused_when_its_key_changes() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms");
    std::fs::write(stage.path("near/f"), "words").unwrap();
    let server = stage.serve();
    let copy = || {
        let mut command = stage.cp(&[]);
        command.arg(stage.path("near/f")).arg("longhaul://far/data/f");
        stage.run(&mut command)
    };
    let fingerprint = |text: &str| -> String {
        let at = text.find("SHA256:").unwrap();
        text[at..].split_whitespace().next().unwrap().trim_end_matches([',', '.', ';']).to_owned()
    };
    let key = fingerprint(&server.said());
    std::fs::write(stage.path("known_hosts"), "# mine\nother ssh-ed25519 AAAA").unwrap();
    copy().expect(0).says(&["new server", &key]);
    let known = std::fs::read_to_string(stage.path("known_hosts")).unwrap();
    assert!(
        known.starts_with("# mine\nother") && known.lines().nth(2).unwrap().starts_with("far ssh-ed25519 ")
    );
    // Known from now on: no word, no second line.
    assert!(!copy().expect(0).err.contains("new server"));
    assert_eq!(std::fs::read_to_string(stage.path("known_hosts")).unwrap(), known);

    server.stop().expect(0);
    std::fs::remove_file(stage.path("host_key")).unwrap();
    let server = stage.serve();
    let other = fingerprint(&server.said());
    assert_ne!(key, other);
    std::fs::write(stage.path("near/f"), "other words").unwrap();
    let place = format!("{}, line 3", stage.path("known_hosts").display());
    copy().expect(2).says(&["CHANGED", &key, &other, &place]);
    assert_eq!(std::fs::read_to_string(stage.path("far/f")).unwrap(), "words", "nothing was sent");
    assert_eq!(std::fs::read_to_string(stage.path("known_hosts")).unwrap(), known);
}

#[test]
fn a_stranger_is_told_how_to_get_in() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms");
    let _server = stage.serve();
    std::fs::write(stage.path("near/f"), "words").unwrap();
    let made = stage.run(stage.longhaul(&["key", "generate", "-f"]).arg(stage.path("stranger"))).expect(0);
    let fingerprint = made.out.lines().last().unwrap().to_owned();
    let copy = || {
        let mut command = stage.cp_as("stranger", &[]);
        command.arg(stage.path("near/f")).arg("longhaul://far/data/f");
        stage.run(&mut command)
    };
    let line = std::fs::read_to_string(stage.path("stranger.pub")).unwrap();
    let line = line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    copy().expect(2).says(&["does not know your key", &fingerprint, "authorized_keys", &line]);
    assert!(!stage.path("far/f").exists());
    // The operator does so, and the server need not be started again.
    std::fs::write(stage.path("authorized_keys"), format!("user=\"root\" {line}\n")).unwrap();
    copy().expect(0);
    // Read-only: may look, not write.
    std::fs::write(stage.path("authorized_keys"), format!("user=\"root\",ro {line}\n")).unwrap();
    std::fs::write(stage.path("near/f"), "others").unwrap();
    copy().expect(2).says(&["read-only"]);
    assert_eq!(std::fs::read_to_string(stage.path("far/f")).unwrap(), "words");
    // A list that cannot be understood lets nobody in.
    std::fs::write(stage.path("authorized_keys"), format!("usr=\"root\" {line}\n")).unwrap();
    copy().expect(2).says(&["does not know your key"]);
}
