//! The file `votes`: what the node has promised and accepted as a voter on layout records.
//!
//! **Promise.** A start finds every promise and every accepted record that an answer of this node
//! has reported, or it finds that votes are missing and the node does not vote. A stop at any
//! operation leaves the old or the new votes, whole. The newest decided record never becomes an
//! older one.
//!
//! **Mechanism.** The file has the votes for one epoch: the one after the node's newest decided
//! record, which is in the file `layout`. It names the tag of the identity that has voted and the
//! hash of the decided record, has a checksum, and is replaced like a [sealed file](crate::sealed).
//! [`VotesFile::persist`] first adopts the decided record and then stores the votes. Votes for an
//! epoch that was decided meanwhile are obsolete: there are none for the next one.
//!
//! A voter that forgets is as dangerous as one that lost its disk, and is treated like it:
//!
//! | the start finds | [`VoteHistory`] |
//! |---|---|
//! | a new directory, or one of an earlier release, which did not vote | complete |
//! | a directory restored together with its whole cluster | complete, without votes |
//! | votes by another tag: the data was lost or set aside, or the copy became another node | of this id |
//! | no file, a damaged one, or one that does not fit the file `layout` | incomplete |
//!
//! The only member of a cluster is an exception: its history is complete. It alone proposes and
//! votes, and it tells another node of a record only after it has adopted it.
//!
//! **Caveats.** A node with an incomplete history never votes again by its id. It serves its data,
//! adopts records and may propose. It votes after it was replaced by one with an empty directory
//! and a record has named the new id. An older state of a whole directory is not detected here, but
//! by the node's peers.

use crate::error::StoreError;
use crate::layout_file::LayoutFile;
use crate::sealed;
use cluster::{
    AcceptorState, ChainVote, Incarnation, LayoutEpoch, LayoutRecord, ProposalBallot, RecordHash,
    VoteHistory, VoterState,
};
use env::Fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use stdx::NodeTag;
use stdx::codec::{Reader, Truncated};

/// Name of the file.
pub const VOTES_FILE: &str = "votes";

const MAGIC: [u8; 8] = *b"vechevot";
/// Version of the format.
const FORMAT: u32 = 1;
/// Length of the checksum at the end.
const CHECKSUM_LEN: usize = 4;

const COMPLETE: u8 = 1;
const OF_THIS_ID: u8 = 2;
const INCOMPLETE: u8 = 3;

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredVotes {
    /// Tag of the identity that has voted.
    tag: NodeTag,
    /// The epoch that is voted on; 0 if there was no vote yet.
    epoch: LayoutEpoch,
    /// Hash of the decided record of the epoch before.
    parent: RecordHash,
    history: VoteHistory,
    promised: Option<ProposalBallot>,
    accepted: Option<ChainVote<Arc<LayoutRecord>>>,
}

impl StoredVotes {
    const fn none(tag: NodeTag, history: VoteHistory) -> Self {
        Self { tag, epoch: LayoutEpoch(0), parent: RecordHash::NONE, history, promised: None, accepted: None }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.tag.0.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.parent.0);
        out.push(match self.history {
            VoteHistory::Complete => COMPLETE,
            VoteHistory::OfThisId => OF_THIS_ID,
            VoteHistory::Incomplete => INCOMPLETE,
        });
        out.push(u8::from(self.promised.is_some()));
        if let Some(promised) = &self.promised {
            put_ballot(&mut out, promised);
        }
        out.push(u8::from(self.accepted.is_some()));
        if let Some(ChainVote { ballot, record }) = &self.accepted {
            put_ballot(&mut out, ballot);
            let record = record.encode();
            out.extend_from_slice(&(record.len() as u32).to_le_bytes());
            out.extend_from_slice(&record);
        }
        let checksum = crc_fast::crc32_iscsi(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Inverse of [`StoredVotes::encode`]; the error describes the defect.
    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (content, checksum) =
            bytes.split_last_chunk::<CHECKSUM_LEN>().ok_or("it is shorter than its checksum")?;
        let mut reader = Reader::new(content);
        if reader.array().ok() != Some(MAGIC) {
            return Err("it does not begin like a file of votes".to_owned());
        }
        if crc_fast::crc32_iscsi(content).to_le_bytes() != *checksum {
            return Err("its checksum does not match".to_owned());
        }
        let format = reader.u32().map_err(cut_short)?;
        if format != FORMAT {
            return Err(format!("it has format {format}, and this release reads format {FORMAT}"));
        }
        let votes = decode_fields(&mut reader)?;
        match reader.is_empty() {
            true => Ok(votes),
            false => Err("bytes follow its content".to_owned()),
        }
    }

    fn store(&self, fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
        sealed::replace_bytes(fs, dir, VOTES_FILE, &self.encode())
    }
}

fn put_ballot(out: &mut Vec<u8>, ballot: &ProposalBallot) {
    out.extend_from_slice(&ballot.round.to_le_bytes());
    out.extend_from_slice(&ballot.proposer.0.to_le_bytes());
    out.extend_from_slice(&ballot.incarnation.0.to_le_bytes());
}

