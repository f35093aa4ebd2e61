//! The notification protocol of systemd (`Type=notify`, sd_notify(3)), which tells the service
//! manager when the node serves and when it begins to stop.
//!
//! **Promise.** With `NOTIFY_SOCKET` in the environment, `READY=1` is sent when the node serves
//! users, and `STOPPING=1` when it begins to drain. Without the variable nothing is sent.
//!
//! **Mechanism.** Each notification is one datagram to a Unix socket. The variable names its path
//! or, with a leading `@`, its name in Linux's abstract namespace.
//!
//! **Caveats.** A failed notification is logged, and the node continues. A service manager that
//! waits for it stops the node after its own timeout. Addresses of the form `vsock:...`, which
//! virtual machines use, are not supported.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service manager, if the environment names one.
pub(crate) struct ServiceManager {
    socket: Option<OsString>,
}

impl ServiceManager {
    /// The manager that the environment names.
    pub(crate) fn from_environment() -> Self {
        Self { socket: std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) }
    }

    /// Notifies that the node has recovered and serves users.
    pub(crate) fn ready(&self) {
        self.notify("READY=1\nSTATUS=serving\n");
    }

    /// Notifies that the node drains.
    pub(crate) fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=draining\n");
    }

    fn notify(&self, state: &str) {
        let Some(name) = &self.socket else { return };
        if let Err(error) = send(name, state.as_bytes()) {
            let socket = name.to_string_lossy();
            tracing::warn!(%error, %socket, "cannot notify the service manager of the state of the node");
        }
    }
}

fn send(name: &OsStr, state: &[u8]) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager whose queue is full must not delay the node.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state, &address).map(drop)
}
