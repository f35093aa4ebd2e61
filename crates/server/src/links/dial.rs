//! Dialed links: name resolution, connection, upgrade, handshake.
//!
//! **Promise.** A dial is bounded in time: name resolution and connection take at most
//! [`CONNECT_TIME`], the handshake at most [`HANDSHAKE_TIME`]. The state machine receives the kind
//! of a failure as a [`DialFailure`]. If an operator has to act, the log reports it once a minute.

use super::address::PeerAddress;
use super::exchange::HandshakeExchange;
use super::{PeerLinks, nonce};
use crate::local::Local;
use crate::stated_address;
use cluster::{DialFailure, NodeIndex, PeerHello, Requester};
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use wire::handshake::{DialStep, Dialer, HandshakeError, refusal};
use wire::upgrade::{self, UpgradeError};
use wire::{Inbox, InboxLimits};

/// Time limit for resolving the peer's name and connecting.
const CONNECT_TIME: Duration = Duration::from_millis(500);
/// Time limit from the connection to the peer's welcome.
const HANDSHAKE_TIME: Duration = Duration::from_millis(500);
/// Status with which a node answers before it has recovered.
const STARTING: u16 = 503;

/// A link that the peer has admitted.
pub(crate) struct AdmittedLink {
    pub(crate) socket: TcpStream,
    pub(crate) inbox: Inbox,
    pub(crate) hello: PeerHello,
    /// Version of the protocol.
    pub(crate) version: u8,
}

/// Reason why a dial failed.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("no answer in time")]
    TimedOut,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// Dials `node` for the state machine `requester`. If the node answers, and states another address
/// that was not tried yet, it is dialed there as well, and the link to that address is preferred.
pub(crate) async fn dial(
    links: &PeerLinks,
    local: &Local,
    node: NodeIndex,
    requester: Requester,
) -> Result<AdmittedLink, DialFailure> {
    // A record without the node has been adopted since the dial was requested.
    let address = local.addresses.current(node).ok_or(DialFailure::Refused)?;
    let link = dial_at(links, local, (node, &address), requester).await?;
    let Some(stated) = local.addresses.untried(node) else { return Ok(link) };
    Ok(dial_at(links, local, (node, &stated), requester).await.unwrap_or(link))
}

async fn dial_at(
    links: &PeerLinks,
    local: &Local,
    (node, address): (NodeIndex, &PeerAddress),
    requester: Requester,
) -> Result<AdmittedLink, DialFailure> {
    match attempt(links, local, (node, address), requester).await {
        Ok(link) => {
            local.record_reached(&link.hello, address);
            Ok(link)
        }
        Err(error) => {
            let failure = error.failure();
            let is_own_address = local.addresses.is_own(node, address);
            if !is_own_address || !error.is_of_node() {
                let reason = error.to_string();
                if let Some(stated) = local.addresses.failed(node, address, &reason) {
                    tracing::warn!("{}", stated_address::of_peer(&local.url_of(node), &stated, &reason));
                }
            }
            warn_of_failure(links, local, node, &error, failure, is_own_address);
            Err(failure)
        }
    }
}

async fn attempt(
    links: &PeerLinks,
    local: &Local,
    (node, address): (NodeIndex, &PeerAddress),
    requester: Requester,
) -> Result<AdmittedLink, DialError> {
    let socket = in_time(CONNECT_TIME, connect(links, address)).await?;
    let mut exchange = HandshakeExchange { socket, waiting: Vec::new() };
    let proof = local.early_proof(node, links.clock.now().wall);
    let shaken =
        in_time(HANDSHAKE_TIME, run_handshake(&mut exchange, local, (node, address), requester, &proof))
            .await;
    if let Err(DialError::Handshake(error)) = &shaken
        && let Some(refusal) = error.refusal_bytes()
    {
        // The refusal is a few bytes that fit the socket's buffer. If they do not, the peer times
        // out.
        let _ = exchange.socket.try_write(&refusal);
    }
    let (hello, version, rest) = shaken?;
    let mut inbox = Inbox::new(InboxLimits::default());
    inbox.feed(&rest);
    Ok(AdmittedLink { socket: exchange.socket, inbox, hello, version })
}

