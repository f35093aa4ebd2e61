//! Conversations with a coordinator, as text: `tests/scripts/*.txt`.
//!
//! A script is a list of steps: lines that go in, `---`, what comes out, an empty line. Lines with `#` are
//! remarks. `UPDATE=1 cargo test -p cluster` writes what comes out into the scripts. Going in:
//!
//! ```text
//! limits operations_max=2 timeout=1s      a new coordinator, with a new clock
//! at 10s                                  both clocks show 10 s (versions and expiries count from 2020)
//! wall 10s                                the wall clock alone
//! submit 1 get k | put k=v [ttl=1s] | delete k
//! stored 0 written [superseded] | cell none | cell 10.5s+0 value v [expires 11s] | cell 10s+1 tombstone
//! stored 0 raised | full | overloaded 2s | corrupt DETAIL | io DETAIL
//! timeout
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test reads its scripts from files"
)]

use bytes::Bytes;
use cluster::{
    Acks, Command, Coordinator, Effect, Failure, HintLedger, HybridClock, Incarnation, Key, Layout, Lifetime,
    Limits, Member, NodeIndex, Quorum, QuorumChoice, Reply, RequestId, StoreFault, StoreId, StoreRequest,
    StoreResponse,
};
use std::fmt::Write as _;
use std::num::NonZeroU8;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, Instant, NodeTag, Now, Rng, Version, WallTime};

const TAG: NodeTag = NodeTag(1);

#[test]
fn scripts_say_what_the_coordinator_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let update = std::env::var_os("UPDATE").is_some();
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder of scripts") {
        let path = entry.expect("an entry").path();
        let script = std::fs::read_to_string(&path).expect("a script");
        let played = play(&script);
        if update {
            std::fs::write(&path, &played).expect("the script is written");
        } else {
            assert_eq!(played, script, "{} (UPDATE=1 rewrites it)", path.display());
        }
        count += 1;
    }
    assert!(count >= 5, "only {count} scripts");
}

/// The script with what comes out in place of what it says comes out.
fn play(script: &str) -> String {
    let mut world = World::new(Limits::default());
    let steps: Vec<String> = script.split("\n\n").map(|step| world.play_step(step)).collect();
    steps.join("\n\n") + "\n"
}

struct World {
    coordinator: Coordinator,
    now: Now,
    requests: Vec<(StoreId, StoreRequest)>,
}

impl World {
    fn new(limits: Limits) -> Self {
        let layout = Layout::new(vec!["http://a:1".to_owned()], 16).expect("one node");
        let member = Member {
            layout: Arc::new(layout),
            me: NodeIndex(0),
            tag: TAG,
            incarnation: Incarnation(1),
            clock: Arc::new(HybridClock::new(Hlc::ZERO)),
            hints: Arc::new(HintLedger::new(0)),
        };
        let view = member.first_view();
        let coordinator = Coordinator::new(member, 0, limits, view, Rng::new(1));
        let now = Now { mono: Instant::ZERO, wall: WallTime::EPOCH_2020 };
        Self { coordinator, now, requests: Vec::new() }
    }

    fn play_step(&mut self, step: &str) -> String {
        let input: Vec<&str> = step.lines().take_while(|line| *line != "---").collect();
        let mut out = input.join("\n");
        if input.iter().all(|line| line.starts_with('#')) {
            return out;
        }
        for line in input.into_iter().filter(|line| !line.starts_with('#')) {
            self.play_line(line);
        }
        out.push_str("\n---");
        while let Some(effect) = self.coordinator.poll_effect() {
            out.push('\n');
            out.push_str(&self.describe(effect));
        }
        match self.coordinator.poll_timeout() {
            Some(timeout) => {
                write!(out, "\n{} under way until {timeout:?}", self.coordinator.operations())
                    .expect("a string");
            }
            None => assert_eq!(self.coordinator.operations(), 0),
        }
        out
    }

    fn play_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["limits", operations_max, timeout] => {
                let operations_max = operations_max.strip_prefix("operations_max=").expect("operations_max");
                let timeout = timeout.strip_prefix("timeout=").expect("timeout");
                *self = Self::new(Limits {
                    operations_max: operations_max.parse().expect("a number"),
                    request_timeout: duration(timeout),
                    ..Limits::default()
                });
            }
            ["at", time] => self.now = Now { mono: Instant::ZERO + duration(time), wall: wall(time) },
            ["wall", time] => self.now.wall = wall(time),
            ["submit", id, ref command @ ..] => {
                self.coordinator.submit(
                    self.now,
                    RequestId(id.parse().expect("a number")),
                    parse_command(command),
                );
            }
            ["stored", id, ref response @ ..] => {
                let (id, request) = &self.requests[id.parse::<usize>().expect("a number")];
                self.coordinator.handle_stored(self.now, *id, parse_response(request, response));
            }
            ["timeout"] => self.coordinator.handle_timeout(self.now),
            _ => panic!("not a line of a script: {line}"),
        }
    }

    /// Store requests are shown by their number, in the order in which they come out.
    fn describe(&mut self, effect: Effect) -> String {
        match effect {
            Effect::Event(event) => format!("event {event:?}"),
            Effect::Reply { to, reply } => format!("reply {} {}", to.0, describe_reply(reply)),
            Effect::Store { id, request } => {
                let text = format!("store {} {}", self.requests.len(), describe_request(&request));
                self.requests.push((id, request));
                text
            }
            effect => panic!("a coordinator alone wants {effect:?}"),
        }
    }
}

