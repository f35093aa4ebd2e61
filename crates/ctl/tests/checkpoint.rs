//! What becomes of a node's checkpoint, however its backup ends.

mod common;
mod fake_node;

use bytes::Bytes;
use common::{BACKUPS, DATA, Kind, entries, env, open, write};
use ctl::{BackedUp, CtlError, Observer, Progress, back_up};
use env::{Fs, MemFs};
use fake_node::with_server;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

/// A backup of a node whose checkpoints are all at `path`; and what the node was asked.
fn back_up_node(
    disk: &MemFs,
    path: &str,
    observer: &mut dyn Observer,
) -> (Result<BackedUp, CtlError>, Vec<String>) {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let (log, answer) = (Rc::clone(&asked), format!("{{\"name\":\"c7\",\"path\":\"{path}\"}}"));
    let respond = move |request: Request<Incoming>| {
        log.borrow_mut().push(format!("{} {}", request.method(), request.uri()));
        let (status, body) = match *request.method() {
            Method::POST => (StatusCode::CREATED, answer.clone()),
            _ => (StatusCode::ACCEPTED, String::new()),
        };
        let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
        async { Ok(response.expect("a response")) }
    };
    let env = env(disk.clone());
    let done =
        with_server(respond, async |node| back_up(&env, &node, Path::new(BACKUPS), None, observer).await);
    (done, asked.take())
}

/// A disk with the directory of a node, which serves as a checkpoint.
fn disk() -> MemFs {
    let disk = MemFs::new();
    let store = open(&disk, DATA, 7, Kind::Alone);
    write(&store, 1 << 32, &entries(0, 50));
    store.engine().close().expect("the disk is well");
    disk
}

const MADE: &str = "POST /v0/checkpoint";
const REMOVED: &str = "DELETE /v0/checkpoint?name=c7";

#[test]
fn it_is_removed_when_the_backup_is_there() {
    let disk = disk();
    let (done, asked) = back_up_node(&disk, DATA, &mut ());
    let done = done.expect("all is well");
    assert!(done.checkpoint_left.is_none() && done.backups == 1);
    assert_eq!(asked, [MADE, REMOVED]);
    assert!(!disk.exists(&Path::new(BACKUPS).join("checkpoint")).unwrap());
}

#[test]
fn it_is_removed_when_it_cannot_be_read_here() {
    let (done, asked) = back_up_node(&disk(), "/elsewhere", &mut ());
    let error = done.expect_err("it is not there");
    assert!(matches!(error, CtlError::OutOfReach { .. }), "{error}");
    assert!(error.to_string().contains("do this on the node's machine"), "{error}");
    assert_eq!(asked, [MADE, REMOVED]);
}

#[test]
fn it_is_removed_when_the_backup_is_ended() {
    struct Ended;
    impl Observer for Ended {
        fn on_progress(&mut self, _: Progress) {}
        fn is_cancelled(&self) -> bool {
            true
        }
    }
    let (done, asked) = back_up_node(&disk(), DATA, &mut Ended);
    assert!(matches!(done, Err(CtlError::Cancelled)), "{done:?}");
    assert_eq!(asked, [MADE, REMOVED]);
}

#[test]
fn one_that_a_killed_backup_left_is_removed_by_the_next() {
    struct Killed<'a>(&'a MemFs, Option<MemFs>);
    impl Observer for Killed<'_> {
        fn on_progress(&mut self, _: Progress) {
            self.1.get_or_insert_with(|| self.0.kill());
        }
        fn is_cancelled(&self) -> bool {
            false
        }
    }
    let disk = disk();
    let mut killed = Killed(&disk, None);
    back_up_node(&disk, DATA, &mut killed).0.expect("all is well");
    let left = killed.1.expect("there was progress");
    let (done, asked) = back_up_node(&left, DATA, &mut ());
    done.expect("all is well");
    assert_eq!(asked, [REMOVED, MADE, REMOVED]);
}
