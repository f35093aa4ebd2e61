//! A node with an empty data directory becomes a member of a cluster.
//!
//! **Promise.** When [`join`] returns, a decided layout record has the node as a member, and its
//! data directory belongs to the cluster: the node starts in it like any other. A join that was cut
//! off at any moment is repeated by the next one in the same directory, and adds one member. If the
//! cluster refuses the node, the error says why. At the address of a member that cannot be reached,
//! the node takes the place of that member, which has lost its disk.
//!
//! **Mechanism.** The node keeps its id and its request in the directory (`store`'s `joining`), and
//! asks one member over a connection of its own (`wire::handshake`'s `join`). The member has the
//! record decided, and answers with it. While the layout cannot change, the node asks again.
//!
//! **Caveats.** The node does not listen meanwhile, so its peers dial it in vain for a moment. All
//! of this blocks the calling thread. A member whose URL leads to no node of this address is found
//! out only once the members dial it.

use crate::links::{self, InvalidAddress, PeerAddress};
use cluster::{ClusterId, JoiningNode, LayoutDecodeError, LayoutRecord, Message, NodeResponse, PeerAnswer};
use env::Env;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;
use stdx::NodeTag;
use store::{JoinRequest, JoiningDirectory, StoreError};
use wire::handshake::{HandshakeError, JoinDialer, JoinStep, Secret, refusal};
use wire::upgrade::{self, UpgradeError, UpgradeResponse};
use wire::{Inbox, InboxLimits, Incoming, WireError};

