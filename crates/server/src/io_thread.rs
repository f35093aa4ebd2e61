//! An I/O thread: its runtime, its messages and its end.
//!
//! A request stays on its thread, except for its write group on the way to the log and for reads
//! that have to wait for the disk. A connection belongs to one thread for its lifetime.

use crate::connection;
use crate::gauges::ThreadGauges;
use crate::local::Local;
use crate::messages::{Mailbox, ThreadMessage};
use crate::process::Process;
use crate::thread::Thread;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};

/// The runtime polls I/O after this number of task polls, so that clients that were just answered
/// are queued again before all other tasks have run.
const EVENT_INTERVAL: u32 = 16;

/// The handle of an I/O thread. Dropping it ends the thread and cuts its remaining connections.
pub(crate) struct ThreadHandle {
    messages: Option<mpsc::UnboundedSender<ThreadMessage>>,
    load: Arc<ThreadGauges>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadHandle {
    pub(crate) fn start(number: u8, process: Arc<Process>) -> io::Result<Self> {
        let load = process.gauges.of_thread(number);
        // The channel is unbounded, but holds at most `connections_max` connections and a few
        // messages.
        let (messages, inbox) = mpsc::unbounded_channel();
        let runtime_load = Arc::clone(&load);
        let (started, starts) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("veche-io-{number}")).spawn(move || {
            match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .event_interval(EVENT_INTERVAL)
                .build_local(LocalOptions::default())
            {
                Err(error) => started.send(Err(error)).expect("the starting thread waits"),
                Ok(runtime) => {
                    started.send(Ok(())).expect("the starting thread waits");
                    if let Err(error) = env::os_process::prefer_short_time_slices() {
                        tracing::debug!(%error, "an I/O thread has time slices of the default length");
                    }
                    runtime.block_on(run(number, process, runtime_load, inbox));
                }
            }
        })?;
        starts.recv().expect("the thread reports its start")?;
        Ok(Self { messages: Some(messages), load, thread: Some(thread) })
    }

    /// Number of connections of the thread.
    pub(crate) fn load(&self) -> usize {
        self.load.connections.load(Ordering::Relaxed)
    }

    /// Makes the thread serve requests. Resolves when it does.
    pub(crate) fn open(&self, local: Arc<Local>) -> oneshot::Receiver<()> {
        self.send(|done| ThreadMessage::Open(local, done))
    }

    /// Resolves when the thread has tried to link with each peer that is up.
    pub(crate) fn when_linked(&self) -> oneshot::Receiver<()> {
        self.send(ThreadMessage::WhenLinked)
    }

    /// A sender of messages that does not keep the thread alive.
    pub(crate) fn mailbox(&self) -> Mailbox {
        Mailbox::new(self.messages(), &self.load)
    }

    /// Makes the thread finish its connections and operations. Resolves when none are left.
    pub(crate) fn finish(&self) -> oneshot::Receiver<()> {
        self.send(ThreadMessage::Finish)
    }

    /// Sends a message that the thread confirms.
    fn send(&self, message: impl FnOnce(oneshot::Sender<()>) -> ThreadMessage) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        // A closed channel means that the thread panicked. `stop` reports it.
        let _ = self.messages().send(message(done));
        is_done
    }

    fn messages(&self) -> &mpsc::UnboundedSender<ThreadMessage> {
        self.messages.as_ref().expect("present until the thread is stopped")
    }

    /// Ends the thread. `false`: it panicked.
    pub(crate) fn stop(mut self) -> bool {
        self.messages = None;
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for ThreadHandle {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("an I/O thread panicked");
        }
    }
}

async fn run(
    number: u8,
    process: Arc<Process>,
    load: Arc<ThreadGauges>,
    mut inbox: mpsc::UnboundedReceiver<ThreadMessage>,
) {
    let thread = Rc::new(Thread::new(number, process, load));
    tokio::task::spawn_local(Rc::clone(&thread.refusals).resume());
    let (limits, memory) = (thread.process.config.limits, Arc::clone(&thread.process.memory));
    tokio::task::spawn_local(Rc::clone(&thread.connections).sweep(limits, memory));
    while let Some(message) = inbox.recv().await {
        handle(&thread, message);
    }
}

/// Handles a message to `thread`.
fn handle(thread: &Rc<Thread>, message: ThreadMessage) {
    match message {
        ThreadMessage::Connection(stream, permit) => {
            tokio::task::spawn_local(connection::serve(stream, permit, Rc::clone(thread)));
        }
        ThreadMessage::Evict(eviction) => thread.evict(eviction),
        ThreadMessage::Peer(stream) => {
            tokio::task::spawn_local(Rc::clone(thread).accept_peer(stream));
        }
        ThreadMessage::Open(local, done) => {
            thread.open(&local);
            let _ = done.send(());
        }
        ThreadMessage::Finish(done) => {
            thread.connections.finish();
            tokio::task::spawn_local(Rc::clone(thread).notify_when_finished(done));
        }
        ThreadMessage::View(view) => thread.open_driver().handle_view(view),
        ThreadMessage::Layout(layout) => thread.follow(layout),
        ThreadMessage::Link(admitted) => thread.open_driver().add_link(*admitted),
        ThreadMessage::CloseLink(link) => thread.open_driver().close_link(link),
        ThreadMessage::CloseOldLinks => thread.open_driver().close_old_links(),
        ThreadMessage::WhenLinked(done) => thread.open_driver().notify_when_linked(done),
    }
}
