//! A running topology by name: one socket a topology, one JSON line a request, the hosts' namespaces as descriptors.
//!
//! The daemon holds everything by file descriptors, so killing it leaves at most a dead socket file, which the next
//! [`Daemon::bind`] or [`Client::connect`] removes.

use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};

use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, CONTROL_PATIENCE};
use crate::namespace::Namespace;
use crate::network::Network;
use crate::report::LinkReport;
use crate::spec::LinkSpec;

/// A request to a topology's daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Request {
    /// Change a link, or that of one of its rules.
    Set {
        change: Box<LinkSpec>,
        #[serde(default)]
        link: Option<String>,
        #[serde(default)]
        rule: Option<String>,
    },
    /// Report.
    Show,
    /// Give me a host's namespace.
    Enter { host: String },
    /// End.
    Down,
}

/// Its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done,
    Report(Vec<LinkReport>),
    /// What the host calls the others. Followed by descriptors: the network namespace and, where the daemon has its own,
    /// the user namespace.
    Namespaces(Vec<(String, IpAddr)>),
    Refused(String),
}

/// For the fuzz targets: reads a request's line and writes it again; with it the change it asks for.
#[doc(hidden)]
#[must_use]
pub fn reread_request(line: &[u8]) -> Option<(Vec<u8>, Option<LinkSpec>)> {
    let request: Request = serde_json::from_slice(line).ok()?;
    let again = serde_json::to_vec(&request).ok()?;
    Some((again, if let Request::Set { change, .. } = request { Some(*change) } else { None }))
}

/// For the fuzz targets: reads an answer's line and writes it again.
#[doc(hidden)]
#[must_use]
pub fn reread_answer(line: &[u8]) -> Option<Vec<u8>> {
    serde_json::to_vec(&serde_json::from_slice::<Answer>(line).ok()?).ok()
}

/// What can go wrong between a command and a topology's daemon.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Not a name.
    #[error("`{0}` is not a name: use letters, digits, `-` and `_`, at most 64 of them")]
    BadName(String),
    /// Nobody answers to that name.
    #[error("no emulated network is up under the name `{0}`; `longhaul emulate up {0}` starts one")]
    NotUp(String),
    /// Somebody already does.
    #[error("an emulated network named `{0}` is already up; `longhaul emulate down {0}` ends it")]
    AlreadyUp(String),
    /// The directory of the sockets is somebody else's.
    #[error("{0} does not belong to this user; remove it or set XDG_RUNTIME_DIR")]
    ForeignDirectory(PathBuf),
    /// The daemon's own words.
    #[error("{0}")]
    Refused(String),
    /// The socket.
    #[error("cannot speak with the emulated network `{name}`")]
    Io {
        /// The topology.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

/// A checked topology name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl std::str::FromStr for Name {
    type Err = ControlError;
    fn from_str(s: &str) -> Result<Self, ControlError> {
        let good = !s.is_empty()
            && s.len() <= 64
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if good { Ok(Self(s.to_owned())) } else { Err(ControlError::BadName(s.to_owned())) }
    }
}

impl Name {
    fn io(&self) -> impl Fn(io::Error) -> ControlError + '_ {
        |source| ControlError::Io { name: self.0.clone(), source }
    }

    fn socket_path(&self) -> Result<PathBuf, ControlError> {
        Ok(runtime_directory().map_err(self.io())??.join(format!("{}.sock", self.0)))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The user's own directory for sockets, made when it is not there.
fn runtime_directory() -> io::Result<Result<PathBuf, ControlError>> {
    let uid = rustix::process::geteuid();
    let base = if uid.is_root() {
        PathBuf::from("/run/longhaul")
    } else if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Path::new(&dir).join("longhaul")
    } else {
        std::env::temp_dir().join(format!("longhaul-{}", uid.as_raw()))
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&base)?;
    // In a shared /tmp somebody else may have made it first.
    if fs::symlink_metadata(&base)?.uid() != uid.as_raw() {
        return Ok(Err(ControlError::ForeignDirectory(base)));
    }
    Ok(Ok(base))
}

/// The serving side: a topology and its socket.
#[derive(Debug)]
pub struct Daemon {
    name: Name,
    path: PathBuf,
    /// Of the socket.
    inode: u64,
    listener: UnixListener,
}

impl Daemon {
    /// Takes the name. Call before [`gain_rights`](crate::namespace::gain_rights): the directory is the user's.
    ///
    /// # Errors
    /// [`ControlError::AlreadyUp`] and what the file system says.
    pub fn bind(name: Name) -> Result<Self, ControlError> {
        let path = name.socket_path()?;
        if UnixStream::connect(&path).is_ok() {
            return Err(ControlError::AlreadyUp(name.0));
        }
        remove_if_there(&path).map_err(name.io())?;
        let listener = UnixListener::bind(&path).map_err(name.io())?;
        let inode = fs::symlink_metadata(&path).map_err(name.io())?.ino();
        Ok(Self { name, path, inode, listener })
    }

