//! A layout record of a new lineage in the directory of a stopped node.
//!
//! **Promise.** A stop at any operation leaves the former record or the new one. Before the record
//! is replaced, the former files `layout` and `votes` are durable beside it, with the suffix
//! [`BEFORE_RECOVERY_SUFFIX`]. While no remaining node has started with the new record, the
//! operator undoes the recovery by renaming them back. The new record does not name a node that was
//! replaced as its only voter.
//!
//! **Caveats.** A recovery that was stopped midway and is repeated keeps the votes that the first
//! one has written. After it was undone, the node does not vote.

use crate::directory;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::layout_file::{self, LAYOUT_FILE};
use crate::sealed;
use crate::votes_file::{self, VOTES_FILE};
use cluster::{LayoutRecord, MemberState, NodeIndex};
use env::{Env, Fs};
use std::path::Path;
use stdx::NodeTag;

/// Suffix of the files that a recovery has replaced.
pub const BEFORE_RECOVERY_SUFFIX: &str = ".before-recovery";

/// Outcome of [`recover_layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredLayout {
    /// The record that the directory had before.
    pub former: LayoutRecord,
    /// The record that it has now, or would have.
    pub record: LayoutRecord,
    /// Names of the former files that are kept, without the suffix.
    pub kept: Vec<&'static str>,
}

/// Whether [`recover_layout`] changes the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recover {
    /// The record is replaced.
    Apply,
    /// Nothing is changed.
    DryRun,
}

impl RecoveredLayout {
    /// The members of the new record that are not lost.
    pub fn remaining(&self) -> impl Iterator<Item = &str> {
        let remaining = self.record.members.iter().filter(|member| member.state != MemberState::Dead);
        remaining.map(|member| member.url.as_str())
    }

    /// The voters of the new record.
    pub fn voters(&self) -> impl Iterator<Item = &str> {
        let url = |slot: &NodeIndex| self.record.member(*slot).map(|member| member.url.as_str());
        self.record.voters.iter().filter_map(url)
    }
}

/// Replaces the layout record in `dir`, which no process uses, by the first one of a new lineage in
/// which the members `lost` are dead. See [`LayoutRecord::recovered`]. A dry run only computes it.
///
/// # Errors
/// [`StoreError`] if the directory is in use, has no layout record or a damaged one, or belongs to
/// a lost member; if a lost member is no member; if the majority of the voters remains; if the
/// record names another node in the place of this one, and other members remain.
pub fn recover_layout(
    env: &Env,
    dir: &Path,
    lost: &[String],
    recover: Recover,
) -> Result<RecoveredLayout, StoreError> {
    let fs = &*env.fs;
    let _lock = directory::lock(fs, dir)?;
    let identity = Identity::load(fs, dir)?;
    let refused = |detail: String| StoreError::LayoutRefused { detail };
    let former = layout_file::find(fs, dir)?
        .ok_or_else(|| refused("the directory has none; start the node with this release once".to_owned()))?;
    let slot_of = |url: &String| {
        let member = former.members.iter().find(|member| member.url == *url);
        member.map(|member| member.slot).ok_or_else(|| refused(format!("{url} is no member of the cluster")))
    };
    let lost_slots = lost.iter().map(slot_of).collect::<Result<_, _>>()?;
    let own = layout_file::membership_of(&former, &identity).own;
    if let Some(own) = own.as_ref().filter(|own| lost.contains(own)) {
        return Err(refused(format!("{own} is the node of this directory, so it is not lost")));
    }
    let mut record = former.recovered(lost_slots).map_err(|error| refused(error.to_string()))?;
    if let Some(own) = own {
        name_last_node(&mut record, &own, identity.tag)?;
    }
    let mut kept = Vec::new();
    for name in [LAYOUT_FILE, VOTES_FILE] {
        let path = dir.join(name);
        if fs.exists(&path).map_err(StoreError::io("look for", &path))? {
            kept.push(name);
        }
    }
    if recover == Recover::Apply {
        kept.iter().try_for_each(|name| keep(fs, dir, name))?;
        votes_file::begin_lineage(fs, dir, identity.tag, &record)?;
        layout_file::store(fs, dir, &record)?;
    }
    Ok(RecoveredLayout { former, record, kept })
}

/// Names the node of this directory, which is reached at `own`, if the record names the one that it
/// has replaced. Only the last node can: the others would compute another record.
fn name_last_node(record: &mut LayoutRecord, own: &str, tag: NodeTag) -> Result<(), StoreError> {
    let others =
        record.members.iter().filter(|member| member.state != MemberState::Dead && member.url != own);
    let others: Vec<_> = others.map(|member| member.url.clone()).collect();
    let Some(member) = record.members.iter_mut().find(|member| member.url == own) else { return Ok(()) };
    if member.node_id.is_none_or(|named| named == tag) {
        return Ok(());
    }
    if !others.is_empty() {
        let detail = format!(
            "the record names another node in the place of this one, which has replaced it. Run the command on {}, and copy \
             the file {LAYOUT_FILE} from there into the other directories, or give all others as lost if the record names \
             none of the nodes that remain",
            others.join(" or ")
        );
        return Err(StoreError::LayoutRefused { detail });
    }
    member.node_id = Some(tag);
    Ok(())
}

/// Copies the file `name` durably to the one that keeps it.
fn keep(fs: &dyn Fs, dir: &Path, name: &str) -> Result<(), StoreError> {
    let bytes = sealed::read(fs, &dir.join(name))?;
    sealed::replace_bytes(fs, dir, &format!("{name}{BEFORE_RECOVERY_SUFFIX}"), &bytes)
}
