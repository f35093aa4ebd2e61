//! The server process: listener, I/O threads, connections, startup and shutdown.
//!
//! **Promise.** This crate only moves bytes and measures time. The `api` crate decides the meaning
//! of a request, `cluster` decides how it is executed, and `store` makes it durable. Every queue
//! and buffer here is bounded (see [`Limits`]). Work that exceeds a bound is refused at once with
//! `503`.
//!
//! **Mechanism.** Each I/O thread has its own runtime; by default there is one thread per core. A
//! connection, its requests and its coordinator stay on one thread and share only the store and the
//! version clock with other threads. A request passes through the socket, the head check
//! (`stream`), hyper or the fast path, `service`, `driver` with the coordinator, the store and the
//! links to peers (`links`), and back. The control thread drives the node (`driver::node_machine`).
//! The store gives a *store response*, the coordinator a *reply*, and `api` encodes the reply as
//! the *response*. Ranges and batches take the same path, page by page and entry by entry
//! (`streaming`). `Process` ties the parts together; each module gets only those that it uses.
//!
//! **Caveats.** HTTP/1 only, without TLS. The commit threads belong to the engine.

mod accept_failures;
mod accept_queue;
mod accept_state;
mod adopted_layout;
mod body;
mod checkpoint;
mod checkpoint_pace;
mod config;
mod connection;
mod connection_activity;
mod connection_limit;
mod counters;
mod date;
mod default_from;
mod directory_watch;
mod driver;
mod error;
mod gauges;
mod inbox;
mod io_thread;
mod join;
mod layout;
mod layout_changes;
mod layout_command;
mod layout_progress;
mod layout_status;
mod links;
mod listed_nodes;
mod listener;
mod local;
mod memory_holders;
mod messages;
mod metrics;
mod outgoing;
mod process;
mod profile;
mod read_execution;
mod read_pool;
mod readiness;
mod refusals;
mod replies;
mod response_memory;
mod server;
mod service;
mod serving_state;
mod socket;
mod stages;
mod stated_address;
mod status;
mod stream;
mod streaming;
mod thread;
mod waiting_connection;
mod warnings;

pub use config::{Config, FileShares, Limits, TooFewFiles};
pub use error::ServerError;
pub use join::{JoinError, check_cluster, join};
pub use server::{LifecycleObserver, Server, run};
