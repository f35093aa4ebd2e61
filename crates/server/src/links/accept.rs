//! Accepted links: from the first request to admission.
//!
//! **Promise.** A connection that does not complete the handshake in time, or sends anything else,
//! is dropped. Handshakes in flight are bounded, and unknown dialers do not block known peers
//! ([`handshakes`](super::handshakes)). A dialer that has proved to be a peer is presented to the
//! node, which admits or refuses it. A refused peer is told the reason, and the log reports it once
//! a minute.
//!
//! **Mechanism.** The connection belongs to the I/O thread that accepted it until the peer has
//! authenticated. The caller then sends it to the control thread as an [`Arrival`]. After admission
//! it becomes an [`Admitted`] link of the state machine that it is meant for.

use super::PeerLinks;
use super::exchange::HandshakeExchange;
use super::join_accept::{self, JoiningPeer};
use crate::adopted_layout::AdoptedLayout;
use crate::date::http_date;
use crate::local::Local;
use crate::socket;
use api::{HttpDate, Problem};
use cluster::{JoiningNode, LinkId, NodeIndex, PeerHello, Requester};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use wire::handshake::{AcceptStep, Acceptor, HandshakeError, JoinAcceptor, LayoutStatement, refusal};
use wire::{Inbox, InboxLimits, upgrade};

/// Time limit for the head of the request.
const HEAD_TIME: Duration = Duration::from_millis(500);
/// Time limit from the head of the request to the peer's authentication.
const HANDSHAKE_TIME: Duration = Duration::from_millis(500);
/// Time limit for a refused peer to read the reason.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// First bytes of a peer's connection.
const REQUEST_BEGIN: &[u8] = b"GET /v0/peer ";
/// An authenticated peer, before admission.
pub(crate) struct Arrival {
    pub(crate) link: LinkId,
    pub(crate) hello: PeerHello,
    socket: std::net::TcpStream,
    acceptor: Acceptor,
}

/// An admitted link.
pub(crate) struct Admitted {
    pub(crate) link: LinkId,
    pub(crate) node: NodeIndex,
    /// Version of the protocol.
    pub(crate) version: u8,
    pub(crate) socket: std::net::TcpStream,
    pub(crate) inbox: Inbox,
    /// First bytes to send.
    pub(crate) welcome: Vec<u8>,
}

/// An authenticated dialer.
pub(crate) enum Accepted {
    /// A peer, before admission.
    Peer(Box<Arrival>),
    /// A node that asks to be a member.
    Joining(Box<JoiningPeer>),
}

/// Reason why a connection did not become a link.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the request is not for a link")]
    NotAPeer,
    #[error("the store is not open yet")]
    Starting,
    #[error("the handshake took too long")]
    TimedOut,
}

/// Whether a connection with these first bytes is a peer's.
pub(crate) fn is_peer(begin: &[u8]) -> bool {
    begin.starts_with(REQUEST_BEGIN)
}

/// Runs the handshake on a connection of the listener for peers. Returns the authenticated dialer.
pub(crate) async fn serve(
    socket: std::net::TcpStream,
    links: &PeerLinks,
    local: &OnceLock<Arc<Local>>,
) -> Option<Accepted> {
    match TcpStream::from_std(socket).and_then(|socket| socket.set_nodelay(true).map(|()| socket)) {
        Ok(socket) => run_handshake(socket, Vec::new(), links, local).await,
        Err(error) => log_lost(&error),
    }
}

