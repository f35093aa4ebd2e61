//! Commands of clients, and looks at the stores.

use crate::parse::{self, Arguments};
use crate::player::Player;
use crate::{describe, world};
use bytes::Bytes;
use cluster::{
    Command, Cut, Key, KeyRange, Lifetime, Quorum, QuorumChoice, RequestId, Scan, ScanId, ScanScope,
    SwapPhase, SyncState,
};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, NodeTag, Version, WallTime};

impl Player {
    /// Submits a command of a client, such as `put n1 k=v ack=2 from=3`.
    pub(crate) fn submit(&mut self, name: &str, arguments: &mut Arguments) -> Result<RequestId, String> {
        if name == "next" {
            let name = arguments.try_next().unwrap_or_default();
            let (host, id) = self.named_scan(&name)?;
            let what = format!("next page {name}");
            return Ok(self.submit_named(host, what.trim_end(), Command::NextPage { id }));
        }
        let host = arguments.node()?;
        if !self.world.hosts[host].is_running() {
            return Err(format!("n{} does not run", host + 1));
        }
        let quorum = self.quorum(arguments)?;
        let (what, command) = match name {
            "put" => self.put(arguments, quorum)?,
            "get" => {
                let name = arguments.next("a key")?;
                (format!("get {name}"), Command::Get { key: self.key(&name)?, quorum })
            }
            "delete" => {
                let name = arguments.next("a key")?;
                (format!("delete {name}"), Command::Delete { key: self.key(&name)?, quorum })
            }
            "scan" => self.scan(host, arguments, quorum)?,
            _ => return Err(format!("{name} is no command of a client")),
        };
        Ok(self.submit_named(host, &what, command))
    }

    fn submit_named(&mut self, host: usize, what: &str, command: Command) -> RequestId {
        // The reply may be an effect of the submission.
        let id = RequestId(self.commands.len() as u64);
        self.commands.insert(id, format!("n{} {what}", host + 1));
        assert_eq!(self.world.submit(host, command), id);
        id
    }

    fn put(&mut self, arguments: &mut Arguments, quorum: Quorum) -> Result<(String, Command), String> {
        let lifetime = match arguments.named("ttl") {
            Some(ttl) => Lifetime::For(parse::duration(&ttl)?),
            None => Lifetime::Forever,
        };
        let (name, value) = arguments.pair().ok_or("key=value is missing")?;
        let (key, value) = (self.key(&name)?, value_of(&value));
        Ok((format!("put {name}"), Command::Put { key, value, lifetime, quorum }))
    }

    fn scan(
        &mut self,
        host: usize,
        arguments: &mut Arguments,
        quorum: Quorum,
    ) -> Result<(String, Command), String> {
        let limit = arguments.number("limit")?;
        let scope = if arguments.takes("local") { ScanScope::Node } else { ScanScope::Cluster(quorum) };
        // Keys are names with a number: a bare name is before them, `~` behind them.
        let before = |name: &String| Cut::Before(world::key(name));
        let behind = |name: &String| Cut::Before(world::key(&format!("{name}~")));
        let (from, to) = (arguments.try_next(), arguments.try_next());
        let (after, through) = (arguments.named("after"), arguments.named("through"));
        let range = KeyRange {
            from: from.as_ref().map(before).or(after.as_ref().map(behind)),
            to: to.as_ref().map(before).or(through.as_ref().map(behind)),
        };
        let id = ScanId(self.scan_count);
        self.scan_count += 1;
        let name = arguments.named("as").unwrap_or_default();
        self.scans.insert(name.clone(), (host, id));
        let space = if name.is_empty() { "" } else { " " };
        let bounds = describe::range(self, &range);
        Ok((format!("scan {name}{space}{bounds}"), Command::Scan { id, scan: Scan { range, limit, scope } }))
    }

    pub(crate) fn close_scan(&mut self, arguments: &mut Arguments) -> Result<(), String> {
        let (host, id) = self.named_scan(&arguments.try_next().unwrap_or_default())?;
        self.world.close_scan(host, id);
        self.settle();
        Ok(())
    }

    fn named_scan(&self, name: &str) -> Result<(usize, ScanId), String> {
        self.scans.get(name).copied().ok_or_else(|| format!("there is no scan {name}").trim_end().to_owned())
    }

