//! Key pairs and public keys, read and written as OpenSSH does.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::known_hosts::read_limited;

/// An Ed25519 public key (RFC 8032).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

/// The SHA-256 of a public key, as `ssh-keygen -l` shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Fingerprint(String);

/// What can be wrong with a key or its file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file system's word.
    #[error("cannot {action} {path}")]
    Io {
        /// `read`, `write` …
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a private key in OpenSSH's format.
    #[error("{path} is not a private key in OpenSSH's format ({reason})")]
    NotAKey {
        /// Which file.
        path: PathBuf,
        /// The parser's word.
        reason: String,
    },
    /// Protected by a passphrase.
    #[error(
        "{0} is protected by a passphrase, which longhaul does not ask for; \
         make a key of its own with `longhaul key generate`"
    )]
    Encrypted(PathBuf),
    /// RSA, ECDSA …
    #[error("{0} is not an Ed25519 key; make one with `longhaul key generate`")]
    NotEd25519(PathBuf),
    /// Readable by others.
    #[error("{path} can be read by others (mode {mode:03o}); `chmod 600 {path}` and try again")]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A line that holds no key.
    #[error("not a public key line (`ssh-ed25519 AAAA... comment`): {0}")]
    BadLine(String),
}

impl PublicKey {
    /// From its 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads `ssh-ed25519 AAAA... [comment]`.
    ///
    /// # Errors
    /// [`KeyError::BadLine`].
    pub fn from_openssh(line: &str) -> Result<Self, KeyError> {
        let bad = |reason: &dyn fmt::Display| KeyError::BadLine(format!("{reason}: `{}`", shorten(line)));
        let key = ssh_key::PublicKey::from_openssh(line.trim()).map_err(|e| bad(&e))?;
        let ed25519 = key.key_data().ed25519().ok_or_else(|| bad(&"only Ed25519 keys are used"))?;
        Ok(Self(ed25519.0))
    }

    /// `ssh-ed25519 AAAA...`, without a comment.
    #[must_use]
    pub fn to_openssh(&self) -> String {
        let data = ssh_key::public::KeyData::Ed25519(ssh_key::public::Ed25519PublicKey(self.0));
        // Encoding 51 fixed bytes into a growing string cannot fail.
        ssh_key::PublicKey::new(data, "").to_openssh().unwrap_or_default()
    }

    /// `SHA256:...`.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let data = ssh_key::public::KeyData::Ed25519(ssh_key::public::Ed25519PublicKey(self.0));
        Fingerprint(data.fingerprint(ssh_key::HashAlg::Sha256).to_string())
    }

    /// As a SubjectPublicKeyInfo (RFC 8410), the form in which TLS carries raw public keys (RFC 7250).
    #[must_use]
    pub fn to_spki(&self) -> CertificateDer<'static> {
        let mut der = SPKI_PREFIX.to_vec();
        der.extend_from_slice(&self.0);
        CertificateDer::from(der)
    }

    /// Reads a SubjectPublicKeyInfo that holds an Ed25519 key; `None` for any other.
    #[must_use]
    pub fn from_spki(der: &[u8]) -> Option<Self> {
        der.strip_prefix(&SPKI_PREFIX)?.try_into().ok().map(Self)
    }
}

/// Sequence { Sequence { OID 1.3.101.112 }, BitString of 32 bytes }.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Sequence { 0, Sequence { OID 1.3.101.112 }, OctetString { OctetString of 32 bytes } } (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key pair. Its secret appears in no `Debug` output and no error.
#[derive(Clone)]
pub struct Identity {
    public: PublicKey,
    certified: Arc<CertifiedKey>,
    derived: [u8; 32],
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public.fingerprint())
    }
}

/// What [`Identity::derived_secret`] is for.
const DERIVATION: &[u8] = b"longhaul: QUIC stateless reset";

impl Identity {
    /// A new key that lives in memory only.
    ///
    /// # Panics
    /// When the kernel has no randomness to give.
    #[must_use]
    pub fn ephemeral() -> Self {
        Self::from_seed(&random_seed())
    }