fn cut_short(Truncated: Truncated) -> String {
    "it is cut short".to_owned()
}

fn decode_fields(reader: &mut Reader<'_>) -> Result<StoredVotes, String> {
    let tag = NodeTag(reader.u64().map_err(cut_short)?);
    let epoch = LayoutEpoch(reader.u64().map_err(cut_short)?);
    let parent = RecordHash(reader.array().map_err(cut_short)?);
    let history = match reader.u8().map_err(cut_short)? {
        COMPLETE => VoteHistory::Complete,
        OF_THIS_ID => VoteHistory::OfThisId,
        INCOMPLETE => VoteHistory::Incomplete,
        other => return Err(format!("{other} is no history of votes")),
    };
    let promised = is_present(reader)?.then(|| ballot(reader)).transpose()?;
    let accepted = is_present(reader)?.then(|| vote(reader)).transpose()?;
    Ok(StoredVotes { tag, epoch, parent, history, promised, accepted })
}

fn is_present(reader: &mut Reader<'_>) -> Result<bool, String> {
    match reader.u8().map_err(cut_short)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("{other} is neither 0 nor 1")),
    }
}

fn ballot(reader: &mut Reader<'_>) -> Result<ProposalBallot, String> {
    let round = reader.u64().map_err(cut_short)?;
    let proposer = NodeTag(reader.u64().map_err(cut_short)?);
    let incarnation = Incarnation(reader.u64().map_err(cut_short)?);
    Ok(ProposalBallot { round, proposer, incarnation })
}

fn vote(reader: &mut Reader<'_>) -> Result<ChainVote<Arc<LayoutRecord>>, String> {
    let ballot = ballot(reader)?;
    let len = reader.u32().map_err(cut_short)? as usize;
    let record = LayoutRecord::decode(reader.bytes(len).map_err(cut_short)?)
        .map_err(|error| format!("its accepted record cannot be read: {error}"))?;
    Ok(ChainVote { ballot, record: Arc::new(record) })
}

/// Loads the votes in `dir`. `None`: there is no file.
///
/// # Errors
/// [`StoreError::VotesCorrupt`], [`StoreError::Io`].
pub(crate) fn find(fs: &dyn Fs, dir: &Path) -> Result<Option<StoredVotes>, StoreError> {
    let path = dir.join(VOTES_FILE);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(None);
    }
    let bytes = sealed::read(fs, &path)?;
    StoredVotes::decode(&bytes).map(Some).map_err(|detail| StoreError::VotesCorrupt { path, detail })
}

/// As [`find`], for a start: votes that cannot be read are missing ones.
pub(crate) fn find_readable(fs: &dyn Fs, dir: &Path) -> Result<Option<StoredVotes>, StoreError> {
    match find(fs, dir) {
        Err(error @ StoreError::VotesCorrupt { .. }) => {
            tracing::error!(%error, "the votes of this node are lost");
            Ok(None)
        }
        found => found,
    }
}

/// Stores durably that the node with this tag has not voted, and whether others in its slot may
/// have.
pub(crate) fn create(
    fs: &dyn Fs,
    dir: &Path,
    tag: NodeTag,
    history: VoteHistory,
) -> Result<StoredVotes, StoreError> {
    let votes = StoredVotes::none(tag, history);
    votes.store(fs, dir)?;
    Ok(votes)
}

/// The votes of an open data directory.
pub(crate) struct VotesFile {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    tag: NodeTag,
    /// The votes that a start would find.
    stored: Mutex<StoredVotes>,
}

impl VotesFile {
    /// Judges the votes that were `found` beside `layout`, for the identity with this tag. Returns
    /// the state with which the node votes.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        dir: &Path,
        tag: NodeTag,
        found: Option<StoredVotes>,
        layout: Arc<LayoutRecord>,
    ) -> (Self, VoterState) {
        let stored = votes_on_next(found, tag, &layout);
        let StoredVotes { history, promised, accepted, .. } = stored.clone();
        let state = VoterState { history, acceptor: AcceptorState { decided: layout, promised, accepted } };
        (Self { fs, dir: dir.to_owned(), tag, stored: Mutex::new(stored) }, state)
    }

    /// Makes `state` durable. See [`Store::persist_voter`](crate::Store::persist_voter).
    pub(crate) fn persist(&self, layout: &LayoutFile, state: &VoterState) -> Result<(), StoreError> {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let AcceptorState { decided, promised, accepted } = &state.acceptor;
        let current = layout.current();
        if decided.epoch > current.epoch {
            layout.adopt(Arc::clone(decided))?;
            // The votes of the epoch before are obsolete from here on.
            *stored = StoredVotes::none(self.tag, stored.history);
        } else if *decided != current {
            let detail = format!("epoch {} is decided, and the state has another one", current.epoch);
            return Err(StoreError::LayoutRefused { detail });
        }
        assert!(*promised >= stored.promised, "a voter keeps its promise");
        if (state.history, promised, accepted) == (stored.history, &stored.promised, &stored.accepted) {
            return Ok(());
        }
        let votes = StoredVotes {
            tag: self.tag,
            epoch: decided.epoch.next().unwrap_or(decided.epoch),
            parent: decided.hash(),
            history: state.history,
            promised: *promised,
            accepted: accepted.clone(),
        };
        votes.store(&*self.fs, &self.dir)?;
        *stored = votes;
        Ok(())
    }
}