    fn quorum(&self, arguments: &mut Arguments) -> Result<Quorum, String> {
        let choice = QuorumChoice { ack: arguments.number("ack")?, from: arguments.number("from")? };
        let nodes = NonZeroU8::new(self.world.layout.len()).expect("there are nodes");
        choice.resolve(nodes, self.world.limits.default_from).map_err(|error| error.to_string())
    }

    fn key(&mut self, name: &str) -> Result<Key, String> {
        self.names.key(&self.world, name)
    }

    /// Stores cells as earlier writes would have: `seed n1 n2 j=v@1 k=v@2 from=2 hints=n3`.
    pub(crate) fn seed(&mut self, arguments: &mut Arguments) -> Result<(), String> {
        let hosts = arguments.nodes()?;
        let from = arguments.number("from")?.unwrap_or(self.world.limits.default_from);
        let ahead = arguments.named("ahead").map(|ahead| parse::duration(&ahead)).transpose()?;
        let ago = arguments.named("ago").map(|ago| parse::duration(&ago)).transpose()?;
        let hints = arguments.named("hints").map(|hints| parse::node(&hints)).transpose()?;
        let expired = arguments.named("expired").map(|ago| parse::duration(&ago)).transpose()?;
        for (name, value, version) in seeded_cells(arguments)? {
            let key = self.key(&name)?;
            let version = self.seeded_version(&version, ahead, ago)?;
            let now = self.world.now_at(0).wall;
            let expires_at = expired.map(|ago| before(now, ago));
            let cell = match value {
                Some(value) => {
                    Cell { meta: CellMeta { expires_at, ..CellMeta::value(version, from) }, value }
                }
                None => Cell::tombstone(version, from),
            };
            for host in &hosts {
                let hints: Vec<usize> = hints.into_iter().collect();
                self.world.write_cell(*host, &key, &cell, &hints);
            }
        }
        Ok(())
    }

    fn seeded_version(
        &mut self,
        number: &str,
        ahead: Option<Duration>,
        ago: Option<Duration>,
    ) -> Result<Version, String> {
        let number: u64 = number.parse().map_err(|_| format!("@{number} is no version"))?;
        if let Some(version) = self.names.version(number) {
            return Ok(version);
        }
        let now = self.world.now_at(0).wall;
        let wall = match (ahead, ago) {
            (Some(ahead), _) => now.saturating_add(ahead),
            (None, Some(ago)) => before(now, ago),
            (None, None) => WallTime::EPOCH_2020.saturating_add(Duration::from_secs(number)),
        };
        let version = Version::new(Hlc::at(wall), NodeTag(90));
        self.names.name_version(number, version);
        Ok(version)
    }

    pub(crate) fn show_cells(&mut self, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for host in arguments.nodes()? {
            let cells: Vec<_> = self.world.hosts[host].store.cells.clone().into_iter().collect();
            let cells: Vec<String> =
                cells.iter().map(|(key, cell)| describe::cell(self, key.as_bytes(), cell)).collect();
            lines.push(format!("n{} holds {}", host + 1, or_nothing(&cells)));
        }
        Ok(lines)
    }

    pub(crate) fn show_hints(&mut self, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for host in arguments.nodes()? {
            let hints: Vec<_> = self.world.hosts[host].store.hints.clone().into_iter().collect();
            let hints: Vec<String> = hints
                .into_iter()
                .map(|((target, key), version)| {
                    let (key, version) = (self.names.of_key(key.as_bytes()), self.names.of_version(version));
                    format!("n{} lacks {key}{version}", target.0 + 1)
                })
                .collect();
            lines.push(format!("n{} keeps hints: {}", host + 1, or_nothing(&hints)));
        }
        Ok(lines)
    }

    /// The durable state of nodes.
    pub(crate) fn show_records(&mut self, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for host in arguments.nodes()? {
            let record = &self.world.hosts[host].store.record;
            let state = describe::sync_state_name(record.sync_state);
            let pending = match describe::nodes(record.repair_pending) {
                pending if pending.is_empty() => String::new(),
                pending => format!(", repair pending with {pending}"),
            };
            let refused: Vec<String> =
                record.refused.iter().map(|(key, _)| self.names.of_key(key.as_bytes())).collect();
            let refused = match refused.is_empty() {
                true => String::new(),
                false => format!(", refuses {}", refused.join(", ")),
            };
            lines.push(format!("n{} has recorded: {state}{pending}{refused}", host + 1));
        }
        Ok(lines)
    }

