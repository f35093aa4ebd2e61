//! Plays the commands of a conversation, and shows the occurrences that follow.

use crate::describe;
use crate::names::Names;
use crate::parse::{self, Arguments};
use crate::world::{MILLISECOND, Occurrence, Packet, SECOND, Store, World};
use cluster::{RequestId, ScanId};
use goldenscript::{Command, Context, Runner};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

/// Time after a reply within which messages that were sent before it arrive.
const AFTERMATH: Duration = Duration::from_millis(20);

/// A conversation.
pub(crate) struct Player {
    pub(crate) world: World,
    pub(crate) names: Names,
    /// Commands of clients, as they are shown.
    pub(crate) commands: BTreeMap<RequestId, String>,
    /// Disks that were copied, by name.
    pub(crate) copies: BTreeMap<String, Store>,
    /// Scans by their names, with the host of each. A scan without a name has an empty one.
    pub(crate) scans: BTreeMap<String, (usize, ScanId)>,
    pub(crate) scan_count: u64,
    pub(crate) tables: u64,
}

impl Default for Player {
    fn default() -> Self {
        Self {
            world: World::of_processes(1, 1),
            names: Names::default(),
            commands: BTreeMap::new(),
            copies: BTreeMap::new(),
            scans: BTreeMap::new(),
            scan_count: 0,
            tables: 0,
        }
    }
}

impl Runner for Player {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut arguments = Arguments::of(command);
        let looks = self.play(&command.name, &mut arguments)?;
        arguments.end()?;
        let mut shown = self.occurrences();
        shown.extend(looks);
        Ok(shown.join("\n"))
    }
}

impl Player {
    /// Replaces the world by a cluster.
    fn cluster(&mut self, arguments: &mut Arguments) -> Result<(), String> {
        let nodes = arguments.next("the number of nodes")?;
        let nodes: usize = nodes.parse().map_err(|_| format!("{nodes} is no number"))?;
        *self = Self { world: World::of_processes(nodes, 1), ..Self::default() };
        let world = &mut self.world;
        if let Some(from) = arguments.number("from")? {
            world.limits.default_from = from;
        }
        world.coordinator_limits.reads_for_one_of_all = u32::from(arguments.takes("ask-all"));
        let limits = &mut world.coordinator_limits;
        limits.operations_max = arguments.number("operations")?.unwrap_or(limits.operations_max);
        limits.replied_max = arguments.number("replied")?.unwrap_or(limits.replied_max);
        limits.peer_requests_max = arguments.number("requests")?.unwrap_or(limits.peer_requests_max);
        if let Some(timeout) = arguments.named("timeout") {
            limits.request_timeout = parse::duration(&timeout)?;
        }
        world.hint_bytes_max = arguments.number("hint-bytes")?.unwrap_or(world.hint_bytes_max);
        if let Some(age) = arguments.named("hint-age") {
            world.limits.hint_age_max = parse::duration(&age)?;
        }
        world.limits.new_cluster = arguments.takes("new");
        if !arguments.takes("stopped") {
            world.start_all();
        }
        world.begin_log();
        Ok(())
    }

    fn play(&mut self, name: &str, arguments: &mut Arguments) -> Result<Vec<String>, String> {
        let mut shown = Vec::new();
        match name {
            "cluster" => self.cluster(arguments)?,
            "place" => {
                let (key, hosts) = (arguments.next("a key")?, arguments.nodes()?);
                self.names.place(&self.world, &key, &hosts)?;
            }
            "decide" => shown.push(self.decide(arguments)?),
            "fenced" => shown.extend(self.show_fenced(arguments)?),
            "learn" => arguments.nodes()?.into_iter().for_each(|host| self.world.learn(host)),
            "tick" => {
                let duration = arguments.duration()?;
                self.world.run(duration);
            }
            "await" => shown.push(self.await_state(arguments)?),
            "seed" => self.seed(arguments)?,
            "cells" => shown.extend(self.show_cells(arguments)?),
            "hints" => shown.extend(self.show_hints(arguments)?),
            "record" => shown.extend(self.show_records(arguments)?),
            "links" => shown.extend(self.show_links(arguments)?),
            "snapshots" => shown.extend(self.show_snapshots(arguments)?),
            "begin" => {
                let name = arguments.next("a command")?;
                self.submit(&name, arguments)?;
            }
            "put" | "get" | "delete" | "scan" | "next" => {
                let id = self.submit(name, arguments)?;
                self.finish(id);
            }
            "close" => self.close_scan(arguments)?,
            _ => self.strike(name, arguments)?,
        }
        Ok(shown)
    }

    /// Runs until a command has its reply and the messages that were sent before have arrived.
    fn finish(&mut self, id: RequestId) {
        self.world.try_run_until(2 * SECOND, |world| world.replies.contains_key(&id));
        self.settle();
    }

    /// Runs until the messages that are under way have arrived, unless they are delayed.
    pub(crate) fn settle(&mut self) {
        let end = self.world.now + AFTERMATH;
        while self.world.in_flight().any(Packet::is_foreground) && self.world.now < end {
            self.world.run(MILLISECOND / 10);
        }
    }

    /// The occurrences since the last call, as lines.
    pub(crate) fn occurrences(&mut self) -> Vec<String> {
        let occurrences: Vec<Occurrence> = self.world.log.as_mut().map(std::mem::take).unwrap_or_default();
        occurrences.iter().filter_map(|occurrence| describe::occurrence(self, occurrence)).collect()
    }
}
