//! A raw HTTP client, which sends the bytes of the test unchanged.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

/// A node that says nothing for so long has failed the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Asserts a problem document whose detail holds `says`.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, says: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let text = self.text();
        assert!(text.contains("\"detail\":\"") && text.contains(says), "{says:?} is not in {text}");
        assert!(text.contains(&format!("\"status\":{status}")), "{text}");
    }
}

/// A connection.
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::try_open(address).unwrap_or_else(|error| panic!("no connection to {address}: {error}"))
    }

    pub(crate) fn try_open(address: SocketAddr) -> std::io::Result<Self> {
        Self::try_open_with(address, PATIENCE)
    }

    /// A connection to a node that may be silent: [`Connection::try_exchange`] gives it up after
    /// `patience`.
    pub(crate) fn try_open_with(address: SocketAddr, patience: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// A connection from another of this machine's addresses.
    pub(crate) fn try_open_from(from: Ipv4Addr, address: SocketAddr) -> std::io::Result<Self> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddrV4::new(from, 0))?;
        connect(&socket, &address)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Another hold on the same socket, to send by while this one reads.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()?, unread: Vec::new() })
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the node takes the request");
    }

    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Says that nothing more is sent.
    pub(crate) fn finish_sending(&self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is open");
    }

    /// The next response, to a request that is not a `HEAD`.
    #[track_caller]
    pub(crate) fn response(&mut self) -> Response {
        self.try_response(false).expect("a response, not the end of the connection")
    }

    /// The next response to a `HEAD`.
    #[track_caller]
    pub(crate) fn head_response(&mut self) -> Response {
        self.try_response(true).expect("a response, not the end of the connection")
    }

    /// The next response; `None` when the connection ended instead.
    pub(crate) fn try_response(&mut self, is_head: bool) -> Option<Response> {
        match self.next_response(is_head) {
            Ok(response) => Some(response),
            Err(error) if is_end(&error) => None,
            Err(error) => panic!("the node is silent: {error}"),
        }
    }

    /// Sends, and waits for the response; an error when there is none.
    pub(crate) fn try_exchange(&mut self, request: impl AsRef<[u8]>) -> std::io::Result<Response> {
        let is_head = request.as_ref().starts_with(b"HEAD ");
        self.try_send(request)?;
        self.next_response(is_head)
    }

    /// The head of the next response, whose body is then read chunk by chunk.
    #[track_caller]
    pub(crate) fn head(&mut self) -> Response {
        self.try_head().expect("a response, not the end of the connection")
    }

    /// As [`Connection::head`]; an error when there is none.
    pub(crate) fn try_head(&mut self) -> std::io::Result<Response> {
        self.next_head()
    }

    /// Reads one byte. `false`: the connection has ended.
    pub(crate) fn read_byte(&mut self) -> bool {
        self.stream.read_exact(&mut [0; 1]).is_ok()
    }

    /// The next chunk of the body; none at its end.
    ///
    /// # Errors
    /// The connection ends before the body does.
    #[track_caller]
    pub(crate) fn chunk(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let line_len = loop {
            if let Some(at) = self.unread.windows(2).position(|bytes| bytes == b"\r\n") {
                break at + 2;
            }
            self.fill()?;
        };
        let line = std::str::from_utf8(&self.unread[..line_len - 2]).expect("sizes are ASCII");
        let len =
            usize::from_str_radix(line, 16).unwrap_or_else(|_| panic!("{line:?} is no size of a chunk"));
        while self.unread.len() < line_len + len + 2 {
            self.fill()?;
        }
        let chunk = self.unread[line_len..line_len + len].to_vec();
        assert_eq!(&self.unread[line_len + len..line_len + len + 2], b"\r\n", "a chunk ends with its line");
        self.unread.drain(..line_len + len + 2);
        Ok((len > 0).then_some(chunk))
    }

    /// All chunks of a body that is whole.
    #[track_caller]
    pub(crate) fn chunks(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.chunk().expect("the body is whole")).collect()
    }

    /// Everything up to the end of the connection, and how it ended.
    pub(crate) fn rest(mut self) -> (Vec<u8>, ErrorKind) {
        loop {
            if let Err(error) = self.fill() {
                return (self.unread, error.kind());
            }
        }
    }

    fn next_response(&mut self, is_head: bool) -> std::io::Result<Response> {
        let mut response = self.next_head()?;
        let has_body = !is_head && response.status >= 200 && response.status != 204 && response.status != 304;
        let announced = response.header("content-length").map(|len| len.parse().expect("a length"));
        let body_len: usize = if has_body { announced.expect("all answers have a length") } else { 0 };
        while self.unread.len() < body_len {
            self.fill()?;
        }
        response.body = self.unread.drain(..body_len).collect();
        Ok(response)
    }

    fn next_head(&mut self) -> std::io::Result<Response> {
        let head_len = loop {
            if let Some(at) = self.unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let head = String::from_utf8(self.unread[..head_len].to_vec()).expect("heads are ASCII");
        let mut lines = head.lines();
        let mut status_line = lines.next().expect("a status line").splitn(3, ' ');
        assert!(status_line.next().expect("a version").starts_with("HTTP/1."));
        let status = status_line.next().and_then(|code| code.parse().ok()).expect("a status");
        let reason = status_line.next().unwrap_or_default().to_owned();
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        self.unread.drain(..head_len);
        Ok(Response { status, reason, headers, body: Vec::new() })
    }

    /// Sends, and waits for the response.
    #[track_caller]
    pub(crate) fn exchange(&mut self, request: impl AsRef<[u8]>) -> Response {
        let is_head = request.as_ref().starts_with(b"HEAD ");
        self.send(request);
        self.try_response(is_head).expect("a response, not the end of the connection")
    }

    /// Asserts that the node closes the connection without another byte.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        assert!(self.unread.is_empty(), "unread: {:?}", String::from_utf8_lossy(&self.unread));
        let ended = self.fill().is_err_and(|error| is_end(&error));
        assert!(ended, "unread: {:?}", String::from_utf8_lossy(&self.unread));
    }

    /// Reads more; an error at the end.
    fn fill(&mut self) -> std::io::Result<()> {
        let mut bytes = [0; 64 << 10];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    self.unread.extend_from_slice(&bytes[..len]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the other side has closed or reset the connection.
fn is_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
}

/// One request on a connection of its own.
#[track_caller]
pub(crate) fn exchange(address: SocketAddr, request: impl AsRef<[u8]>) -> Response {
    Connection::open(address).exchange(request)
}

/// A request without a body.
pub(crate) fn bare(method: &str, target: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: veche\r\n\r\n")
}

/// A `PUT` of `value` under `id`, which may be followed by more parameters.
pub(crate) fn put(id: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let head =
        format!("PUT /v0/entity?id={id} HTTP/1.1\r\nHost: veche\r\nContent-Length: {}\r\n\r\n", value.len());
    [head.as_bytes(), value].concat()
}

/// A `GET` of `id`.
pub(crate) fn get(id: &str) -> String {
    bare("GET", &format!("/v0/entity?id={id}"))
}

/// A `DELETE` of `id`.
pub(crate) fn delete(id: &str) -> String {
    bare("DELETE", &format!("/v0/entity?id={id}"))
}