/// Runs the handshake on a connection over which the bytes `received` have arrived. `local` is set
/// when the store is open. Returns the authenticated dialer.
pub(crate) async fn run_handshake(
    socket: TcpStream,
    received: Vec<u8>,
    links: &PeerLinks,
    local: &OnceLock<Arc<Local>>,
) -> Option<Accepted> {
    let from =
        socket.peer_addr().map_or_else(|_| "an unknown address".to_owned(), |from| from.ip().to_string());
    let mut exchange = HandshakeExchange { socket, waiting: received };
    let read =
        links.handshakes.while_reading_head(tokio::time::timeout(HEAD_TIME, exchange.take_head())).await;
    let Some(Ok(Ok(head))) = read else {
        tracing::debug!(peer = from, "no link: the request did not arrive in time, or too many others did");
        return None;
    };
    let head = String::from_utf8_lossy(&head);
    let dialer = local.get().and_then(|local| known_dialer(&head, links, local));
    let Some(_permit) = links.handshakes.admit(dialer) else {
        tracing::debug!(peer = from, "too many handshakes: the connection is dropped");
        return None;
    };
    let joins = is_peer(head.as_bytes()) && asks_for(&head, upgrade::JOIN_PROTOCOL);
    let met = tokio::time::timeout(HANDSHAKE_TIME, async {
        Ok::<_, AcceptError>(match joins {
            true => Met::Joining(join_accept::exchange_hellos(&mut exchange, local).await?),
            false => Met::Peer(exchange_hellos(&mut exchange, &head, local).await?),
        })
    });
    match met.await.unwrap_or(Err(AcceptError::TimedOut)) {
        Ok(Met::Peer((link, hello, acceptor))) => match exchange.socket.into_std() {
            Ok(socket) => Some(Accepted::Peer(Box::new(Arrival { link, hello, socket, acceptor }))),
            Err(error) => log_lost(&error),
        },
        Ok(Met::Joining(met)) => Some(Accepted::Joining(Box::new(JoiningPeer::new(exchange, met)))),
        Err(error) => {
            warn_of_failure(links, &from, &error);
            if let Some(last_words) = last_words(&error, &http_date(links.clock.now().wall)) {
                close_with(exchange.socket, &last_words).await;
            }
            None
        }
    }
}

/// Result of the handshake with a dialer.
enum Met {
    Peer((LinkId, PeerHello, Acceptor)),
    Joining((JoinAcceptor, JoiningNode)),
}

fn log_lost(error: &io::Error) -> Option<Accepted> {
    tracing::debug!(%error, "the connection of a peer was lost");
    None
}

/// Runs the handshake from the request with this head to the peer's authentication. Returns the
/// number of the new link.
async fn exchange_hellos(
    exchange: &mut HandshakeExchange,
    head: &str,
    local: &OnceLock<Arc<Local>>,
) -> Result<(LinkId, PeerHello, Acceptor), AcceptError> {
    if !is_peer(head.as_bytes()) || !asks_for(head, upgrade::PROTOCOL) {
        return Err(AcceptError::NotAPeer);
    }
    let local = local.get().ok_or(AcceptError::Starting)?;
    exchange.send(&upgrade::response()).await?;
    let mut acceptor = Acceptor::new(local.introduce(Requester::Node), super::nonce());
    loop {
        match acceptor.handle(&std::mem::take(&mut exchange.waiting))? {
            AcceptStep::NeedMore => exchange.receive().await?,
            AcceptStep::Send(bytes) => exchange.send(&bytes).await?,
            AcceptStep::Authenticated(hello) => return Ok((local.next_link(), hello, acceptor)),
        }
    }
}

/// Whether the head of a request asks for an upgrade to this protocol.
fn asks_for(head: &str, protocol: &str) -> bool {
    fields(head, "upgrade").any(|value| value.eq_ignore_ascii_case(protocol))
}

/// The peer that the early proof in the head of a request identifies.
fn known_dialer(head: &str, links: &PeerLinks, local: &Local) -> Option<NodeIndex> {
    local.check_early_proof(fields(head, upgrade::PROOF_FIELD).next()?, links.clock.now().wall)
}

/// Values of the header fields with this name.
fn fields<'a>(head: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn warn_of_failure(links: &PeerLinks, from: &str, error: &AcceptError) {
    let is_mismatch = match error {
        // The peer is admitted in a moment.
        AcceptError::Handshake(HandshakeError::NotYetMember { .. }) => false,
        AcceptError::Handshake(_) => true,
        AcceptError::Io(_) | AcceptError::NotAPeer | AcceptError::Starting | AcceptError::TimedOut => false,
    };
    if !is_mismatch {
        return tracing::debug!(peer = from, %error, "no link");
    }
    let reason = error.to_string();
    if links.warnings.count_refused(links.clock.now().mono, from, &reason) {
        tracing::warn!(peer = from, reason, "a peer was refused");
    }
}