    /// The open links that the coordinators of nodes have dialed.
    pub(crate) fn show_links(&mut self, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for host in arguments.nodes()? {
            let peers = (0..self.world.hosts.len()).filter(|peer| self.world.has_link(host, *peer));
            let peers: Vec<String> = peers.map(|peer| format!("n{}", peer + 1)).collect();
            lines.push(format!("n{} has links to {}", host + 1, or_nothing(&peers)));
        }
        Ok(lines)
    }

    pub(crate) fn show_snapshots(&mut self, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let nodes = arguments.nodes()?;
        let count = |host: usize| self.world.hosts[host].store.snapshots.len();
        Ok(nodes.into_iter().map(|host| format!("n{} keeps snapshots: {}", host + 1, count(host))).collect())
    }

    /// Decides the next layout record, in which the swap of two nodes for the partition of a key
    /// enters a phase: `decide k n3 n4 prepare`.
    pub(crate) fn decide(&mut self, arguments: &mut Arguments) -> Result<String, String> {
        let name = arguments.next("a key")?;
        let key = self.key(&name)?;
        let partition = self.world.layout.partition_of(&key);
        let (loser, gainer) = (arguments.node()?, arguments.node()?);
        let phase = arguments.next("a phase")?;
        let phase = match phase.as_str() {
            "prepare" => Some(SwapPhase::Prepare),
            "read-new" => Some(SwapPhase::ReadNew),
            "back" => Some(SwapPhase::Back),
            "new" => Some(SwapPhase::New),
            "old" => None,
            _ => return Err(format!("{phase} is no phase")),
        };
        let epoch = self.world.decide_phase(partition, (loser, gainer), phase);
        Ok(format!("epoch {epoch} is decided"))
    }

    /// The epochs that nodes have fenced.
    pub(crate) fn show_fenced(&mut self, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let hosts = arguments.nodes()?;
        let shown = hosts.into_iter().map(|host| {
            let epoch = self.world.fenced(host);
            format!("n{} has fenced epoch {epoch}", host + 1)
        });
        Ok(shown.collect())
    }

    /// Waits for a state of a node: `await n3 settled within=60s`.
    pub(crate) fn await_state(&mut self, arguments: &mut Arguments) -> Result<String, String> {
        let host = arguments.node()?;
        let state = arguments.next("a state")?;
        let within = arguments.named("within").map(|within| parse::duration(&within)).transpose()?;
        let within = within.unwrap_or(Duration::from_secs(60));
        let is_so: fn(&world::World, usize) -> bool = match state.as_str() {
            "settled" => |world, host| world.sync_state(host) == SyncState::Settled,
            "ready" => |world, host| world.node(host).is_ready(),
            "drained" => |world, host| world.node(host).is_drained(),
            "idle" => |world, host| world.node(host).status().repair.is_none(),
            "healed" => |world, host| world.hosts[host].store.damage.is_empty(),
            _ => return Err(format!("{state} is not understood")),
        };
        match self.world.try_run_until(within, |world| is_so(world, host)) {
            true => Ok(format!("n{} is {state}", host + 1)),
            false => Ok(format!("n{} is not {state} after {within:?}", host + 1)),
        }
    }
}

/// The remaining arguments as names, values and versions of cells. Without a value a cell is
/// deleted.
fn seeded_cells(arguments: &mut Arguments) -> Result<Vec<(String, Option<Bytes>, String)>, String> {
    let mut cells = Vec::new();
    while let Some((name, value)) = arguments.pair() {
        let (value, version) = value.split_once('@').ok_or("the version is missing: k=v@1")?;
        cells.push((name, Some(value_of(value)), version.to_owned()));
    }
    while let Some(deleted) = arguments.try_next() {
        let (name, version) = deleted.split_once('@').ok_or("the version is missing: k@1")?;
        cells.push((name.to_owned(), None, version.to_owned()));
    }
    if cells.is_empty() { Err("a cell is missing".to_owned()) } else { Ok(cells) }
}

fn or_nothing(items: &[String]) -> String {
    if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }
}

/// A value; `large` stands for 200,000 bytes.
fn value_of(text: &str) -> Bytes {
    match text {
        "large" => Bytes::from(vec![b'l'; describe::LARGE_BYTES]),
        text => Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn before(now: WallTime, ago: Duration) -> WallTime {
    WallTime::from_micros_since_unix_epoch(now.micros_since_unix_epoch() - ago.as_micros() as u64)
}
