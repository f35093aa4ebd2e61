//! Processes with timeouts, and simple requests to them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) type ProcessResult<T = ()> = Result<T, String>;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that is killed when this is dropped.
pub(crate) struct ServiceProcess(Child);

impl ServiceProcess {
    pub(crate) fn start(command: &mut Command) -> ProcessResult<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        child.map(Self).map_err(|error| format!("cannot start {command:?}: {error}"))
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end, and returns its standard output.
///
/// # Errors
/// A message, if the command cannot be started, fails, or takes longer than `timeout`.
pub(crate) fn output_of(command: &mut Command, timeout: Duration) -> ProcessResult<String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child =
        child.map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
    let stdout = read_aside(child.stdout.take().expect("piped"));
    let stderr = read_aside(child.stderr.take().expect("piped"));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("it cannot be waited for: {error}"))? {
            break Some(status);
        }
        if begun.elapsed() > timeout {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    match status {
        Some(status) if status.success() => Ok(stdout.join().unwrap_or_default()),
        Some(status) => {
            let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
            Err(format!("{status}\n{}{}", tail(&stdout), tail(&stderr)))
        }
        None => Err(format!("it did not end within {} s", timeout.as_secs())),
    }
}

fn read_aside(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The last lines of a program's output.
fn tail(text: &str) -> String {
    const LINES_MAX: usize = 25;
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_MAX)..].iter().map(|line| format!("{line}\n")).collect()
}

/// Waits until `happens` returns true, for at most `timeout`.
pub(crate) fn until(what: &str, timeout: Duration, mut happens: impl FnMut() -> bool) -> ProcessResult {
    let begun = Instant::now();
    while !happens() {
        if begun.elapsed() > timeout {
            return Err(format!("this never came true: {what}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns a loopback address whose port is free at this moment.
pub(crate) fn free_address() -> ProcessResult<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_err(|error| format!("no port is free: {error}"))
}

/// The status code of a `GET`.
pub(crate) fn status_of(address: SocketAddr, path: &str) -> Option<u16> {
    exchange(address, path)?.split(' ').nth(1)?.parse().ok()
}

/// The body of a `GET`.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<String> {
    exchange(address, path)?.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

fn exchange(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, REQUEST_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