/// Time limit for a connection, and for each part of the handshake.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Time limit for the record to be decided. The member gives up before.
const DECISION_TIME: Duration = Duration::from_secs(20);
/// Time for which a node asks again while the member cannot have a record decided.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Status with which a node answers before it has recovered.
const STARTING: u16 = 503;
/// Size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// The reason why a node did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The URL is no address.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// No member answers.
    #[error("cannot join: {member} does not answer ({source}); give --join the URL of a member that runs")]
    NoAnswer {
        /// URL of the member.
        member: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The node at the URL speaks no protocol for joining.
    #[error("cannot join: {member} does not take nodes in ({error})")]
    Upgrade {
        /// URL of the member.
        member: String,
        /// The answer.
        error: UpgradeError,
    },
    /// The handshake failed.
    #[error("cannot join by {member}: {error}")]
    Handshake {
        /// URL of the member.
        member: String,
        /// The reason.
        error: HandshakeError,
    },
    /// The cluster refuses the node.
    #[error("the cluster refuses this node: {reason}")]
    Refused {
        /// The reason that a member has sent.
        reason: String,
    },
    /// The layout of the cluster cannot change now.
    #[error("the cluster could not take the node in within {} s: {reason}; start it again to go on", PATIENCE.as_secs())]
    NotNow {
        /// The last reason.
        reason: String,
    },
    /// The layout record that the member has sent cannot be used.
    #[error(
        "the layout record of the cluster cannot be read: {0}; install the release of the members on this node"
    )]
    Record(#[from] LayoutDecodeError),
    /// The member has sent something else than a layout record.
    #[error("{member} has not sent a layout record ({detail})")]
    NoRecord {
        /// URL of the member.
        member: String,
        /// What it has sent.
        detail: String,
    },
    /// The data directory belongs to another cluster than the member.
    #[error(
        "the data directory {directory} belongs to cluster {own}, and {member} to cluster {theirs}: start the node without \
         --join to serve in its own cluster, or give it another --data, which is empty, to join the other one"
    )]
    AnotherCluster {
        /// The data directory.
        directory: String,
        /// The cluster of the directory.
        own: ClusterId,
        /// URL of the member.
        member: String,
        /// The cluster of the member.
        theirs: ClusterId,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes the node of the data directory `dir` a member, as `request` says. `level_max`: greatest
/// feature level of the layout records that the node carries out.
///
/// # Errors
/// [`JoinError`]: the node is no member, as far as is known. The same call may be repeated.
pub fn join(
    env: &Env,
    dir: &Path,
    request: &JoinRequest,
    secret: Option<&str>,
    level_max: u32,
) -> Result<(), JoinError> {
    let new_tag = NodeTag(env::os_process::entropy_u64());
    let directory = JoiningDirectory::begin(env, dir, request, new_tag)?;
    let node = JoiningNode {
        id: directory.tag(),
        url: request.own.clone(),
        zone: request.zone.clone(),
        weight: request.weight,
        feature_level_max: level_max,
        member_url: request.member.clone(),
    };
    let member = &request.member;
    tracing::info!(member, url = request.own, id = format!("{:016x}", node.id.0), "joining a cluster");
    let begun = env.clock.now().mono;
    // A member has been asked, and has not said that the node does not join.
    let mut is_open = false;
    let record = loop {
        let connection = MemberConnection::open(member, secret, &node);
        let is_asked = connection.is_ok();
        let error = match connection.and_then(MemberConnection::ask) {
            Ok(record) => break record,
            Err(error) => error,
        };
        is_open |= is_asked && !matches!(error, JoinError::Refused { .. });
        let may_wait = env.clock.now().mono.saturating_since(begun) < PATIENCE;
        let reason = match error {
            JoinError::NotNow { reason } if may_wait => reason,
            error => {
                if !is_open {
                    directory.withdraw()?;
                }
                return Err(error);
            }
        };
        tracing::warn!(member, reason, "the cluster cannot take the node in yet: it asks again");
        std::thread::sleep(RETRY_AFTER);
    };
    directory.complete(&record)?;
    tracing::info!(
        epoch = record.epoch.0,
        cluster_id = %record.cluster,
        members = record.members.len(),
        "the node is a member of the cluster, and holds no data yet"
    );
    Ok(())
}

/// Checks that `member` belongs to the cluster of the data directory `dir`, which has one. A member
/// that does not answer is not judged.
///
/// # Errors
/// [`JoinError::AnotherCluster`], or [`JoinError::Store`] if the directory cannot be read.
pub fn check_cluster(env: &Env, dir: &Path, member: &str, secret: Option<&str>) -> Result<(), JoinError> {
    let Some(own) = store::cluster_of(env, dir)? else { return Ok(()) };
    let unnamed = JoiningNode {
        id: NodeTag(0),
        url: String::new(),
        zone: String::new(),
        weight: 0,
        feature_level_max: 0,
        member_url: String::new(),
    };
    match MemberConnection::open(member, secret, &unnamed) {
        Ok(connection) => match connection.cluster {
            theirs if theirs == own => Ok(()),
            theirs => {
                let (directory, member) = (dir.display().to_string(), member.to_owned());
                Err(JoinError::AnotherCluster { directory, own, member, theirs })
            }
        },
        Err(error) => {
            tracing::warn!(member, %error, "it could not be checked that --join names a member of this node's cluster");
            Ok(())
        }
    }
}

/// A connection to a member that has proved that it holds the secret.
struct MemberConnection {
    member: String,
    socket: TcpStream,
    dialer: JoinDialer,
    /// The cluster of the member.
    cluster: ClusterId,
    /// The request for the membership, which is not sent yet.
    request: Vec<u8>,
}

impl MemberConnection {
    fn open(member: &str, secret: Option<&str>, node: &JoiningNode) -> Result<Self, JoinError> {
        let no_answer = |source| JoinError::NoAnswer { member: member.to_owned(), source };
        let mut socket = connect(member)?;
        let mut waiting = Vec::new();
        let host = PeerAddress::of(member)?.to_host_header();
        socket.write_all(&upgrade::join_request(&host)).map_err(no_answer)?;
        loop {
            match upgrade::parse_join_response(&waiting) {
                Ok(UpgradeResponse::Upgraded { len }) => {
                    waiting.drain(..len);
                    break;
                }
                Ok(UpgradeResponse::NeedMore) => receive(&mut socket, &mut waiting).map_err(no_answer)?,
                Err(UpgradeError::Status { status: STARTING }) => {
                    return Err(JoinError::NotNow { reason: format!("{member} has not recovered yet") });
                }
                Err(error) => return Err(JoinError::Upgrade { member: member.to_owned(), error }),
            }
        }
        let secret = Secret::new(secret.unwrap_or_default());
        let (mut dialer, hello) = JoinDialer::start(secret, node.clone(), links::nonce());
        socket.write_all(&hello).map_err(no_answer)?;
        let request = loop {
            match dialer.handle(&std::mem::take(&mut waiting)).map_err(|error| refused(member, error))? {
                JoinStep::NeedMore => receive(&mut socket, &mut waiting).map_err(no_answer)?,
                JoinStep::Ask(request) => break request,
                JoinStep::Done { .. } => unreachable!("the request is not sent yet"),
            }
        };
        let cluster = dialer.member().expect("it is authenticated").cluster;
        Ok(Self { member: member.to_owned(), socket, dialer, cluster, request })
    }

    /// Asks for the membership. Returns the decided record.
    fn ask(mut self) -> Result<LayoutRecord, JoinError> {
        let member = &self.member;
        let no_answer = |source| JoinError::NoAnswer { member: member.clone(), source };
        let no_record = |detail: String| JoinError::NoRecord { member: member.clone(), detail };
        self.socket.write_all(&self.request).map_err(no_answer)?;
        self.socket.set_read_timeout(Some(DECISION_TIME)).map_err(no_answer)?;
        let mut waiting = Vec::new();
        let rest = loop {
            let step = self.dialer.handle(&std::mem::take(&mut waiting));
            match step.map_err(|error| refused(member, error))? {
                JoinStep::NeedMore => receive(&mut self.socket, &mut waiting).map_err(no_answer)?,
                JoinStep::Done { rest } => break rest,
                JoinStep::Ask(_) => unreachable!("the member is authenticated already"),
            }
        };
        let mut inbox = Inbox::new(InboxLimits::default());
        inbox.feed(&rest);
        loop {
            match inbox.next().map_err(|error: WireError| no_record(error.to_string()))? {
                Some(Incoming::Clock(_)) => {}
                Some(Incoming::Message(Message::Answer {
                    answer: PeerAnswer::Node(NodeResponse::Layout(record)),
                    ..
                })) => return Ok(record.decode()?),
                Some(Incoming::Message(_)) => return Err(no_record("another message came".to_owned())),
                None => {
                    let mut bytes = Vec::new();
                    receive(&mut self.socket, &mut bytes).map_err(no_answer)?;
                    inbox.feed(&bytes);
                }
            }
        }
    }
}

fn connect(member: &str) -> Result<TcpStream, JoinError> {
    let no_answer = |source| JoinError::NoAnswer { member: member.to_owned(), source };
    let host = PeerAddress::of(member)?.to_host_header();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its host name has no address");
    for address in host.to_socket_addrs().map_err(no_answer)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(socket) => {
                socket.set_nodelay(true).map_err(no_answer)?;
                socket.set_write_timeout(Some(CONNECT_TIME)).map_err(no_answer)?;
                socket.set_read_timeout(Some(CONNECT_TIME)).map_err(no_answer)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(no_answer(last))
}

/// Waits for further bytes.
fn receive(socket: &mut TcpStream, waiting: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; READ_BYTES];
    match socket.read(&mut buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(len) => {
            waiting.extend_from_slice(&buffer[..len]);
            Ok(())
        }
        // The system reports a timeout as an operation that would block.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error),
    }
}

fn refused(member: &str, error: HandshakeError) -> JoinError {
    match error {
        HandshakeError::RefusedByPeer { reason } => match reason.strip_prefix(refusal::JOIN_LATER) {
            Some(reason) => JoinError::NotNow { reason: reason.to_owned() },
            None => JoinError::Refused { reason },
        },
        error => JoinError::Handshake { member: member.to_owned(), error },
    }
}
