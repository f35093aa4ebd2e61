//! Connections of a single thread without any other activity: time does not pass and no log is
//! written, unless a test does it.

use super::refusals::REFUSED_MAX;
use super::shares::{LONG_BATCH, SHORT_BATCH};
use crate::config::{Config, Limits};
use crate::connection;
use crate::connection_limit::ClientAddress;
use crate::process::Process;
use crate::server::{local_of, store_options};
use crate::thread::Thread;
use env::{Env, MemFs, OsClock};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store::{DataDirectory, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::LocalOptions;

const GET: &str = "GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n\r\n";
const PUT: &str = "PUT /v0/entity?id=put HTTP/1.1\r\nHost: v\r\nContent-Length: 1\r\n\r\nv";
const STATUS: &str = "GET /v0/status HTTP/1.1\r\nHost: v\r\n\r\n";

fn config() -> Config {
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        data: PathBuf::from("/data"),
        peer_listen: None,
        membership: store::Membership::of(Vec::new()),
        self_name: String::new(),
        moved_to: None,
        listed: Vec::new(),
        default_from_flag: None,
        default_from: 1,
        new_cluster: false,
        secret: None,
        after_absence: store::AfterAbsence::default(),
        engine: engine::Options { memory_bytes: 16 << 20, ..engine::Options::default() },
        threads: 1,
        request_timeout: Duration::from_secs(3_600),
        slow_request: Duration::ZERO,
        value_bytes_max: 1 << 20,
        drain_delay: Duration::ZERO,
        metrics: false,
        feature_level_max: cluster::FEATURE_LEVEL_MAX_DEFAULT,
        snapshot_age: Duration::from_secs(60),
        warnings: Vec::new(),
        limits: Limits::default(),
    }
}

/// Runs `test` on a thread of a starting node.
fn on_a_thread<T: Future<Output = ()>>(test: impl FnOnce(Rc<Thread>) -> T) {
    let env = Env { fs: Arc::new(MemFs::new()), clock: Arc::new(OsClock::new()) };
    let process = Arc::new(Process::new(config(), env).0);
    let load = process.gauges.of_thread(0);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(LocalOptions::default()).expect("a runtime");
    runtime.block_on(async { test(Rc::new(Thread::new(0, process, load))).await });
}

/// Opens the store, so that the thread takes requests. Writes wait until a test commits them.
fn open(thread: &Rc<Thread>) -> Store {
    let Process { env, config, .. } = &*thread.process;
    let claimed = DataDirectory::claim(env.clone(), &config.data, store_options(config))
        .expect("the directory is free");
    let (store, opened) = claimed.open().expect("an empty disk can be opened");
    let local = local_of(&thread.process, &store, &opened, 1).expect("read threads");
    thread.open(&Arc::new(local));
    thread.process.serving_state.begin_serving();
    store
}

/// Commits the queued writes, forever.
async fn commit(store: &Store) {
    loop {
        store.engine().step_commit().expect("committed");
        tokio::task::yield_now().await;
    }
}

/// A client of the thread.
struct Client(TcpStream);

impl Client {
    async fn of(thread: &Rc<Thread>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (socket, from) = accepted.expect("a connection");
        let socket = socket.into_std().expect("the socket has no tasks");
        let permit = thread
            .process
            .accept_state
            .limiter
            .admit(ClientAddress::of(from.ip()))
            .permit
            .expect("all permits are free");
        tokio::task::spawn_local(connection::serve(socket, permit, Rc::clone(thread)));
        Self(client.expect("the listener accepts"))
    }

    async fn send(&mut self, requests: &str) {
        self.0.write_all(requests.as_bytes()).await.expect("the thread reads");
    }

    /// Statuses of the next `count` responses.
    async fn statuses(&mut self, count: usize) -> Vec<u16> {
        let (mut bytes, mut statuses) = (Vec::new(), Vec::new());
        while statuses.len() < count {
            assert!(self.0.read_buf(&mut bytes).await.expect("the thread responds") > 0, "{statuses:?}");
            while let Some((status, len)) = first_answer(&bytes) {
                statuses.push(status);
                bytes.drain(..len);
            }
        }
        assert!(bytes.is_empty() && statuses.len() == count, "one response for each request");
        statuses
    }

    async fn exchange(&mut self, request: &str) -> u16 {
        self.send(request).await;
        self.statuses(1).await[0]
    }

    fn has_answer(&self) -> bool {
        self.0.try_read(&mut [0; 1]).is_ok()
    }
}

/// Status and length of the response at the beginning of `bytes`, if it is complete.
fn first_answer(bytes: &[u8]) -> Option<(u16, usize)> {
    let head_len = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..head_len]).expect("heads are text").to_ascii_lowercase();
    let body_len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let body_len = body_len.map_or(0, |len| len.parse().expect("a number"));
    let status = head["http/1.1 ".len()..][..3].parse().expect("a number");
    (bytes.len() >= head_len + body_len).then_some((status, head_len + body_len))
}

#[test]
fn a_client_with_too_many_refusals_is_not_read_for_a_while_even_when_hyper_serves_it() {
    on_a_thread(async |thread| {
        let refused = REFUSED_MAX as usize + 1;
        let (mut flood, mut health) = (Client::of(&thread).await, Client::of(&thread).await);
        flood.send(&GET.repeat(refused)).await;
        assert_eq!(flood.statuses(refused).await, vec![503; refused], "received requests are answered");
        flood.send(GET).await;
        for _ in 0..10 {
            assert_eq!(
                health.exchange(STATUS).await,
                503,
                "status requests are read on; the node is starting"
            );
        }
        assert!(!flood.has_answer(), "the client is not read");
        thread.refusals.tick();
        assert_eq!(flood.statuses(1).await, [503], "the client is read again");
        flood.send(GET).await;
        thread.connections.finish();
        assert_eq!(flood.statuses(1).await, [503], "pauses end when the node stops");
    });
}

#[test]
fn a_batch_counts_even_if_its_last_request_has_to_wait() {
    on_a_thread(async |thread| {
        let store = open(&thread);
        let (mut greedy, mut modest) = (Client::of(&thread).await, Client::of(&thread).await);
        greedy.send(&[GET, GET, PUT].concat()).await;
        let mut statuses = greedy.statuses(2).await;
        tokio::select! {
            status = greedy.statuses(1) => statuses.extend(status),
            () = commit(&store) => {}
        }
        assert_eq!(statuses, [404, 404, 201]);
        assert_eq!(thread.shares.batch_max(), LONG_BATCH);
        assert_eq!(modest.exchange(GET).await, 404);
        assert_eq!(thread.shares.batch_max(), SHORT_BATCH, "there are batches of both kinds");
    });
}