fn last_words(error: &AcceptError, date: &HttpDate) -> Option<Vec<u8>> {
    match error {
        AcceptError::Io(_) | AcceptError::TimedOut => None,
        AcceptError::Handshake(error) => error.refusal_bytes(),
        AcceptError::NotAPeer => {
            let detail = "This path and this address are for nodes, which speak veche's own protocol over them. \
                          Use /v0/entity or /v0/status at the address for clients.";
            Some(Problem::bad_request(detail).to_http1_bytes(date).to_vec())
        }
        AcceptError::Starting => Some(Problem::starting().to_http1_bytes(date).to_vec()),
    }
}

/// Sends the last bytes and gives the other side time to read them.
pub(super) async fn close_with(socket: TcpStream, last_words: &[u8]) {
    let mut exchange = HandshakeExchange { socket, waiting: Vec::new() };
    let parted = async {
        exchange.send(last_words).await?;
        tokio::io::AsyncWriteExt::shutdown(&mut exchange.socket).await?;
        socket::linger(&mut exchange.socket).await
    };
    // A peer that does not read in time is not told.
    let _ = tokio::time::timeout(REFUSAL_TIME, parted).await;
}

impl Arrival {
    /// The layout record and the address of the peer.
    pub(crate) const fn statement(&self) -> Option<&LayoutStatement> {
        self.acceptor.statement()
    }

    /// Admits the peer.
    pub(crate) fn admit(self) -> Admitted {
        let Self { link, hello, socket, acceptor } = self;
        let version = acceptor.version();
        let (welcome, rest) = acceptor.admit();
        let mut inbox = Inbox::new(InboxLimits::default());
        inbox.feed(&rest);
        Admitted { link, node: hello.node, version, socket, inbox, welcome }
    }

    /// Refuses the peer for the moment. The calling thread must have a runtime.
    pub(crate) fn refuse(self) {
        self.refuse_with(refusal::NOT_NOW);
    }

    /// Refuses the peer because another process answers at the address of the node as which it
    /// identifies. The calling thread must have a runtime.
    pub(crate) fn refuse_copy(self, links: &PeerLinks, peer: &str) {
        let reason = "a second process calls itself this node, while the one at its address answers";
        if links.warnings.count_refused(links.clock.now().mono, peer, reason) {
            tracing::warn!(peer, reason, "a peer was refused");
        }
        self.refuse_with(refusal::COPY);
    }

    /// Version of the protocol that the link would speak.
    pub(crate) const fn version(&self) -> u8 {
        self.acceptor.version()
    }

    /// Refuses the peer because the layout record of this node rules out the version of the link.
    /// The calling thread must have a runtime.
    pub(crate) fn refuse_version(self, links: &PeerLinks, peer: &str, adopted: &AdoptedLayout) {
        let reason = links.refuse_version(peer, self.version(), adopted);
        self.refuse_with(&reason);
    }

    fn refuse_with(self, reason: &str) {
        let Self { socket, acceptor, .. } = self;
        let last_words = acceptor.refuse(reason);
        if let Ok(socket) = TcpStream::from_std(socket) {
            tokio::task::spawn_local(async move { close_with(socket, &last_words).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_peers_are_recognised() {
        let request = String::from_utf8(upgrade::request("a:1", "1-2-3")).unwrap();
        assert!(is_peer(request.as_bytes()) && asks_for(&request, upgrade::PROTOCOL));
        assert!(!asks_for(&request, upgrade::JOIN_PROTOCOL));
        let joins = String::from_utf8(upgrade::join_request("a:1")).unwrap();
        assert!(is_peer(joins.as_bytes()) && asks_for(&joins, upgrade::JOIN_PROTOCOL));
        assert_eq!(fields(&request, upgrade::PROOF_FIELD).collect::<Vec<_>>(), ["1-2-3"]);
        let plain = "GET /v0/peer HTTP/1.1\r\nHost: a:1\r\n\r\n";
        assert!(is_peer(plain.as_bytes()) && !asks_for(plain, upgrade::PROTOCOL));
        for other in [&b"GET /v0/peers "[..], b"GET /v0/peer", b"PUT /v0/peer ", b""] {
            assert!(!is_peer(other), "{other:?}");
        }
    }
}
