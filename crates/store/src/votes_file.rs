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
//! | a layout record that was recovered as a new lineage, in which no node has voted | complete |
//!
//! A node whose record says that it is being rebuilt knows at most the votes of its id.
//!
//! **Another epoch 1.** Epoch 1 is not voted on: each node builds it from its settings. If the file
//! `layout` was removed because `default_from` differed from that of the other nodes, the votes on
//! epoch 2 name another parent than the new record. They are kept in part:
//!
//! * The promise stays. It is a ballot for an epoch with any parent, and a voter may always ignore
//!   more ballots than it has to.
//! * The accepted record R is dropped. The voters of the other nodes refuse R, which is no child of
//!   their record. If a promise still reported R, a proposer would have to propose it and never
//!   decide a record.
//!
//! Dropping R is safe while one of the voters has never used the former settings. A voter accepts
//! only children of the record that it holds, and epoch 2 needs the votes of all voters. So R was
//! decided only if all of them were started with the former settings. If the operator changes the
//! settings after a record was decided, he discards the decision, as by removing a file `layout`
//! with a decided record. A node that has adopted R reports the conflict and adopts no record of
//! the others. From epoch 2 on two parents are a contradiction, and the votes are lost.
//!
//! The only member of a cluster is an exception: its history is complete. It alone proposes and
//! votes, and it tells another node of a record only after it has adopted it.
//!
//! **Caveats.** Once a record names the id of a node with an incomplete history, the node does not
//! vote any more. It serves its data, adopts records and may propose. It votes after it was
//! replaced by one with an empty directory and a record has named the new id. An older state of a
//! whole directory is not detected here, but by the node's peers.

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

const ADVICE_TO_REPLACE: &str = "so this node does not know its votes on layout records and does not vote: it serves its data, \
     and votes again after it was replaced by a node with an empty directory";

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
    if round > ProposalBallot::ROUND_MAX {
        return Err(format!("{round} is no round of a ballot"));
    }
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

/// Reads the bytes of a file of votes, and encodes what they hold.
///
/// # Errors
/// A description of the defect.
#[cfg(feature = "internals")]
pub fn encode_votes_again(bytes: &[u8]) -> Result<Vec<u8>, String> {
    StoredVotes::decode(bytes).map(|votes| votes.encode())
}

/// The votes that a start has found in its data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VotesFound {
    /// The votes of the directory, or those of another identity, which the node does not give
    /// again.
    Present,
    /// None, and none were lost: the directory is new, was last used by a release that did not
    /// vote, or is a copy. A node on its own needs none.
    NeverWritten,
    /// The votes are lost, so the node does not vote.
    Lost {
        /// A sentence for operators.
        sentence: String,
    },
}

/// The file of votes, before it is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadVotes {
    /// Its content.
    Stored(StoredVotes),
    /// The file does not exist.
    Missing,
    /// The file cannot be read.
    Damaged {
        /// The defect.
        detail: String,
    },
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

