//! `longhaul key`: this user's identity.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use longhaul_transport::identity::{Identity, PublicKey};

use super::print_out;
use crate::config;

/// Keys: who you are to servers, and who they are
///
/// Keys are Ed25519 keys in OpenSSH's format. Without a key of its own longhaul uses ~/.ssh/id_ed25519, unless a
/// passphrase protects it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul key show                         the line for a server's authorized_keys
  longhaul key generate
  longhaul key fingerprint /etc/longhaul/host_ed25519.pub

Files:
  ~/.config/longhaul/id_ed25519[.pub]       your key
  ~/.config/longhaul/known_hosts            servers' keys, learnt at the first connection
  ~/.config/longhaul/authorized_keys        who may use a server you run
  /etc/longhaul/host_ed25519[.pub], /etc/longhaul/authorized_keys
                                            the same for a server that root runs")]
pub(crate) struct Key {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a new key; an existing file is never overwritten
    Generate {
        /// Where to [default: ~/.config/longhaul/id_ed25519]
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// A note at the end of the public key's line [default: user@host]
        #[arg(short = 'C', long)]
        comment: Option<String>,
    },
    /// Print the public key in use, as a line for a server's authorized_keys
    Show {
        /// Another private key than the one in use
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print the fingerprint of a public key file, or of the key in use
    Fingerprint {
        /// A file with a line `ssh-ed25519 AAAA...`
        #[arg(value_name = "PUBLIC_KEY_FILE")]
        file: Option<PathBuf>,
    },
}

impl Key {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let text = match self.action {
            Action::Generate { file, comment } => {
                let path = file.map_or_else(|| config::directory().map(|d| d.join("id_ed25519")), Ok)?;
                let identity = Identity::create(&path, &comment.unwrap_or_else(config::comment))?;
                format!("{}\n{}\n", path.display(), identity.public().fingerprint())
            }
            Action::Show { file } => {
                let identity = config::user_key(file.as_deref())?;
                format!("{} {}\n", identity.public().to_openssh(), config::comment())
            }
            Action::Fingerprint { file: None } => {
                format!("{}\n", config::user_key(None)?.public().fingerprint())
            }
            Action::Fingerprint { file: Some(path) } => {
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))?;
                format!("{}\n", PublicKey::from_openssh(&text)?.fingerprint())
            }
        };
        print_out(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
