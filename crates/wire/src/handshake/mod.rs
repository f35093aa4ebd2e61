//! The handshake at the start of a link, which authenticates both nodes.
//!
//! **Promise.** After a successful handshake each side knows these facts about the other:
//!
//! - It holds the same secret.
//! - It belongs to the same cluster, and holds no other layout record of the same epoch. A peer of
//!   a version before 4, which has no records, has the same nodes, partitions and hash.
//! - It speaks a common version of the protocol.
//! - It is the expected node. If the layout record names the id of that node, it has this id, or it
//!   is reached at the address of the record: a node that has lost its disk has another id.
//! - Its hello was made for this link: it was neither replayed from an earlier one nor altered.
//!
//! After a failed handshake both sides can report the reason in one sentence.
//!
//! **Mechanism.** Challenge and response with a shared key. Each side proves the hellos of both:
//!
//! ```text
//! dialer                                                    acceptor
//!   Hello { versions, node, tag, .., nonce }         ->
//!                                                    <-      Hello { its own fields }, Proof
//!   Statement, Proof                                 ->
//!                                                    <-      Welcome
//! ```
//!
//! Since version 4 each side states its layout record and the URL at which it is reached: the
//! acceptor in its hello, the dialer with its proof. The dialer's hello is sent before the common
//! version is known, so it has the same form in all versions. The dialer compares the records, and
//! both sides compare the slot and the identity of the other one with their record. A refused
//! acceptor is told the reason by the dialer. A node whose record is not of epoch 1 speaks no
//! version before 4, and none before 5 if a partition has changed:
//! [`ProtocolVersions::with_record`].
//!
//! A node that the record of the other side refuses for ever is told so, whatever its own record
//! is: it was removed or replaced, or is declared dead. An acceptor proves that refusal, because
//! the dialer ends for it: `removal`.
//!
//! A dialer in a slot without a member is refused for good, unless its record is newer than that of
//! the acceptor. Then it is refused until the acceptor has learned that record from other members.
//!
//! A proof is an HMAC-SHA256 with the secret as its key, over a label of the direction, the bytes
//! of both hellos, and the dialer's statement. Each hello has 32 random bytes, so no proof is valid
//! on another link. The labels differ, so a proof cannot be reflected. Either side may send
//! `Refused` with a reason in place of any message. The dialer verifies the acceptor's proof before
//! it sends its own. Between the dialer's proof and `Welcome`, the acceptor's
//! [`Node`](cluster::Node) decides whether to admit the link.
//!
//! A node that asks to be a member has a handshake of its own: `join`.
//!
//! An empty secret means that there is none: it protects nothing.
//!
//! **Caveats.** Any process that dials receives a proof over a hello of its own choice, and can
//! test guesses of the secret against it offline: the secret must be long. `Welcome` and `Refused`
//! are not authenticated, but for a refusal for ever: an attacker who can alter bytes can end a
//! link anyway.

mod acceptor;
mod dialer;
mod digest;
mod early;
mod error;
mod framing;
mod hello;
mod join;
mod layout;
pub mod refusal;
mod removal;
mod secret;

pub use acceptor::{AcceptStep, Acceptor};
pub use dialer::{DialStep, Dialer};
pub use digest::ClusterDigest;
pub use error::{HandshakeError, ProtocolVersions};
pub use framing::HANDSHAKE_BYTES_MAX;
pub use join::{JoinAcceptStep, JoinAcceptor, JoinDialer, JoinStep};
pub use layout::{LayoutStatement, NamedMember};
pub use removal::RemovalProof;
pub use secret::Secret;

use cluster::{NodeSet, PeerHello};
use std::sync::Arc;
use stdx::NodeTag;

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 32;

/// State of this node for a handshake.
#[derive(Clone, Debug)]
pub struct HandshakeConfig {
    /// Hello of this node. An acceptor always sends `Node` as the requester.
    pub hello: PeerHello,
    /// Digest of the members of this node's layout record, for peers of versions before 4.
    pub digest: ClusterDigest,
    /// The layout record of this node, and its address.
    pub layout: LayoutStatement,
    /// The slots of the members of the record.
    pub members: NodeSet,
    /// The members whose node ids the record names.
    pub named: Arc<[NamedMember]>,
    /// The ids of the nodes that the record refuses for ever.
    pub removed: Arc<[NodeTag]>,
    /// The cluster's secret.
    pub secret: Secret,
    /// Versions of the protocol that this node speaks: [`ProtocolVersions::OURS`], or fewer.
    pub versions: ProtocolVersions,
}