/// As [`find`], for a start, which damaged votes do not prevent.
pub(crate) fn read(fs: &dyn Fs, dir: &Path) -> Result<ReadVotes, StoreError> {
    match find(fs, dir) {
        Ok(Some(votes)) => Ok(ReadVotes::Stored(votes)),
        Ok(None) => Ok(ReadVotes::Missing),
        Err(StoreError::VotesCorrupt { detail, .. }) => Ok(ReadVotes::Damaged { detail }),
        Err(error) => Err(error),
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

/// Stores durably that no node has voted in the lineage that begins with `layout`. The history of
/// the lineage before does not count: see [`LayoutRecord::recovered`].
///
/// The caller stores `layout` afterwards. A stop in between leaves votes that do not follow the
/// layout record of the directory, so the node does not vote in the lineage before.
pub(crate) fn begin_lineage(
    fs: &dyn Fs,
    dir: &Path,
    tag: NodeTag,
    layout: &LayoutRecord,
) -> Result<(), StoreError> {
    let epoch = layout.epoch.next().unwrap_or(layout.epoch);
    let none = StoredVotes::none(tag, VoteHistory::Complete);
    StoredVotes { epoch, parent: layout.hash(), ..none }.store(fs, dir)
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
    /// Judges the votes that were `read` beside `layout`, for the identity with this tag. Returns
    /// the state with which the node votes. If the history is `at_best` a less complete one, this
    /// is durable. So is the loss of the file: without it, a later start could take the directory
    /// for one that has not voted.
    ///
    /// # Errors
    /// The refusal of the operating system.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        dir: &Path,
        tag: NodeTag,
        read: ReadVotes,
        (layout, at_best): (Arc<LayoutRecord>, VoteHistory),
    ) -> Result<(Self, VoterState, VotesFound), StoreError> {
        let is_file_lost = !matches!(read, ReadVotes::Stored(_));
        let (mut stored, found) = votes_on_next(read, tag, &layout);
        let is_news = is_file_lost && matches!(found, VotesFound::Lost { .. });
        if stored.history < at_best || is_news {
            stored.history = stored.history.max(at_best);
            stored.store(&*fs, dir)?;
        }
        let StoredVotes { history, promised, accepted, .. } = stored.clone();
        let state = VoterState { history, acceptor: AcceptorState { decided: layout, promised, accepted } };
        Ok((Self { fs, dir: dir.to_owned(), tag, stored: Mutex::new(stored) }, state, found))
    }

    /// Makes `state` durable. See [`Store::persist_voter`](crate::Store::persist_voter).
    pub(crate) fn persist(&self, layout: &LayoutFile, state: &VoterState) -> Result<(), StoreError> {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let AcceptorState { decided, promised, accepted } = &state.acceptor;
        let current = layout.current();
        if decided.epoch > current.epoch {
            layout.adopt(Arc::clone(decided))?;
        } else if *decided != current {
            let detail = format!("epoch {} is decided, and the state has another one", current.epoch);
            return Err(StoreError::LayoutRefused { detail });
        }
        if stored.epoch <= decided.epoch {
            // The votes on a record that is decided are obsolete.
            *stored = StoredVotes::none(self.tag, stored.history);
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
fn votes_on_next(read: ReadVotes, tag: NodeTag, layout: &LayoutRecord) -> (StoredVotes, VotesFound) {
    let is_alone = layout.members.len() == 1;
    let none = |history| StoredVotes::none(tag, if is_alone { VoteHistory::Complete } else { history });
    let lost = |sentence: String| match is_alone {
        true => (none(VoteHistory::Complete), VotesFound::NeverWritten),
        false => (none(VoteHistory::Incomplete), VotesFound::Lost { sentence }),
    };
    let found = match read {
        ReadVotes::Stored(found) => found,
        ReadVotes::Missing => return lost(format!("the file {VOTES_FILE} is missing, {ADVICE_TO_REPLACE}")),
        ReadVotes::Damaged { detail } => {
            return lost(format!("the file {VOTES_FILE} is damaged ({detail}), {ADVICE_TO_REPLACE}"));
        }
    };
    if found.tag != tag {
        return (none(VoteHistory::OfThisId), VotesFound::Present);
    }
    if found.epoch <= layout.epoch {
        return (none(found.history), VotesFound::Present);
    }
    let is_on_next = Some(found.epoch) == layout.epoch.next();
    if is_on_next && found.parent == layout.hash() {
        return (found, VotesFound::Present);
    }
    if is_on_next && layout.epoch == LayoutEpoch::FIRST {
        let kept = StoredVotes { parent: layout.hash(), accepted: None, ..found };
        return (kept, VotesFound::Present);
    }
    lost(format!(
        "the votes of this node on epoch {} do not follow its layout record of epoch {}, so it does not vote: copy the \
         file layout from another node of the cluster and start this one again",
        found.epoch, layout.epoch
    ))
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
        let votes_on_next = |votes: &StoredVotes, tag, layout: &LayoutRecord| {
            votes_on_next(ReadVotes::Stored(votes.clone()), tag, layout).0
        };
        let on_2 = voted(&epoch_1);
        assert_eq!(votes_on_next(&on_2, TAG, &epoch_1), on_2);
        let none = |history| StoredVotes::none(TAG, history);
        assert_eq!(votes_on_next(&on_2, TAG, &epoch_2), none(VoteHistory::Complete), "obsolete");
        let other = LayoutRecord { default_from: 2, ..epoch_1.clone() };
        let promise = StoredVotes { parent: other.hash(), accepted: None, ..on_2.clone() };
        assert_eq!(votes_on_next(&on_2, TAG, &other), promise, "another epoch 1");
        let other = LayoutRecord { default_from: 2, ..epoch_2.clone() };
        let on_3 = voted(&epoch_2);
        assert_eq!(votes_on_next(&on_3, TAG, &other), none(VoteHistory::Incomplete), "another epoch 2");
        assert_eq!(votes_on_next(&on_3, TAG, &epoch_1), none(VoteHistory::Incomplete), "an older record");
        let of_other = votes_on_next(&on_2, NodeTag(9), &epoch_1);
        assert_eq!(of_other, StoredVotes::none(NodeTag(9), VoteHistory::OfThisId), "another identity");
    }

    #[test]
    fn votes_that_are_missing_or_damaged_are_lost() {
        for read in [ReadVotes::Missing, ReadVotes::Damaged { detail: "it is cut short".to_owned() }] {
            let (votes, found) = votes_on_next(read, TAG, &first(2));
            assert_eq!(votes, StoredVotes::none(TAG, VoteHistory::Incomplete));
            assert!(matches!(found, VotesFound::Lost { .. }), "{found:?}");
        }
    }

    #[test]
    fn the_only_member_of_a_cluster_needs_no_earlier_votes() {
        let none = (StoredVotes::none(TAG, VoteHistory::Complete), VotesFound::NeverWritten);
        assert_eq!(votes_on_next(ReadVotes::Missing, TAG, &first(1)), none);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(bytes: Vec<u8>) {
            prop_assert!(StoredVotes::decode(&bytes).is_err());
        }
    }
}
