//! `veche status`: ask a node how it is.

use crate::node_url::NodeUrl;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// To connect, and for each read.
const PATIENCE: Duration = Duration::from_secs(5);
/// A longer answer is not a status.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Ask a node how it is. Exit code 0: it serves.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Address of the node
    #[arg(long, env = "VECHE_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Print the whole document that the node answers with
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let url: NodeUrl = arguments.url.parse().map_err(|error| format!("--url: {error}"))?;
    let (status_code, body) = fetch(&url).map_err(|error| format!("{url} does not answer: {error}"))?;
    let status: Value =
        serde_json::from_str(&body).map_err(|_| format!("{url} does not answer like a veche node"))?;
    if arguments.json {
        println!("{body}");
    } else {
        println!("{}", summary(&url, &status));
    }
    match (status_code, status["state"].as_str()) {
        (200, _) => Ok(()),
        (_, Some(state)) => Err(format!("{url} does not serve: it is {state}")),
        (code, None) => Err(format!("{url} does not serve: it answers {code}")),
    }
}

fn summary(url: &NodeUrl, status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut lines = format!(
        "{url}: {}, version {}, up {} s",
        text(&status["state"]),
        text(&status["version"]),
        status["uptime_ms"].as_u64().unwrap_or(0) / 1_000
    );
    for warning in status["warnings"].as_array().into_iter().flatten() {
        lines.push_str("\nwarning: ");
        lines.push_str(warning.as_str().unwrap_or("?"));
    }
    lines
}

/// The status code and the body of `GET /v0/status`.
fn fetch(url: &NodeUrl) -> Result<(u16, String), String> {
    let text = url.to_string();
    let host = text.strip_prefix("http://").expect("the form of every node's address");
    let address = host.to_socket_addrs().map_err(|error| error.to_string())?.next();
    let address = address.ok_or("its name has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| error.to_string())?;
    let answer = converse(&mut stream, host).map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("it does not speak HTTP")?;
    Ok((code, body.to_owned()))
}

fn converse(stream: &mut TcpStream, host: &str) -> std::io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /v0/status HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}
