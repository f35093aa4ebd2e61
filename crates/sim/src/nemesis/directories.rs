//! Disks and data directories that lose a part of their data.
//!
//! Each of these faults makes a node hold less than it has acknowledged, as a lost disk does. The
//! next one begins when the node has recovered. A node that refuses to start on such a directory
//! has kept its promise. Its operator then follows the manual and gives it an empty directory.

use super::Nemesis;
use super::fault_end::FaultEnd;
use crate::Nanos;
use crate::host::EndCause;
use crate::scenario::FaultKind;
use crate::world::{World, WorldEvent};
use cluster::{LayoutRecord, NodeIndex, PeerState, SyncState};
use env::{Env, Fs, MemFs, OpenMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::AfterRestore;

/// Data directory of every host, on its own disk.
const DATA: &str = "/data";
/// Directory of the engine, in the data directory.
pub(super) const SHARD: &str = "/data/shard-000";
/// A changed node counts as recovered when it has been settled for this long, with links to all
/// peers.
const RECOVERED_AFTER: Duration = Duration::from_secs(3);
/// Delay between the steps that prepare a fault.
const NEXT_STEP: Duration = Duration::from_secs(2);

/// State that these faults share.
#[derive(Debug, Default)]
pub(crate) struct ChangeState {
    /// Node whose wall clock is wrong.
    pub(super) stepped: Option<NodeIndex>,
    /// Node whose wall clock was set right last, and when.
    pub(super) corrected: Option<(NodeIndex, Nanos)>,
    /// Nodes whose directories hold less than they acknowledged, and since when they seem
    /// recovered.
    changed: BTreeMap<NodeIndex, Option<Nanos>>,
    /// Peers that know what a directory lacks: those linked with the lost generation, for each node
    /// whose directory was rolled back, and those that admitted the copy of a node.
    witnesses: BTreeMap<NodeIndex, BTreeSet<NodeIndex>>,
    /// Earlier states of disks, with their generations.
    earlier: BTreeMap<NodeIndex, EarlierState>,
    /// A prepared fault and its node.
    prepared: Option<(FaultKind, NodeIndex)>,
    /// Backups of single nodes.
    backups: BTreeMap<NodeIndex, Backup>,
    /// Backups of all nodes, and the time at which the first of them began.
    cluster_backup: Option<(Nanos, Vec<Backup>)>,
}

/// Files of a checkpoint, by their paths on the disk of the node.
type Backup = Vec<(PathBuf, Vec<u8>)>;

struct EarlierState {
    generation: u64,
    disk: MemFs,
}

impl std::fmt::Debug for EarlierState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlierState").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl ChangeState {
    /// Whether the directory of this node may hold less than the node acknowledged.
    pub(super) fn is_changed(&self, node: NodeIndex) -> bool {
        self.changed.contains_key(&node)
    }

    /// Takes the prepared fault, which is injected next.
    pub(super) const fn take_prepared(&mut self) -> Option<(FaultKind, NodeIndex)> {
        self.prepared.take()
    }

    /// Whether the directory of any node may hold less than the node acknowledged.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}

impl Nemesis {
    pub(super) fn note_change(&mut self, node: NodeIndex) {
        self.disks_lost += 1;
        self.changes.changed.insert(node, None);
    }
}

impl World {
    /// Forgets the changes of nodes that have recovered.
    pub(super) fn forget_recovered(&mut self) {
        let now = self.now;
        let changed: Vec<NodeIndex> = self.nemesis.changes.changed.keys().copied().collect();
        for node in changed {
            let is_recovered = self.is_recovered(node);
            let since = self.nemesis.changes.changed.get_mut(&node).expect("the key was just listed");
            *since = since.or(Some(now)).filter(|_| is_recovered);
            if since.is_some_and(|since| now - since >= RECOVERED_AFTER) {
                self.nemesis.changes.changed.remove(&node);
                self.nemesis.changes.witnesses.remove(&node);
            }
        }
    }

    fn is_recovered(&mut self, node: NodeIndex) -> bool {
        if self.has_copy(node) {
            return false;
        }
        let Some(process) = self.host(node).process.as_ref() else { return false };
        let status = process.node.status();
        let is_linked = |(peer, state): (usize, PeerState)| peer == node.as_usize() || state == PeerState::Up;
        let states = status.peers.iter().map(|peer| peer.state).enumerate();
        status.sync_state == SyncState::Settled && status.ready && states.into_iter().all(is_linked)
    }

    /// Loses two disks at once, in a run in which acknowledged writes survive that. In a cluster of
    /// three the third node is down meanwhile.
    pub(super) fn lose_two_disks(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        let nodes = self.scenario.nodes;
        let next = |steps: u8| NodeIndex((node.0 + steps) % nodes);
        if nodes == 3 {
            self.end_process(next(2), EndCause::Kill, Some(down * 2));
        }
        for node in [node, next(1)] {
            let down = self.nemesis.up_to(down);
            self.end_process(node, EndCause::PowerLoss, Some(down));
            self.replace_disk(node);
        }
    }

    /// Restores a directory to its state in an earlier generation of its node.
    ///
    /// If no earlier state is kept, this keeps one and prepares the fault again. If the node is
    /// still in the generation of that state, this ends that process first.
    pub(super) fn roll_back(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        let generation = self.host(node).generation;
        let Some(earlier) = self.nemesis.changes.earlier.get(&node) else {
            let disk = self.host(node).disk.kill();
            self.nemesis.changes.earlier.insert(node, EarlierState { generation, disk });
            return self.prepare_fault(FaultKind::RollBack, node);
        };
        if earlier.generation == generation {
            self.end_process(node, EndCause::Kill, Some(down / 4));
            return self.prepare_fault(FaultKind::RollBack, node);
        }
        let disk = earlier.disk.kill();
        let witnesses = self.peers_that_remember(node);
        if witnesses.is_empty() {
            return self.prepare_fault(FaultKind::RollBack, node);
        }
        self.nemesis.changes.witnesses.insert(node, witnesses);
        self.trace
            .note(self.now, || format!("the directory of {node:?} is rolled back to an earlier generation"));
        self.nemesis.changes.earlier.remove(&node);
        self.change_directory(node, down, |_| Ok(disk));
    }

    /// Peers that remember the running process of a node durably. A peer that is linked with it may
    /// not have stored that yet, and forgets it in a power loss.
    fn peers_that_remember(&mut self, node: NodeIndex) -> BTreeSet<NodeIndex> {
        let remembered_by = |world: &mut Self, by: NodeIndex| {
            let process = world.host(by).process.as_ref()?;
            process.node.status().peers[node.as_usize()].remembered
        };
        let Some(current) = remembered_by(self, node) else { return BTreeSet::new() };
        let peers = self.nodes().filter(|peer| *peer != node);
        peers.filter(|peer| remembered_by(self, *peer) == Some(current)).collect()
    }

    /// Notes the peers that have admitted the copy of a node.
    ///
    /// Call this before a process ends, since a peer keeps what it knows, and at a node's start.
    pub(crate) fn note_copy_witnesses(&mut self) {
        let copy = self.copy();
        let Some(process) = self.host(copy).process.as_ref() else { return };
        let (states, original) = (process.node.status().peers, self.member_of(copy));
        // A peer that admits the copy answers it, also while it does not reach the node's address.
        let is_admitting = |peer: &NodeIndex| states[peer.as_usize()].state == PeerState::Up;
        let admitting: Vec<_> = self.nodes().filter(|peer| *peer != original).filter(is_admitting).collect();
        if !admitting.is_empty() {
            self.nemesis.changes.witnesses.entry(original).or_default().extend(admitting);
        }
    }

    /// Whether a node may start.
    ///
    /// A node whose directory was rolled back, or whose peers admitted its copy, must learn that
    /// from a peer that knows. So it starts only when it reaches such a peer, and no fault begins
    /// for a moment then. A peer that starts while the address of a running node leads to its copy
    /// would admit the copy, and the node would not know yet. So it starts later.
    pub(crate) fn may_start(&mut self, node: NodeIndex) -> bool {
        self.note_copy_witnesses();
        if self.would_reach_copy(node) && !self.nemesis.is_over {
            return false;
        }
        let witnesses = self.nemesis.changes.witnesses.get(&node).cloned().unwrap_or_default();
        if witnesses.is_empty() || self.nemesis.is_over {
            return true;
        }
        let may_start = witnesses.into_iter().any(|peer| {
            let host = self.host(peer);
            let runs = host.process.is_some() && host.paused.is_none();
            runs && self.network.is_clear(node, peer)
        });
        if may_start {
            self.pause_faults_for(Duration::ZERO);
        }
        may_start
    }

    /// Removes some of the files of a directory.
    pub(super) fn lose_files(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        if !self.mark_log(node) {
            return self.postpone_fault();
        }
        let which = self.nemesis.rng.below(6);
        let of_agreement = self.draw_agreement_loss();
        self.trace.note(self.now, || format!("{node:?} loses files, case {which}, or {of_agreement:?}"));
        self.change_directory(node, down, |disk| {
            if let Some(loss) = of_agreement {
                loss.apply(&disk)?;
                return Ok(disk);
            }
            let files: Vec<PathBuf> =
                disk.file_names().into_iter().filter(|path| path.starts_with(SHARD)).collect();
            let name_has = |path: &Path, part: &str| path.to_string_lossy().contains(part);
            let newest_log = files.iter().filter(|path| name_has(path, ".wal")).max().cloned();
            let lost: Vec<PathBuf> = match which {
                0 | 1 => files,
                2 => files.into_iter().filter(|path| name_has(path, "CURRENT")).collect(),
                3 => files.into_iter().filter(|path| name_has(path, ".sst")).collect(),
                4 => files.into_iter().filter(|path| name_has(path, ".wal")).collect(),
                _ => newest_log.into_iter().collect(),
            };
            remove_files(&disk, &lost)?;
            if which == 1 {
                remove_dirs(&disk, Path::new(SHARD))?;
            }
            Ok(disk)
        });
    }

    /// Removes the votes of a voter.
    pub(super) fn lose_votes(&mut self, node: NodeIndex, down: Duration) {
        self.change_directory(node, down, |disk| {
            AgreementLoss { file: store::VOTES_FILE, flips: None }.apply(&disk)?;
            Ok(disk)
        });
    }

    /// Draws a loss of files of the agreement on layout records in place of files of the shard, in
    /// runs in which the layout changes.
    fn draw_agreement_loss(&mut self) -> Option<AgreementLoss> {
        self.scenario.dimensions.layout_changes()?;
        let rng = self.layout_rng();
        let (file, is_removed, at) = (rng.chance(0.7), rng.chance(0.5), rng.next_u64());
        let file = if file { store::VOTES_FILE } else { store::LAYOUT_FILE };
        rng.chance(0.5).then_some(AgreementLoss { file, flips: (!is_removed).then_some(at) })
    }

    /// Truncates the log of a node that is down, at any byte or where a group of records begins.
    pub(super) fn cut_log(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        if !self.mark_log(node) {
            return self.postpone_fault();
        }
        let (is_newest, at_group, at) =
            (self.nemesis.rng.chance(0.8), self.nemesis.rng.chance(0.5), self.nemesis.rng.next_u64());
        self.change_directory(node, down, |disk| {
            let mut logs: Vec<PathBuf> = disk
                .file_names()
                .into_iter()
                .filter(|path| path.extension().is_some_and(|e| e == "wal"))
                .collect();
            let index =
                if is_newest { logs.len().saturating_sub(1) } else { at as usize % logs.len().max(1) };
            if index < logs.len() {
                cut_file(&disk, &logs.swap_remove(index), at_group, at)?;
            }
            Ok(disk)
        });
    }

    /// Restores a node from a backup of its own, as an operator does who knows that the other nodes
    /// went on. If there is no backup, this makes one and prepares the fault again.
    pub(super) fn restore_node(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        let Some(backup) = self.nemesis.changes.backups.remove(&node) else {
            if let Some(backup) = self.back_up(node) {
                self.nemesis.changes.backups.insert(node, backup);
            }
            return self.prepare_fault(FaultKind::RestoreNode, node);
        };
        self.trace.note(self.now, || format!("{node:?} is restored from a backup"));
        self.restore_backup(node, down, backup, AfterRestore::Rebuild);
    }

    /// Restores all nodes together, each from its own backup. If there are no backups, this makes
    /// them and prepares the fault again.
    pub(super) fn restore_cluster(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        let Some((since, backups)) = self.nemesis.changes.cluster_backup.take() else {
            let backups: Option<Vec<Backup>> = self.nodes().map(|node| self.back_up(node)).collect();
            self.nemesis.changes.cluster_backup = backups.map(|backups| (self.now, backups));
            return self.prepare_fault(FaultKind::RestoreCluster, node);
        };
        self.trace.note(self.now, || format!("all nodes are restored as of {since}"));
        let all: Vec<NodeIndex> = self.nodes().collect();
        for node in &all {
            self.end_process(*node, EndCause::Kill, None);
        }
        let records: Vec<LayoutRecord> = backups.iter().filter_map(layout_in).collect();
        for (node, backup) in all.into_iter().zip(backups) {
            self.restore_backup(node, down, backup, AfterRestore::Keep);
            self.at(self.now + down, WorldEvent::Start(node));
        }
        self.judge.note_cluster_restore(since, self.now);
        self.judge.agreement.note_cluster_restore(&records);
    }

    fn restore_backup(&mut self, node: NodeIndex, down: Duration, backup: Backup, after: AfterRestore) {
        self.show_clocks(node);
        let clock = self.host(node).clock.shown();
        self.change_directory(node, down, |_| {
            let disk = MemFs::new();
            for (path, bytes) in backup {
                disk.write_file(path, &bytes)?;
            }
            let env = Env { fs: Arc::new(disk.clone()), clock };
            store::prepare_restored(&env, Path::new(DATA), after)
                .map_err(|error| io::Error::other(error.to_string()))?;
            Ok(disk)
        });
    }

    /// Files of a checkpoint of a node; `None` if none can be made now.
    fn back_up(&mut self, node: NodeIndex) -> Option<Backup> {
        self.show_clocks(node);
        let host = self.host(node);
        let process = host.process.as_ref().filter(|_| host.paused.is_none())?;
        let checkpoint = process.store.checkpoint().ok()?;
        let inside = |path: PathBuf| Some((path.strip_prefix(&checkpoint.path).ok()?.to_owned(), path));
        let read = |(inside, path): (PathBuf, PathBuf)| {
            Some((Path::new(DATA).join(inside), host.disk.read_file(path).ok()?))
        };
        let files = host.disk.file_names().into_iter().filter_map(inside).filter_map(read).collect();
        // A checkpoint that cannot be removed disappears with the next start.
        let _ = process.store.remove_checkpoint(&checkpoint.name);
        Some(files)
    }

    /// Starts a second process of a node on a copy of its present directory, at the address of the
    /// node or another one, and ends it later.
    pub(super) fn duplicate(&mut self, node: NodeIndex, lasts: Duration) {
        if self.has_lost_data() || self.host(node).generation == 0 || self.host(node).paused.is_some() {
            return self.postpone_fault();
        }
        let takes_address = self.nemesis.rng.chance(0.5);
        self.trace.note(self.now, || {
            format!("a second {node:?} starts on a copy of its directory, at its address: {takes_address}")
        });
        let disk = self.host(node).disk.kill();
        self.nemesis.note_change(node);
        self.start_copy(node, disk, takes_address);
        self.pause_faults_for(Duration::ZERO);
        self.after(lasts, WorldEvent::FaultEnd(FaultEnd::EndCopy(node)));
    }

    /// Ends the second process of a node, if it stands for this node. The node may lack writes that
    /// its copy acknowledged.
    pub(super) fn end_copy_of(&mut self, node: NodeIndex) {
        if self.member_of(self.copy()) == node {
            self.end_copy();
            self.nemesis.note_change(node);
        }
    }

    /// Ends the process of a node and replaces its disk.
    fn change_directory(
        &mut self,
        node: NodeIndex,
        down: Duration,
        change: impl FnOnce(MemFs) -> io::Result<MemFs>,
    ) {
        self.end_process(node, EndCause::PowerLoss, Some(down));
        let disk = self.host(node).disk.clone();
        self.host(node).disk = change(disk).expect("the disk is not in use and has space");
        self.judge.note_changed_directory(node);
        self.nemesis.note_change(node);
    }

    /// Lets a node that is about to lose a part of its log note how far the log is durable.
    ///
    /// The note of a node that ended unexpectedly is up to a second old. If only newer records are
    /// lost, the log looks as after a crash, and the loss is not promised to be detected. Returns
    /// `false` if the node does not run or cannot write the note.
    fn mark_log(&mut self, node: NodeIndex) -> bool {
        self.host(node).process.as_ref().is_some_and(|process| process.store.note_log_end().is_ok())
    }

    /// Prepares a fault of the same node, to be injected later.
    fn prepare_fault(&mut self, kind: FaultKind, node: NodeIndex) {
        self.nemesis.faults -= 1;
        self.nemesis.changes.prepared = Some((kind, node));
        self.after(NEXT_STEP, WorldEvent::Fault);
    }
}

/// A file of the agreement on layout records that is lost or damaged.
#[derive(Clone, Copy, Debug)]
struct AgreementLoss {
    file: &'static str,
    /// A number that chooses the bit that flips; `None`: the file is removed.
    flips: Option<u64>,
}

impl AgreementLoss {
    fn apply(self, disk: &MemFs) -> io::Result<()> {
        let path = Path::new(DATA).join(self.file);
        let Ok(bytes) = disk.read_file(&path) else { return Ok(()) };
        match self.flips {
            Some(at) => disk.corrupt(&path, at % (bytes.len() as u64).max(1), (at >> 32) as u8 % 8),
            None => remove_files(disk, &[path]),
        }
    }
}

/// The layout record in a backup.
fn layout_in(backup: &Backup) -> Option<LayoutRecord> {
    let (_, bytes) = backup.iter().find(|(path, _)| path.ends_with(store::LAYOUT_FILE))?;
    LayoutRecord::decode(bytes).ok()
}

fn remove_files(disk: &MemFs, files: &[PathBuf]) -> io::Result<()> {
    for file in files {
        disk.remove_file(file)?;
    }
    let dirs: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    dirs.into_iter().try_for_each(|dir| disk.sync_dir(dir))
}

fn remove_dirs(disk: &MemFs, dir: &Path) -> io::Result<()> {
    for name in disk.read_dir(dir)? {
        remove_dirs(disk, &dir.join(name))?;
    }
    disk.remove_dir(dir)?;
    disk.sync_dir(dir.parent().expect("the root directory is not removed"))
}

/// Truncates the used part of a log file; zeros at its end do not count.
fn cut_file(disk: &MemFs, path: &Path, at_group: bool, at: u64) -> io::Result<()> {
    const GROUP_MAGIC: &[u8] = b"vGRP";
    let bytes = disk.read_file(path)?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let groups: Vec<usize> = bytes
        .windows(GROUP_MAGIC.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == GROUP_MAGIC)
        .map(|(at, _)| at)
        .collect();
    let len = match groups.len() {
        0 => at % (used as u64 + 1),
        _ if !at_group => at % (used as u64 + 1),
        groups_len => groups[at as usize % groups_len] as u64,
    };
    let file = disk.open(path, OpenMode::ReadWrite)?;
    file.set_len(len)?;
    file.sync_data()
}