    /// Answers requests until one says `down`. `user` is the user namespace that owns the hosts, if any.
    ///
    /// # Errors
    /// When the socket fails for good.
    pub fn serve(self, network: &mut Network, user: Option<&OwnedFd>) -> Result<(), ControlError> {
        loop {
            let (stream, _) = self.listener.accept().map_err(self.name.io())?;
            // One client at a time: every request is answered at once; a broken one only ends itself.
            if matches!(answer(stream, network, user, &self.path), Ok(true)) {
                return Ok(());
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may be another network's by now.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path); // a stale socket is removed by the next one to use the name
        }
    }
}

/// True when the request was to end.
fn answer(
    stream: UnixStream,
    network: &mut Network,
    user: Option<&OwnedFd>,
    path: &Path,
) -> io::Result<bool> {
    // Whoever connects and says nothing does not keep the others waiting.
    stream.set_read_timeout(Some(CONTROL_PATIENCE))?;
    stream.set_write_timeout(Some(CONTROL_PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new((&stream).take(CONTROL_MESSAGE_BYTES_MAX as u64)).read_until(b'\n', &mut line)?;
    let request: Request = match serde_json::from_slice(&line) {
        Ok(request) => request,
        Err(error) => return send(&stream, &Answer::Refused(error.to_string()), &[]).map(|()| false),
    };
    let refused = |error: &dyn std::fmt::Display| Answer::Refused(error.to_string());
    let reply = match request {
        Request::Set { change, link, rule } => match network.set(link.as_deref(), rule.as_deref(), &change) {
            Err(error) => refused(&error),
            Ok(()) => Answer::Done,
        },
        Request::Show => match network.report() {
            Ok(reports) => Answer::Report(reports),
            Err(error) => refused(&error),
        },
        Request::Enter { host } => match network.namespace(&host) {
            None => {
                let hosts: Vec<&str> =
                    network.topology().hosts.iter().map(|host| host.name.as_str()).collect();
                Answer::Refused(format!("there is no host `{host}`; there are: {}", hosts.join(", ")))
            }
            Some(namespace) => {
                let net = namespace.as_fd();
                let fds: Vec<BorrowedFd<'_>> = std::iter::once(net).chain(user.map(AsFd::as_fd)).collect();
                return send(&stream, &Answer::Namespaces(network.names(&host)), &fds).map(|()| false);
            }
        },
        Request::Down => {
            let reply = match network.end() {
                Ok(()) => Answer::Done,
                Err(error) => {
                    Answer::Refused(format!("it is down, but the capture could not be written: {error}"))
                }
            };
            // Who is told that it is down may use the name at once.
            let _ = fs::remove_file(path); // gone already: fine
            return send(&stream, &reply, &[]).map(|()| true);
        }
    };
    send(&stream, &reply, &[]).map(|()| false)
}

fn send(mut stream: &UnixStream, answer: &Answer, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    if fds.is_empty() {
        return stream.write_all(&line);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    // Far below the socket's buffer: sent whole.
    rustix::net::sendmsg(stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The asking side.
#[derive(Debug)]
pub struct Client {
    name: Name,
    stream: UnixStream,
}

impl Client {
    /// Finds the topology called `name`; removes the socket of a dead one.
    ///
    /// # Errors
    /// [`ControlError::NotUp`].
    pub fn connect(name: Name) -> Result<Self, ControlError> {
        let path = name.socket_path()?;
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Self { name, stream }),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                remove_if_there(&path).map_err(name.io())?;
                Err(ControlError::NotUp(name.0))
            }
            Err(error) => Err(name.io()(error)),
        }
    }

    /// Changes a link, or that of one of its rules; what `change` does not name stays. Without a name the only link.
    ///
    /// # Errors
    /// [`ControlError::Refused`] for a link that cannot be.
    pub fn set(
        self,
        link: Option<String>,
        rule: Option<String>,
        change: LinkSpec,
    ) -> Result<(), ControlError> {
        self.ask(&Request::Set { change: Box::new(change), link, rule }).map(drop)
    }

    /// What has happened on each link so far.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn show(self) -> Result<Vec<LinkReport>, ControlError> {
        let name = self.name.clone();
        match self.ask(&Request::Show)? {
            (Answer::Report(reports), _) => Ok(reports),
            _ => Err(name.io()(io::ErrorKind::InvalidData.into())),
        }
    }

    /// A host's namespace, and what it calls the others. The calling process must have one thread, and becomes root of
    /// the topology's user namespace where that has one.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn enter(self, host: String) -> Result<(Namespace, Vec<(String, IpAddr)>), ControlError> {
        let name = self.name.clone();
        let (answer, mut fds) = self.ask(&Request::Enter { host })?;
        let Answer::Namespaces(names) = answer else {
            return Err(name.io()(io::ErrorKind::InvalidData.into()));
        };
        if fds.is_empty() {
            return Err(name.io()(io::ErrorKind::InvalidData.into()));
        }
        let net = fds.remove(0);
        if let Some(user) = fds.pop() {
            use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(|e| name.io()(e.into()))?;
        }
        Ok((Namespace::from_fd(net), names))
    }

    /// Ends the topology.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn down(self) -> Result<(), ControlError> {
        self.ask(&Request::Down).map(drop)
    }

    fn ask(self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), ControlError> {
        let exchange = || -> io::Result<(Answer, Vec<OwnedFd>)> {
            let mut line = serde_json::to_vec(request)?;
            line.push(b'\n');
            (&self.stream).write_all(&line)?;
            let mut fds = Vec::new();
            let mut text = Vec::new();
            let mut part = [0u8; 8192];
            while !text.ends_with(b"\n") && text.len() < CONTROL_MESSAGE_BYTES_MAX {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let parts = &mut [IoSliceMut::new(&mut part)];
                let got = rustix::net::recvmsg(&self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        fds.extend(received);
                    }
                }
                if got.bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                text.extend_from_slice(&part[..got.bytes]);
            }
            Ok((serde_json::from_slice(&text)?, fds))
        };
        let has_died = |error: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
            matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        };
        let answer = exchange().map_err(|error| match has_died(&error) {
            true => ControlError::NotUp(self.name.0.clone()),
            false => self.name.io()(error),
        });
        match answer? {
            (Answer::Refused(reason), _) => Err(ControlError::Refused(reason)),
            answer => Ok(answer),
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