async fn in_time<T>(
    time: Duration,
    work: impl Future<Output = Result<T, DialError>>,
) -> Result<T, DialError> {
    tokio::time::timeout(time, work).await.unwrap_or(Err(DialError::TimedOut))
}

async fn connect(links: &PeerLinks, address: &PeerAddress) -> Result<TcpStream, DialError> {
    let found = links.resolver.resolve(address).await?;
    let socket = TcpStream::connect(&found[..]).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

async fn run_handshake(
    exchange: &mut HandshakeExchange,
    local: &Local,
    (node, address): (NodeIndex, &PeerAddress),
    requester: Requester,
    proof: &str,
) -> Result<(PeerHello, u8, Vec<u8>), DialError> {
    exchange.send(&upgrade::request(&address.to_host_header(), proof)).await?;
    let answer_len = loop {
        match upgrade::parse_response(&exchange.waiting)? {
            upgrade::UpgradeResponse::NeedMore => exchange.receive().await?,
            upgrade::UpgradeResponse::Upgraded { len } => break len,
        }
    };
    exchange.waiting.drain(..answer_len);
    let (mut dialer, hello) = Dialer::start(local.introduce(requester), node, nonce());
    exchange.send(&hello).await?;
    loop {
        match dialer.handle(&std::mem::take(&mut exchange.waiting))? {
            DialStep::NeedMore => exchange.receive().await?,
            DialStep::Send(bytes) => exchange.send(&bytes).await?,
            DialStep::Done { hello, rest } => {
                local.record_statement(&hello, dialer.statement());
                return Ok((hello, dialer.version(), rest));
            }
        }
    }
}

impl DialError {
    /// Whether the node itself has answered, and may admit a later dial to the same address.
    fn is_of_node(&self) -> bool {
        match self {
            Self::Upgrade(UpgradeError::Status { status: STARTING }) => true,
            // Any other reason may be that of a node of another cluster.
            Self::Handshake(HandshakeError::RefusedByPeer { reason }) => {
                [refusal::NOT_NOW, refusal::COPY, refusal::NOT_YET].contains(&reason.as_str())
            }
            Self::Handshake(error) => !matches!(
                error,
                HandshakeError::WrongNode { .. }
                    | HandshakeError::SameNode { .. }
                    | HandshakeError::AnotherCluster { .. }
                    | HandshakeError::AnotherList { .. }
                    | HandshakeError::AnotherIdentity { .. }
                    | HandshakeError::Malformed { .. }
            ),
            Self::TimedOut | Self::Io(_) | Self::Upgrade(_) => false,
        }
    }

    fn failure(&self) -> DialFailure {
        match self {
            Self::TimedOut => DialFailure::TimedOut,
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => DialFailure::TimedOut,
            Self::Io(_) | Self::Upgrade(UpgradeError::Status { status: STARTING }) => DialFailure::Refused,
            Self::Handshake(HandshakeError::RefusedByPeer { reason }) if reason == refusal::NOT_YET => {
                DialFailure::Refused
            }
            Self::Handshake(HandshakeError::RefusedByPeer { reason }) if reason == refusal::NOT_NOW => {
                DialFailure::NotAdmitted
            }
            Self::Handshake(HandshakeError::RefusedByPeer { reason }) if reason == refusal::COPY => {
                DialFailure::Copy
            }
            Self::Handshake(HandshakeError::RemovedByPeer { epoch }) => {
                DialFailure::Removed { epoch: *epoch }
            }
            Self::Upgrade(_) | Self::Handshake(_) => DialFailure::Rejected,
        }
    }
}

fn warn_of_failure(
    links: &PeerLinks,
    local: &Local,
    node: NodeIndex,
    error: &DialError,
    failure: DialFailure,
    is_own_address: bool,
) {
    let peer = local.url_of(node);
    // Another node may well answer at an address that is only tried.
    if !is_own_address || !matches!(failure, DialFailure::Rejected | DialFailure::Copy) {
        return tracing::debug!(peer, %error, "no link");
    }
    let reason = error.to_string();
    if links.warnings.count_refused(links.clock.now().mono, &peer, &reason) {
        tracing::warn!(peer, reason, "no link to a peer");
    }
}
