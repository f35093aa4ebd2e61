//! Lifetime of a node's checkpoint, for every way in which its backup can end.

mod common;
mod fake_node;

use bytes::Bytes;
use common::{BACKUPS, DATA, Kind, entries, env, open, write};
use ctl::{BackupOptions, BackupReport, CtlError, OperationProgress, ProgressObserver, back_up};
use env::{Fs, MemFs};
use fake_node::with_server;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use std::cell::{Cell, RefCell};
use std::future::{pending, ready};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Status of a node, as far as a backup reads it.
const STATUS: &str = r#"{"state":"serving","nodes":[]}"#;
/// Longer than any wait of these tests.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Requests to the node, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Make(String),
    Remove(String),
}

/// Backs up the node. Returns the result and the requests to the node.
fn back_up_node(
    disk: &MemFs,
    observer: &mut dyn ProgressObserver,
) -> (Result<BackupReport, CtlError>, Vec<Asked>) {
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
    observer: &mut dyn ProgressObserver,
    made: impl Fn(&str) -> String + Clone + 'static,
) -> (Result<BackupReport, CtlError>, Vec<Asked>) {
    back_up_from(disk, WAIT_MAX, observer, move |asked| match asked {
        Asked::Make(name) => answer(StatusCode::CREATED, made(name)),
        Asked::Remove(_) => answer(StatusCode::ACCEPTED, String::new()),
    })
}

fn answer(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(Bytes::from(body))).expect("a response")
}

/// Backs up a node that answers with `respond`.
fn back_up_from(
    disk: &MemFs,
    wait_max: Duration,
    observer: &mut dyn ProgressObserver,
    respond: impl Fn(&Asked) -> Response<Full<Bytes>> + Clone + 'static,
) -> (Result<BackupReport, CtlError>, Vec<Asked>) {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&asked);
    let respond = move |request: Request<Incoming>| {
        let target = request.uri().to_string();
        if target == "/v0/status" {
            return ready(Ok(answer(StatusCode::OK, STATUS.to_owned())));
        }
        let name = target.strip_prefix("/v0/checkpoint?name=").expect("a name").to_owned();
        let asked = match *request.method() {
            Method::POST => Asked::Make(name),
            _ => Asked::Remove(name),
        };
        let response = respond(&asked);
        log.borrow_mut().push(asked);
        ready(Ok(response))
    };
    let env = env(disk.clone());
    let options = BackupOptions { keep: None, wait_max };
    let done =
        with_server(respond, async |node| back_up(&env, &node, Path::new(BACKUPS), options, observer).await);
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

/// Cancels once files are copied.
#[derive(Default)]
struct EndedWhileCopying(bool);

impl ProgressObserver for EndedWhileCopying {
    fn on_progress(&mut self, _: OperationProgress) {
        self.0 = true;
    }
    fn is_cancelled(&self) -> bool {
        self.0
    }
}

#[test]
fn the_checkpoint_is_removed_if_the_backup_is_cancelled() {
    let (done, asked) = back_up_node(&disk(), &mut EndedWhileCopying::default());
    assert!(matches!(done, Err(CtlError::Cancelled)), "{done:?}");
    made_and_removed(&asked);
}