    /// The key pair of a 32-byte seed (RFC 8032).
    fn from_seed(seed: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("32 bytes are a seed");
        let mut public = [0; 32];
        public.copy_from_slice(pair.public_key().as_ref());
        let public = PublicKey(public);
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(seed);
        let der = PrivatePkcs8KeyDer::from(pkcs8);
        let signer = rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&der).expect("the form of RFC 8410");
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, seed), DERIVATION);
        let mut secret = [0; 32];
        secret.copy_from_slice(derived.as_ref());
        let certified = Arc::new(CertifiedKey::new(vec![public.to_spki()], signer));
        Self { public, certified, derived: secret }
    }

    /// A secret of the key's holder for his server at a port, the same in each of its processes; another's answers are not
    /// taken for its (RFC 9000, 21.11).
    pub(crate) fn derived_secret(&self, port: u16) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.derived);
        let signed = hmac::sign(&key, &port.to_be_bytes());
        std::array::from_fn(|at| signed.as_ref()[at])
    }

    /// Reads a private key file in OpenSSH's format.
    ///
    /// # Errors
    /// [`KeyError`]: absent, not a key, encrypted, not Ed25519, readable by others.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io { action: "read", path: path.into(), source };
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.into(), mode });
        }
        let text = read_limited(path).map_err(failed)?;
        Self::from_openssh(&text, path)
    }

    /// Reads the text of such a file; `path` is for the error.
    pub(crate) fn from_openssh(text: &str, path: &Path) -> Result<Self, KeyError> {
        let key = ssh_key::PrivateKey::from_openssh(text)
            .map_err(|e| KeyError::NotAKey { path: path.into(), reason: e.to_string() })?;
        if key.is_encrypted() {
            return Err(KeyError::Encrypted(path.into()));
        }
        let pair = key.key_data().ed25519().ok_or_else(|| KeyError::NotEd25519(path.into()))?;
        Ok(Self::from_seed(pair.private.as_ref()))
    }

    /// Makes a new key and writes it to `path` (mode 0600) and its public half to `path.pub`.
    ///
    /// # Errors
    /// [`KeyError::Io`]; an existing file is never overwritten.
    pub fn create(path: &Path, comment: &str) -> Result<Self, KeyError> {
        let seed = random_seed();
        let identity = Self::from_seed(&seed);
        let pair = ssh_key::private::Ed25519Keypair {
            public: ssh_key::public::Ed25519PublicKey(identity.public.0),
            private: ssh_key::private::Ed25519PrivateKey::from_bytes(&seed),
        };
        let key = ssh_key::PrivateKey::new(pair.into(), comment);
        let text = key.and_then(|k| k.to_openssh(ssh_key::LineEnding::LF));
        let text = text.map_err(|e| KeyError::NotAKey { path: path.into(), reason: e.to_string() })?;
        write_new(path, 0o600, text.as_bytes())?;
        let line = format!("{} {comment}\n", identity.public.to_openssh());
        let mut public = path.as_os_str().to_owned();
        public.push(".pub");
        write_new(Path::new(&public), 0o644, line.as_bytes())?;
        Ok(identity)
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

fn random_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    aws_lc_rs::rand::fill(&mut seed).expect("the kernel gives randomness");
    seed
}

fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), KeyError> {
    let failed = |source| KeyError::Io { action: "write", path: path.into(), source };
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)
}

/// For error messages: no line of a broken file is repeated whole.
pub(super) fn shorten(line: &str) -> String {
    let mut short: String = line.chars().take(40).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `ssh-keygen -t ed25519 -N '' -C test@example`.
    const PUBLIC: &str = include_str!("testdata/id_ed25519.pub");
    const FINGERPRINT: &str = include_str!("testdata/id_ed25519.fingerprint");
    const PRIVATE: &str = include_str!("testdata/id_ed25519");
    const ENCRYPTED: &str = include_str!("testdata/encrypted");
    const RSA: &str = include_str!("testdata/rsa");

    fn in_file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_new(&path, mode, text.as_bytes()).unwrap();
        (dir, path)
    }

    #[test]
    fn an_openssh_key_is_read_and_has_openssh_s_fingerprint() {
        let (_dir, path) = in_file(PRIVATE, 0o600);
        let identity = Identity::load(&path).unwrap();
        assert_eq!(identity.public(), PublicKey::from_openssh(PUBLIC).unwrap());
        assert_eq!(identity.public().fingerprint().to_string(), FINGERPRINT.trim());
        assert!(PUBLIC.starts_with(&identity.public().to_openssh()));
    }

    #[test]
    fn unusable_keys_are_named_as_what_they_are() {
        let load = |text, mode| {
            let (_dir, path) = in_file(text, mode);
            Identity::load(&path).unwrap_err()
        };
        assert!(matches!(load(ENCRYPTED, 0o600), KeyError::Encrypted(_)));
        assert!(matches!(load(RSA, 0o600), KeyError::NotEd25519(_)));
        assert!(matches!(load(PRIVATE, 0o640), KeyError::Exposed { mode: 0o640, .. }));
        assert!(matches!(load("no key", 0o600), KeyError::NotAKey { .. }));
        let endless = "x".repeat(crate::limits::KEY_FILE_BYTES_MAX as usize + 1);
        assert!(matches!(load(&endless, 0o600), KeyError::Io { action: "read", .. }));
        assert!(!format!("{:?}", load("no key", 0o600)).contains("no key"));
    }

    #[test]
    fn a_created_key_is_private_readable_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/id");
        let made = Identity::create(&path, "me").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Identity::load(&path).unwrap().public(), made.public());
        let public = fs::read_to_string(dir.path().join("sub/id.pub")).unwrap();
        assert_eq!(PublicKey::from_openssh(&public).unwrap(), made.public());
        assert!(matches!(Identity::create(&path, "me"), Err(KeyError::Io { action: "write", .. })));
    }

    #[test]
    fn spki_round_trip() {
        let key = Identity::ephemeral().public();
        assert_eq!(PublicKey::from_spki(&key.to_spki()), Some(key));
        assert_eq!(PublicKey::from_spki(&[0; 44]), None);
    }
}
