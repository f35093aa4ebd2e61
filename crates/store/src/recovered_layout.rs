//! A layout record of a new lineage in the directory of a stopped node.

use crate::directory;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::{layout_file, votes_file};
use cluster::{LayoutRecord, MemberState, NodeIndex};
use env::Env;
use std::path::Path;

/// Outcome of [`recover_layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredLayout {
    /// The record that the directory had before.
    pub former: LayoutRecord,
    /// The record that it has now.
    pub record: LayoutRecord,
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
/// which the members `lost` are dead. See [`LayoutRecord::recovered`].
///
/// # Errors
/// [`StoreError`] if the directory is in use, has no layout record or a damaged one, or belongs to
/// a lost member; if a lost member is no member; if the majority of the voters remains.
pub fn recover_layout(env: &Env, dir: &Path, lost: &[String]) -> Result<RecoveredLayout, StoreError> {
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
    let own = identity.membership.own;
    if let Some(own) = own.filter(|own| lost.contains(own)) {
        return Err(refused(format!("{own} is the node of this directory, so it is not lost")));
    }
    let record = former.recovered(lost_slots).map_err(|error| refused(error.to_string()))?;
    votes_file::begin_lineage(fs, dir, identity.tag, &record)?;
    layout_file::store(fs, dir, &record)?;
    Ok(RecoveredLayout { former, record })
}
