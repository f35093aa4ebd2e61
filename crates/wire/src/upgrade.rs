//! The HTTP upgrade at the start of a link.
//!
//! Nodes dial each other at the address that serves users. The dialer requests [`PATH`] with
//! `Upgrade: veche`. After the head of the `101` response, the connection carries the handshake.

/// Path of the upgrade request.
pub const PATH: &str = "/v0/peer";

/// Name of the protocol in the `Upgrade` header.
pub const PROTOCOL: &str = "veche";

/// Name of the protocol in the `Upgrade` header of a node that asks to be a member.
pub const JOIN_PROTOCOL: &str = "veche-join";

/// Header of the request with the dialer's early proof
/// ([`Secret::early_proof`](crate::handshake::Secret::early_proof)). Requests of earlier releases
/// do not have it.
pub const PROOF_FIELD: &str = "Veche-Proof";

/// Maximum length of the response head in bytes.
pub const RESPONSE_BYTES_MAX: usize = 4 << 10;

/// Maximum number of header fields in the response.
const RESPONSE_FIELDS_MAX: usize = 32;

/// State of parsing the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeResponse {
    /// The response head is incomplete.
    NeedMore,
    /// The connection is upgraded.
    Upgraded {
        /// Length of the response in bytes. The bytes behind it belong to the handshake.
        len: usize,
    },
}

/// Reason why a connection was not upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// The response is not a `101`.
    #[error("the peer answers {PATH} with {status}: check that a veche node of this release listens there")]
    Status {
        /// Status of the response.
        status: u16,
    },
    /// The `101` response names another protocol.
    #[error("the peer upgrades to another protocol than {PROTOCOL}: check that a veche node listens there")]
    Protocol,
    /// The response is not HTTP, or its head is longer than [`RESPONSE_BYTES_MAX`].
    #[error("the peer does not answer in HTTP: check that a veche node listens there")]
    Malformed,
}

/// The dialer's request to the node at `host`, a host with a port, with its early `proof`.
///
/// # Panics
/// If `host` or `proof` contains characters that would change the request.
pub fn request(host: &str, proof: &str) -> Vec<u8> {
    assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "no host is called {host:?}");
    assert!(proof.bytes().all(|byte| byte.is_ascii_graphic()), "no proof is {proof:?}");
    format!(
        "GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{PROOF_FIELD}: {proof}\r\n\r\n"
    )
    .into_bytes()
}

/// The request of a node that asks to be a member, to the node at `host`, a host with a port.
///
/// # Panics
/// If `host` contains characters that would change the request.
pub fn join_request(host: &str) -> Vec<u8> {
    assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "no host is called {host:?}");
    format!("GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {JOIN_PROTOCOL}\r\n\r\n")
        .into_bytes()
}

/// The acceptor's response.
pub fn response() -> Vec<u8> {
    response_to(PROTOCOL)
}

/// The response to a node that asks to be a member.
pub fn join_response() -> Vec<u8> {
    response_to(JOIN_PROTOCOL)
}

fn response_to(protocol: &str) -> Vec<u8> {
    format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n")
        .into_bytes()
}

/// Parses the response at the start of `bytes`.
///
/// # Errors
/// [`UpgradeError`].
pub fn parse_response(bytes: &[u8]) -> Result<UpgradeResponse, UpgradeError> {
    parse_response_of(PROTOCOL, bytes)
}

/// Parses the response to a node that asks to be a member.
///
/// # Errors
/// [`UpgradeError`].
pub fn parse_join_response(bytes: &[u8]) -> Result<UpgradeResponse, UpgradeError> {
    parse_response_of(JOIN_PROTOCOL, bytes)
}

fn parse_response_of(protocol: &str, bytes: &[u8]) -> Result<UpgradeResponse, UpgradeError> {
    let mut fields = [httparse::EMPTY_HEADER; RESPONSE_FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let head = &bytes[..bytes.len().min(RESPONSE_BYTES_MAX)];
    let len = match response.parse(head).map_err(|_| UpgradeError::Malformed)? {
        httparse::Status::Complete(len) => len,
        httparse::Status::Partial if bytes.len() < RESPONSE_BYTES_MAX => {
            return Ok(UpgradeResponse::NeedMore);
        }
        httparse::Status::Partial => return Err(UpgradeError::Malformed),
    };
    match response.code {
        Some(101) if names(protocol, response.headers) => Ok(UpgradeResponse::Upgraded { len }),
        Some(101) => Err(UpgradeError::Protocol),
        Some(status) => Err(UpgradeError::Status { status }),
        None => Err(UpgradeError::Malformed),
    }
}

fn names(protocol: &str, fields: &[httparse::Header<'_>]) -> bool {
    let is_it = |field: &httparse::Header<'_>| {
        field.name.eq_ignore_ascii_case("upgrade") && field.value.eq_ignore_ascii_case(protocol.as_bytes())
    };
    fields.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_parsed_as_soon_as_it_is_complete_and_no_further() {
        let mut bytes = response();
        let len = bytes.len();
        bytes.extend_from_slice(b"vHsk");
        for end in 0..len {
            assert_eq!(parse_response(&bytes[..end]), Ok(UpgradeResponse::NeedMore), "{end}");
        }
        for end in len..=bytes.len() {
            assert_eq!(parse_response(&bytes[..end]), Ok(UpgradeResponse::Upgraded { len }));
        }
    }

    #[test]
    fn another_response_is_reported() {
        let not_found = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(parse_response(not_found), Err(UpgradeError::Status { status: 404 }));
        let websocket = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(parse_response(websocket), Err(UpgradeError::Protocol));
        assert_eq!(parse_response(b"SSH-2.0-OpenSSH_9.2\r\n"), Err(UpgradeError::Malformed));
        let endless = [b"HTTP/1.1 101 ".as_slice(), &[b'a'; RESPONSE_BYTES_MAX]].concat();
        assert_eq!(parse_response(&endless), Err(UpgradeError::Malformed));
    }

    #[test]
    fn the_request_is_http() {
        let bytes = request("10.0.0.1:7700", "1-2-3");
        let mut fields = [httparse::EMPTY_HEADER; 4];
        let mut parsed = httparse::Request::new(&mut fields);
        assert_eq!(parsed.parse(&bytes), Ok(httparse::Status::Complete(bytes.len())));
        assert_eq!((parsed.method, parsed.path), (Some("GET"), Some(PATH)));
    }
}