/// The votes of the node with this tag on the record after `layout`.
fn votes_on_next(found: Option<StoredVotes>, tag: NodeTag, layout: &LayoutRecord) -> StoredVotes {
    let is_alone = layout.members.len() == 1;
    let none = |history| StoredVotes::none(tag, if is_alone { VoteHistory::Complete } else { history });
    let Some(found) = found else { return none(VoteHistory::Incomplete) };
    if found.tag != tag {
        return none(VoteHistory::OfThisId);
    }
    if found.epoch <= layout.epoch {
        return none(found.history);
    }
    if Some(found.epoch) == layout.epoch.next() && found.parent == layout.hash() {
        return found;
    }
    tracing::error!(
        votes = found.epoch.0,
        layout = layout.epoch.0,
        "the votes of this node do not follow its layout record, so it does not vote; copy the file layout from another \
         node of the cluster and start this one again"
    );
    none(VoteHistory::Incomplete)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterOrigin;
    use proptest::prelude::*;

    const TAG: NodeTag = NodeTag(0x0102_0304_0506_0708);

    fn first(nodes: usize) -> LayoutRecord {
        let nodes = (0..nodes).map(|node| format!("http://n{node}:1")).collect();
        LayoutRecord::first(ClusterOrigin {
            nodes,
            partitions: 4,
            hash_version: 1,
            default_from: 1,
            tag: TAG,
        })
        .expect("a cluster")
    }

    fn child(parent: &LayoutRecord) -> LayoutRecord {
        LayoutRecord { epoch: parent.epoch.next().expect("small"), parent: parent.hash(), ..parent.clone() }
    }

    fn ballot(round: u64) -> ProposalBallot {
        ProposalBallot {
            round,
            proposer: NodeTag(0x1112_1314_1516_1718),
            incarnation: Incarnation(0x2122_2324_2526_2728),
        }
    }

    fn voted(parent: &LayoutRecord) -> StoredVotes {
        StoredVotes {
            tag: TAG,
            epoch: parent.epoch.next().expect("small"),
            parent: parent.hash(),
            history: VoteHistory::Complete,
            promised: Some(ballot(0x31)),
            accepted: Some(ChainVote { ballot: ballot(0x30), record: Arc::new(child(parent)) }),
        }
    }

    /// Every release must read these bytes.
    #[test]
    fn the_file_format_is_stable() {
        let none = |history| StoredVotes::none(TAG, history);
        let promised = StoredVotes { accepted: None, ..voted(&first(2)) };
        let files = [
            (voted(&first(2)), &include_bytes!("../tests/formats/votes-v1.bin")[..]),
            (promised, include_bytes!("../tests/formats/votes-v1-promise.bin")),
            (none(VoteHistory::OfThisId), include_bytes!("../tests/formats/votes-v1-of-this-id.bin")),
            (none(VoteHistory::Incomplete), include_bytes!("../tests/formats/votes-v1-incomplete.bin")),
        ];
        for (votes, bytes) in files {
            assert_eq!(StoredVotes::decode(bytes).as_ref(), Ok(&votes));
            assert_eq!(votes.encode(), bytes);
        }
    }

    #[test]
    fn damage_is_found() {
        sealed::assert_finds_damage(&voted(&first(2)).encode(), StoredVotes::decode);
    }

    #[test]
    fn votes_count_for_their_tag_and_the_epoch_after_the_decided_record() {
        let (epoch_1, epoch_2) = (first(2), child(&first(2)));
        let on_2 = Some(voted(&epoch_1));
        assert_eq!(Some(votes_on_next(on_2.clone(), TAG, &epoch_1)), on_2);
        let none = |history| StoredVotes::none(TAG, history);
        assert_eq!(votes_on_next(on_2.clone(), TAG, &epoch_2), none(VoteHistory::Complete), "obsolete");
        let other = LayoutRecord { default_from: 2, ..epoch_1.clone() };
        assert_eq!(votes_on_next(on_2.clone(), TAG, &other), none(VoteHistory::Incomplete), "another record");
        let on_3 = Some(voted(&epoch_2));
        assert_eq!(votes_on_next(on_3, TAG, &epoch_1), none(VoteHistory::Incomplete), "an older record");
        assert_eq!(votes_on_next(None, TAG, &epoch_1), none(VoteHistory::Incomplete), "no file");
        let of_other = votes_on_next(on_2, NodeTag(9), &epoch_1);
        assert_eq!(of_other, StoredVotes::none(NodeTag(9), VoteHistory::OfThisId), "another identity");
    }

    #[test]
    fn the_only_member_of_a_cluster_needs_no_earlier_votes() {
        assert_eq!(votes_on_next(None, TAG, &first(1)), StoredVotes::none(TAG, VoteHistory::Complete));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(bytes: Vec<u8>) {
            prop_assert!(StoredVotes::decode(&bytes).is_err());
        }
    }
}