fn parse_command(words: &[&str]) -> Command {
    match *words {
        ["get", name] => Command::Get { key: key(name), quorum: quorum() },
        ["delete", name] => Command::Delete { key: key(name), quorum: quorum() },
        ["put", pair, ref ttl @ ..] => {
            let (name, value) = pair.split_once('=').expect("key=value");
            let lifetime = match *ttl {
                [ttl] => Lifetime::For(duration(ttl.strip_prefix("ttl=").expect("ttl="))),
                _ => Lifetime::Forever,
            };
            let value = Bytes::copy_from_slice(value.as_bytes());
            Command::Put { key: key(name), value, lifetime, quorum: quorum() }
        }
        _ => panic!("not a command: {words:?}"),
    }
}

fn parse_response(request: &StoreRequest, words: &[&str]) -> StoreResponse {
    match *words {
        ["written"] => StoreResponse::Written { superseded: false },
        ["written", "superseded"] => StoreResponse::Written { superseded: true },
        ["cell", "none"] => StoreResponse::Cell(None),
        ["cell", version, "tombstone"] => {
            StoreResponse::Cell(Some(Cell::tombstone(parse_version(version), 1)))
        }
        ["cell", version, "value", value, ref expires @ ..] => {
            let expires_at = match *expires {
                ["expires", time] => Some(wall(time)),
                _ => None,
            };
            let meta = CellMeta { expires_at, ..CellMeta::value(parse_version(version), 1) };
            StoreResponse::Cell(Some(Cell { meta, value: Bytes::copy_from_slice(value.as_bytes()) }))
        }
        ["raised"] => match *request {
            StoreRequest::RaiseClockBound { bound } => StoreResponse::ClockBoundRaised { bound },
            ref request => panic!("{request:?} raises nothing"),
        },
        ["full"] => StoreResponse::Failed(StoreFault::Full),
        ["overloaded", time] => StoreResponse::Failed(StoreFault::Overloaded { retry_after: duration(time) }),
        ["corrupt", detail] => StoreResponse::Failed(StoreFault::Corrupt { detail: detail.to_owned() }),
        ["io", detail] => StoreResponse::Failed(StoreFault::Io { detail: detail.to_owned() }),
        _ => panic!("not a response: {words:?}"),
    }
}

fn describe_request(request: &StoreRequest) -> String {
    match request {
        StoreRequest::Read { key } => format!("read {key:?}"),
        StoreRequest::Write { key, cell, .. } => format!("write {key:?} {}", describe_cell(cell)),
        StoreRequest::RaiseClockBound { bound } => format!("raise-clock-bound {}", describe_hlc(*bound)),
        request => panic!("a coordinator alone asks for {request:?}"),
    }
}

fn describe_reply(reply: Reply) -> String {
    match reply {
        Reply::Found { cell, acks } => format!("found {} {}", describe_cell(&cell), describe_acks(acks)),
        Reply::Missing { acks } => format!("missing {}", describe_acks(acks)),
        Reply::Written { version, superseded, acks } => {
            let superseded = if superseded { " superseded" } else { "" };
            format!("written {}{superseded} {}", describe_hlc(version.hlc), describe_acks(acks))
        }
        Reply::Failed(Failure::ExpiryTooLate { expires_at }) => {
            format!("failed ExpiryTooLate at {expires_at:?}")
        }
        Reply::Failed(failure) => format!("failed {failure:?}"),
    }
}

fn describe_cell(cell: &Cell) -> String {
    assert_eq!(cell.meta.version.tag, TAG);
    let version = describe_hlc(cell.meta.version.hlc);
    let expires = (cell.meta.expires_at).map(|at| format!(" expires {}", describe_hlc(Hlc::at(at))));
    match cell.meta.kind {
        CellKind::Tombstone => format!("{version} tombstone"),
        CellKind::Value => {
            format!("{version} value {}{}", cell.value.escape_ascii(), expires.unwrap_or_default())
        }
    }
}

/// Seconds since 2020, then the counter within the microsecond.
fn describe_hlc(hlc: Hlc) -> String {
    let micros = hlc.wall().micros_since_unix_epoch() - WallTime::EPOCH_2020.micros_since_unix_epoch();
    let counter = hlc.to_bits() - Hlc::at(hlc.wall()).to_bits();
    format!("{:?}+{counter}", Duration::from_micros(micros))
}

fn describe_acks(acks: Acks) -> String {
    format!("{}/{}", acks.got, acks.from)
}

fn parse_version(text: &str) -> Version {
    let (time, counter) = text.split_once('+').expect("time+counter");
    let counter: u64 = counter.parse().expect("a number");
    Version::new(Hlc::from_bits(Hlc::at(wall(time)).to_bits() + counter), TAG)
}

fn duration(text: &str) -> Duration {
    Duration::from_secs_f64(text.strip_suffix('s').expect("seconds").parse().expect("a number"))
}

fn wall(text: &str) -> WallTime {
    WallTime::EPOCH_2020.saturating_add(duration(text))
}

fn key(text: &str) -> Key {
    Key::new(Bytes::copy_from_slice(text.as_bytes())).expect("a key")
}

fn quorum() -> Quorum {
    QuorumChoice::default().resolve(NonZeroU8::MIN, 1).expect("1/1 is a quorum")
}
