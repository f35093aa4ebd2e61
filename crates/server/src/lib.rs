//! The process: listener, I/O threads, connections, start and stop.
//!
//! **Promise.** This crate only moves bytes and time: what a request means is decided in `api`, what is to be done
//! in `cluster`, what is durable in `store`. Every queue and buffer here is bounded (see [`Limits`]); what finds
//! no room is refused at once, with `503`.
//!
//! **Mechanism.** One runtime for each core; a connection, its requests and its coordinator live on one of them
//! and share nothing but the store and the version clock. The way of a request: socket, head check (`stream`),
//! hyper, `service`, `driver` with the coordinator, the store and the links to peers (`links`), and back. The
//! control thread drives the node (`driver::node_machine`). Ranges and batches take the same way, page by page and piece
//! by piece (`streaming`).
//!
//! **Caveats.** HTTP/1 only, without TLS. The commit threads are the engine's.

mod accept_queue;
mod admission;
mod body;
mod budget;
mod checkpoint;
mod config;
mod connection;
mod connection_activity;
mod connection_limit;
mod counters;
mod date;
mod directory_watch;
mod driver;
mod error;
mod gauges;
mod inbox;
mod links;
mod listener;
mod local;
mod metrics;
mod outgoing;
mod process;
mod profile;
mod read_pool;
mod readiness;
mod replies;
mod response_memory;
mod server;
mod service;
mod socket;
mod stages;
mod status;
mod stream;
mod streaming;
mod thread;
mod warnings;

pub use config::{Config, FileShares, Limits};
pub use error::ServerError;
pub use server::{Observer, Server, run};
