//! How a connection stops being HTTP.
//!
//! Nodes dial each other at the address that serves users. The dialer asks for [`PATH`] with
//! `Upgrade: veche`; behind the head of a `101` answer, the connection carries the handshake.

/// What is asked for.
pub const PATH: &str = "/v0/peer";

/// The name of the protocol, in the header `Upgrade`.
pub const PROTOCOL: &str = "veche";

/// The header of a request that has the dialer's early proof ([`Secret::early_proof`](crate::handshake::Secret::early_proof)).
/// A request of an earlier release has none.
pub const PROOF_FIELD: &str = "Veche-Proof";

/// The longest head of an answer, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 4 << 10;

/// Fields of an answer's head, at most.
const RESPONSE_FIELDS_MAX: usize = 32;

/// What an answer says so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// It has not come whole yet.
    NeedMore,
    /// The connection is upgraded.
    Upgraded {
        /// The answer's length, in bytes: what comes behind belongs to the handshake.
        len: usize,
    },
}

/// Why a connection is not upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// The answer is not a `101`.
    #[error("the peer answers {PATH} with {status}: see whether a veche node of this release listens there")]
    Status {
        /// What it is.
        status: u16,
    },
    /// It is a `101` to another protocol.
    #[error("the peer upgrades to another protocol than {PROTOCOL}: see whether a veche node listens there")]
    Protocol,
    /// It is not HTTP, or its head is longer than [`RESPONSE_BYTES_MAX`].
    #[error("the peer does not answer in HTTP: see whether a veche node listens there")]
    Malformed,
}

/// The dialer's request to the node at `host`, a host with a port, with its early `proof`.
///
/// # Panics
/// When `host` or `proof` has characters that would change the request.
pub fn request(host: &str, proof: &str) -> Vec<u8> {
    assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "no host is called {host:?}");
    assert!(proof.bytes().all(|byte| byte.is_ascii_graphic()), "no proof is {proof:?}");
    format!(
        "GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{PROOF_FIELD}: {proof}\r\n\r\n"
    )
    .into_bytes()
}

/// The acceptor's answer.
pub fn response() -> Vec<u8> {
    format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n")
        .into_bytes()
}

/// What the answer that `bytes` begin with says.
///
/// # Errors
/// [`UpgradeError`].
pub fn parse_response(bytes: &[u8]) -> Result<Response, UpgradeError> {
    let mut fields = [httparse::EMPTY_HEADER; RESPONSE_FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let head = &bytes[..bytes.len().min(RESPONSE_BYTES_MAX)];
    let len = match response.parse(head).map_err(|_| UpgradeError::Malformed)? {
        httparse::Status::Complete(len) => len,
        httparse::Status::Partial if bytes.len() < RESPONSE_BYTES_MAX => return Ok(Response::NeedMore),
        httparse::Status::Partial => return Err(UpgradeError::Malformed),
    };
    match response.code {
        Some(101) if names_protocol(response.headers) => Ok(Response::Upgraded { len }),
        Some(101) => Err(UpgradeError::Protocol),
        Some(status) => Err(UpgradeError::Status { status }),
        None => Err(UpgradeError::Malformed),
    }
}

fn names_protocol(fields: &[httparse::Header<'_>]) -> bool {
    let is_it = |field: &httparse::Header<'_>| {
        field.name.eq_ignore_ascii_case("upgrade") && field.value.eq_ignore_ascii_case(PROTOCOL.as_bytes())
    };
    fields.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_soon_as_it_is_whole_and_no_further() {
        let mut bytes = response();
        let len = bytes.len();
        bytes.extend_from_slice(b"vHsk");
        for end in 0..len {
            assert_eq!(parse_response(&bytes[..end]), Ok(Response::NeedMore), "{end}");
        }
        for end in len..=bytes.len() {
            assert_eq!(parse_response(&bytes[..end]), Ok(Response::Upgraded { len }));
        }
    }

    #[test]
    fn another_answer_says_what_it_is() {
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
