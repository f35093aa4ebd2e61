//! Lifetime of a node's checkpoint, for every way in which its backup can end.

mod common;
mod fake_node;

use bytes::Bytes;
use common::{BACKUPS, DATA, Kind, entries, env, open, write};
use ctl::{BackupReport, CtlError, Observer, Progress, back_up};
use env::{Fs, MemFs};
use fake_node::with_server;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

/// Requests to the node, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Make(String),
    Remove(String),
}

/// Backs up the node. Returns the result and the requests to the node.
fn back_up_node(disk: &MemFs, observer: &mut dyn Observer) -> (Result<BackupReport, CtlError>, Vec<Asked>) {
    let made = disk.clone();
    back_up_answered(disk, observer, move |name| {
        let path = make_checkpoint(&made, name);
        format!("{{\"name\":\"{name}\",\"path\":\"{path}\"}}")
    })
}

/// Makes the checkpoint of this name in the node's directory. Returns its path.
fn make_checkpoint(disk: &MemFs, name: &str) -> String {
    let path = format!("/srv/node/checkpoints/{name}");
    let below = |file: &Path| file.strip_prefix(DATA).ok().map(|below| Path::new(&path).join(below));
    for file in disk.file_names() {
        if let Some(to) = below(&file) {
            disk.write_file(to, &disk.read_file(&file).unwrap()).unwrap();
        }
    }
    path
}

/// Backs up a node that responds with `made` after it has made the checkpoint.
fn back_up_answered(
    disk: &MemFs,
    observer: &mut dyn Observer,
    made: impl Fn(&str) -> String + Clone + 'static,
) -> (Result<BackupReport, CtlError>, Vec<Asked>) {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&asked);
    let respond = move |request: Request<Incoming>| {
        let target = request.uri().to_string();
        let name = target.strip_prefix("/v0/checkpoint?name=").expect("a name").to_owned();
        let (status, body) = match *request.method() {
            Method::POST => (StatusCode::CREATED, made(&name)),
            _ => (StatusCode::ACCEPTED, String::new()),
        };
        log.borrow_mut().push(match *request.method() {
            Method::POST => Asked::Make(name),
            _ => Asked::Remove(name),
        });
        let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
        async { Ok(response.expect("a response")) }
    };
    let env = env(disk.clone());
    let done =
        with_server(respond, async |node| back_up(&env, &node, Path::new(BACKUPS), None, observer).await);
    (done, asked.take())
}

/// Name of the only checkpoint, which was made and then removed.
#[track_caller]
fn made_and_removed(asked: &[Asked]) -> &str {
    match asked {
        [Asked::Make(made), Asked::Remove(removed)] if made == removed => made,
        other => panic!("{other:?}"),
    }
}

fn noted(disk: &MemFs) -> bool {
    disk.exists(&Path::new(BACKUPS).join("checkpoint")).unwrap()
}

/// A disk with a node's data directory, which serves as a checkpoint.
fn disk() -> MemFs {
    let disk = MemFs::new();
    let store = open(&disk, DATA, 7, Kind::Alone);
    write(&store, 1 << 32, &entries(0, 50));
    store.engine().close().expect("the disk is well");
    disk
}

#[test]
fn the_checkpoint_is_removed_after_the_backup() {
    let disk = disk();
    let (done, asked) = back_up_node(&disk, &mut ());
    let done = done.expect("all is well");
    assert!(done.checkpoint_left.is_none() && done.backups == 1);
    made_and_removed(&asked);
    assert!(!noted(&disk));
}

#[test]
fn damaged_tables_of_the_node_are_reported() {
    let disk = disk();
    let node = disk.clone();
    let made = move |name: &str| {
        let path = make_checkpoint(&node, name);
        format!("{{\"name\":\"{name}\",\"path\":\"{path}\",\"damaged_tables\":[\"/a.sst\"]}}")
    };
    let (done, _) = back_up_answered(&disk, &mut (), made);
    assert_eq!(done.expect("it is there").damaged_tables, [Path::new("/a.sst")]);
}

#[test]
fn the_checkpoint_is_removed_if_it_cannot_be_read_here() {
    let made = |name: &str| format!("{{\"name\":\"{name}\",\"path\":\"/elsewhere/checkpoints/{name}\"}}");
    let (done, asked) = back_up_answered(&disk(), &mut (), made);
    let error = done.expect_err("it is not there");
    assert!(matches!(error, CtlError::CheckpointUnreadable { .. }), "{error}");
    assert!(error.to_string().contains("run this command on the node's machine"), "{error}");
    made_and_removed(&asked);
}

#[test]
fn no_other_directory_than_that_of_the_checkpoint_is_read() {
    for path in
        [DATA, "/srv/data/checkpoints", "srv/data/checkpoints/NAME", "/srv/data/checkpoints/NAME/../.."]
    {
        let made =
            move |name: &str| format!("{{\"name\":\"{name}\",\"path\":\"{}\"}}", path.replace("NAME", name));
        let disk = disk();
        let (done, asked) = back_up_answered(&disk, &mut (), made);
        let error = done.expect_err("it is another directory");
        assert!(matches!(error, CtlError::UnexpectedCheckpointPath { .. }), "{path}: {error}");
        made_and_removed(&asked);
        assert!(disk.file_names().iter().all(|file| !file.starts_with("/backups/objects")));
    }
}

#[test]
fn the_checkpoint_is_removed_if_the_backup_is_cancelled() {
    struct Ended;
    impl Observer for Ended {
        fn on_progress(&mut self, _: Progress) {}
        fn is_cancelled(&self) -> bool {
            true
        }
    }
    let (done, asked) = back_up_node(&disk(), &mut Ended);
    assert!(matches!(done, Err(CtlError::Cancelled)), "{done:?}");
    made_and_removed(&asked);
}

#[test]
fn a_checkpoint_of_a_killed_backup_is_removed_by_the_next_backup() {
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
    let (done, asked) = back_up_node(&disk, &mut killed);
    done.expect("all is well");
    let name = made_and_removed(&asked);
    let left = killed.1.expect("there was progress");
    let (done, asked) = back_up_node(&left, &mut ());
    done.expect("all is well");
    assert_eq!(asked[0], Asked::Remove(name.to_owned()));
    assert_ne!(made_and_removed(&asked[1..]), name);
}

#[test]
fn a_checkpoint_whose_response_was_lost_is_removed_by_the_next_backup() {
    let disk = disk();
    // The backup is killed while the node makes the checkpoint.
    let at_kill = Rc::new(RefCell::new(None));
    let (left, running) = (Rc::clone(&at_kill), disk.clone());
    let (done, asked) = back_up_answered(&disk, &mut (), move |_| {
        *left.borrow_mut() = Some(running.kill());
        "{\"name".to_owned()
    });
    let error = done.expect_err("the answer is cut");
    assert!(matches!(error, CtlError::BrokenAnswer { .. }), "{error}");
    let name = made_and_removed(&asked).to_owned();
    assert!(!noted(&disk), "the node had it, and has removed it");
    let left = at_kill.take().expect("the node was asked");
    assert!(noted(&left));
    let (done, asked) = back_up_node(&left, &mut ());
    done.expect("all is well");
    assert_eq!(asked[0], Asked::Remove(name));
    made_and_removed(&asked[1..]);
}