#[test]
fn a_checkpoint_of_a_killed_backup_is_removed_by_the_next_backup() {
    struct Killed<'a>(&'a MemFs, Option<MemFs>);
    impl ProgressObserver for Killed<'_> {
        fn on_progress(&mut self, _: OperationProgress) {
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

/// Refusals of a node that creates no checkpoint for now.
const REFUSALS: [&str; 2] = [
    "Checkpoints are requested too often: each costs a flush. Try again later.",
    "Another checkpoint is being created or removed. Try again.",
];

fn refusal(detail: &str) -> Response<Full<Bytes>> {
    let mut refused = answer(StatusCode::SERVICE_UNAVAILABLE, format!("{{\"detail\":\"{detail}\"}}"));
    refused.headers_mut().insert("retry-after", "1".parse().expect("a value"));
    refused
}

/// The waits of a backup, as their reasons.
#[derive(Default)]
struct Waits(Vec<String>);

impl ProgressObserver for Waits {
    fn on_progress(&mut self, _: OperationProgress) {}
    fn on_wait(&mut self, refused: &CtlError, time: Duration) {
        assert_eq!(time, Duration::from_secs(1));
        self.0.push(refused.to_string());
    }
    fn is_cancelled(&self) -> bool {
        false
    }
}

#[test]
fn a_refused_checkpoint_is_requested_again_under_its_name() {
    for detail in REFUSALS {
        let (disk, mut waits) = (disk(), Waits::default());
        let (node, refused) = (disk.clone(), Rc::new(Cell::new(0)));
        let (done, asked) = back_up_from(&disk, WAIT_MAX, &mut waits, move |asked| match asked {
            Asked::Make(_) if refused.get() < 1 => {
                refused.set(refused.get() + 1);
                refusal(detail)
            }
            Asked::Make(name) => {
                let path = make_checkpoint(&node, name);
                answer(StatusCode::CREATED, format!("{{\"name\":\"{name}\",\"path\":\"{path}\"}}"))
            }
            Asked::Remove(_) => answer(StatusCode::ACCEPTED, String::new()),
        });
        done.expect("the node makes it at last");
        assert_eq!(asked[0], asked[1], "the node keeps a place for this name");
        made_and_removed(&asked[1..]);
        assert!(matches!(&waits.0[..], [reason] if reason.contains(detail)), "{:?}", waits.0);
    }
}

#[test]
fn a_checkpoint_that_stays_refused_ends_the_backup_with_the_reason() {
    let (disk, mut waits) = (disk(), Waits::default());
    let wait_max = Duration::from_millis(1_500);
    let (done, asked) = back_up_from(&disk, wait_max, &mut waits, |_| refusal(REFUSALS[0]));
    let error = done.expect_err("it is refused");
    assert!(matches!(error, CtlError::StillRefused { .. }), "{error}");
    assert!(error.to_string().contains(REFUSALS[0]) && error.to_string().contains("for 1 s"), "{error}");
    assert_eq!((asked.len(), waits.0.len()), (2, 1));
    assert!(!noted(&disk));
}

/// Backs up a node whose first `lost` checkpoints are removed before they are copied.
fn back_up_losing(disk: &MemFs, lost: usize) -> (Result<BackupReport, CtlError>, Vec<Asked>) {
    let (node, made) = (disk.clone(), Rc::new(Cell::new(0)));
    back_up_from(disk, WAIT_MAX, &mut (), move |asked| match asked {
        Asked::Make(name) => {
            made.set(made.get() + 1);
            let path = match made.get() > lost {
                true => make_checkpoint(&node, name),
                false => format!("/srv/node/checkpoints/{name}"),
            };
            answer(StatusCode::CREATED, format!("{{\"name\":\"{name}\",\"path\":\"{path}\"}}"))
        }
        Asked::Remove(_) if made.get() > lost => answer(StatusCode::ACCEPTED, String::new()),
        Asked::Remove(_) => answer(StatusCode::NOT_FOUND, String::new()),
    })
}

#[test]
fn a_backup_begins_once_more_if_its_checkpoint_is_removed() {
    let disk = disk();
    let (done, asked) = back_up_losing(&disk, 1);
    assert_eq!(done.expect("the second one is there").backups, 1);
    assert_ne!(made_and_removed(&asked[..2]), made_and_removed(&asked[2..]));
    let (done, asked) = back_up_losing(&disk, 2);
    let error = done.expect_err("both are removed");
    assert!(matches!(error, CtlError::CheckpointRemoved { .. }), "{error}");
    assert!(error.to_string().contains("was removed while it was copied"), "{error}");
    assert!(asked.len() == 4 && !noted(&disk));
}

/// Backs up a node that never answers requests of the methods for which `is_silent` holds.
fn back_up_silent(
    disk: &MemFs,
    observer: &mut dyn ProgressObserver,
    is_silent: fn(&Method) -> bool,
) -> Result<BackupReport, CtlError> {
    let node = disk.clone();
    let respond = move |request: Request<Incoming>| {
        let target = request.uri().to_string();
        let response = match target.strip_prefix("/v0/checkpoint?name=") {
            None => answer(StatusCode::OK, STATUS.to_owned()),
            Some(_) if request.method() != Method::POST => answer(StatusCode::ACCEPTED, String::new()),
            Some(name) => {
                let path = make_checkpoint(&node, name);
                answer(StatusCode::CREATED, format!("{{\"name\":\"{name}\",\"path\":\"{path}\"}}"))
            }
        };
        let is_answered = !is_silent(request.method());
        async move { if is_answered { Ok(response) } else { pending().await } }
    };
    let env = env(disk.clone());
    let options = BackupOptions { keep: None, wait_max: WAIT_MAX };
    with_server(respond, async |node| back_up(&env, &node, Path::new(BACKUPS), options, observer).await)
}

#[test]
fn a_cancelled_backup_does_not_wait_for_a_silent_node() {
    let disk = disk();
    let done = back_up_silent(&disk, &mut EndedWhileCopying::default(), |method| *method == Method::DELETE);
    assert!(matches!(done, Err(CtlError::Cancelled)), "{done:?}");
    assert!(noted(&disk), "the next backup removes the checkpoint");

    // It is cancelled while it waits for the checkpoint.
    struct EndedAfter(Cell<u32>);
    impl ProgressObserver for EndedAfter {
        fn on_progress(&mut self, _: OperationProgress) {}
        fn is_cancelled(&self) -> bool {
            self.0.set(self.0.get().saturating_sub(1));
            self.0.get() == 0
        }
    }
    let done = back_up_silent(&disk, &mut EndedAfter(Cell::new(10)), |method| *method != Method::GET);
    assert!(matches!(done, Err(CtlError::Cancelled)), "{done:?}");
    assert!(noted(&disk));
}

#[test]
fn no_repository_is_made_before_a_node_has_answered() {
    let disk = disk();
    let observer = &mut ();
    let options = BackupOptions { keep: None, wait_max: WAIT_MAX };
    let env = env(disk.clone());
    let done = with_server(
        |_| ready(Ok(answer(StatusCode::OK, "{}".to_owned()))),
        async |node| back_up(&env, &node, Path::new(BACKUPS), options, observer).await,
    );
    assert!(matches!(done, Err(CtlError::NotANode { .. })), "{done:?}");
    assert!(!disk.exists(Path::new(BACKUPS)).unwrap());
}
