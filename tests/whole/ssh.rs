//! `HOST:PATH`: the far program is started by ssh, through a real sshd.

use std::path::PathBuf;
use std::process::Command;

use crate::stage::process::Running;
use crate::stage::tree::{assert_same_bytes, write_random};
use crate::stage::{Host, LONGHAUL, Need, SSHD, Stage};

/// A stage with an sshd on host `far`, and a client's settings for it.
struct Shell {
    stage: Stage,
    _sshd: Running,
}

impl Shell {
    fn new() -> Self {
        let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
        for key in ["ssh_host", "ssh_user"] {
            let mut keygen = Command::new("ssh-keygen");
            stage.run(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(stage.path(key))).expect(0);
        }
        let show = |name: &str| stage.path(name).display().to_string();
        std::fs::copy(stage.path("ssh_user.pub"), stage.path("ssh_authorized")).unwrap();
        // Shells there read nobody's start-up files: these may wait for something of this machine's.
        let config = format!(
            "Port 2222\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin yes\nLogLevel VERBOSE\nSetEnv HOME={}\n",
            show("ssh_host"),
            show("ssh_authorized"),
            show("home"),
        );
        std::fs::write(stage.path("sshd_config"), config).unwrap();
        // The name `lab` is known to ssh alone.
        let client = format!(
            "Host lab\n  HostName far\n  Port 2222\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {}\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n",
            show("ssh_user"),
            show("ssh_known"),
        );
        std::fs::write(stage.path("ssh_config"), client).unwrap();
        // Where sshd keeps the part of it that has no rights.
        std::fs::create_dir_all("/run/sshd").unwrap();
        let mut command = stage.on(Host::Far, SSHD);
        let mut sshd = stage.start(command.args(["-D", "-e", "-f"]).arg(stage.path("sshd_config")));
        sshd.wait_to_say("Server listening");
        Self { stage, _sshd: sshd }
    }

    fn cp(&self, program: &str) -> Command {
        let mut command = self.stage.on(Host::Near, LONGHAUL);
        command.args(["cp", "--json", "--remote-program", program]);
        command.arg("--ssh").arg(format!("ssh -F {}", self.stage.path("ssh_config").display()));
        command
    }

    fn far(&self, path: &str) -> String {
        format!("lab:{}", self.path(path).display())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.stage.path(path)
    }
}

#[test]
fn a_host_that_ssh_reaches_needs_no_server() {
    require!(Need::Emulator, Need::Root, Need::Sshd);
    let shell = Shell::new();
    write_random(&shell.path("near/f"), 20 << 20, 1);
    let push = shell.stage.run(shell.cp(LONGHAUL).arg(shell.path("near/f")).arg(shell.far("far/"))).expect(0);
    assert_eq!(push.json()["files"], 1, "{}", push.out);
    assert_same_bytes(&shell.path("near/f"), &shell.path("far/f"));
    let pull = shell.stage.run(shell.cp(LONGHAUL).arg(shell.far("far/f")).arg(shell.path("near/back")));
    pull.expect(0);
    assert_same_bytes(&shell.path("far/f"), &shell.path("near/back"));
}

#[test]
fn a_host_that_ssh_reaches_can_be_looked_at() {
    require!(Need::Emulator, Need::Root, Need::Sshd);
    let shell = Shell::new();
    let mut command = shell.stage.on(Host::Near, LONGHAUL);
    command.args(["doctor", "root@lab", "--json", "--remote-program", LONGHAUL]);
    command.arg("--ssh").arg(format!("ssh -F {}", shell.path("ssh_config").display()));
    let ended = shell.stage.run(&mut command);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        (&json["far"]["host"], &json["far"]["works"]["cp"]),
        (&"root@lab".into(), &true.into()),
        "{json}"
    );
    assert!(json["path"]["figures"]["rtt_ms"].as_f64().unwrap() >= 19.9, "{json}");
}

#[test]
fn a_host_without_the_program_says_what_is_missing() {
    require!(Need::Emulator, Need::Root, Need::Sshd);
    let shell = Shell::new();
    write_random(&shell.path("near/f"), 10, 1);
    let program = "/nonexistent/longhaul";
    let ended = shell.stage.run(shell.cp(program).arg(shell.path("near/f")).arg(shell.far("far/"))).expect(2);
    ended.says(&[program, "longhaul must be installed there", "--remote-program"]);
    // The far program lives no longer than its client.
    let mut copy = shell.stage.start(shell.cp(LONGHAUL).arg(shell.path("near/f")).arg(shell.far("far/")));
    crate::stage::process::wait_for("it has ended", crate::stage::process::LIMIT, || {
        copy.has_ended().then_some(())
    });
    let listening = || {
        let list = shell.stage.run(shell.stage.on(Host::Far, "ss").args(["-tlnH"])).expect(0).out;
        list.lines().filter(|line| !line.contains(":2222")).count()
    };
    crate::stage::process::wait_for("the far program ends", crate::stage::process::LIMIT, || {
        (listening() == 0).then_some(())
    });
}
