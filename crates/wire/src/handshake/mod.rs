//! How two nodes begin a link.
//!
//! **Promise.** When a handshake ends well, each side knows that the other holds the same secret, belongs to a
//! cluster of the same nodes, partitions and hash, speaks a common version of the protocol, and is the node that
//! it should be; and that what the other said of itself was said for this link, neither repeated from an earlier
//! one nor altered. When it ends otherwise, both sides can say in one sentence why.
//!
//! **Mechanism.** Challenge and response with a shared key, each side's proof over the words of both:
//!
//! ```text
//! dialer                                                    acceptor
//!   Hello { versions, node, tag, .., nonce }         ->
//!                                                    <-      Hello { the same of itself }, Proof
//!   Proof                                            ->
//!                                                    <-      Welcome
//! ```
//!
//! A proof is the HMAC-SHA256, under the secret, of a label of its direction and the bytes of both hellos. As each
//! hello has 32 random bytes, no proof holds for another link; as the labels differ, none can be sent back. Instead
//! of any message, either side may send `Refused` with a reason. The dialer has the acceptor's proof before it sends
//! its own. Between its proof and `Welcome`, the acceptor's [`Node`](cluster::Node) decides whether to let the link
//! in.
//!
//! No secret is an empty one: everybody knows it.
//!
//! **Caveats.** Whoever dials gets a proof over words of his own choosing, and can try out secrets against it at
//! leisure: a secret has to be long. `Welcome` and `Refused` are not proved: who can alter bytes can end a link anyway.

mod acceptor;
mod dialer;
mod digest;
mod early;
mod error;
mod hello;
mod parcel;
mod secret;

pub use acceptor::{AcceptStep, Acceptor};
pub use dialer::{DialStep, Dialer};
pub use digest::ClusterDigest;
pub use error::{HandshakeError, ProtocolVersions};
pub use parcel::HANDSHAKE_BYTES_MAX;
pub use secret::Secret;

use cluster::PeerHello;

/// Length of a nonce, in bytes.
pub const NONCE_LEN: usize = 32;

/// What a node says of itself, and what it expects the other to know.
#[derive(Clone, Debug)]
pub struct Local {
    /// What it says of itself. An acceptor is always a `Node`, whatever stands here.
    pub hello: PeerHello,
    /// Which cluster it belongs to.
    pub digest: ClusterDigest,
    /// What only nodes of the cluster know.
    pub secret: Secret,
    /// Versions of the protocol that it speaks: [`ProtocolVersions::OURS`], or fewer.
    pub versions: ProtocolVersions,
}
