//! Nodes that ask this one, as a member, to make them members.
//!
//! **Promise.** A node is answered only after it has proved that it holds the secret of the
//! cluster. A node that is welcome gets the decided layout record that has it as a member. The same
//! node may ask again, and is answered with the newest record. A refusal has a reason, which says
//! whether it holds for the moment only.
//!
//! **Mechanism.** The handshake runs on the I/O thread that has accepted the connection, within the
//! bounds of the handshakes of unknown dialers. The control thread carries out the command that
//! makes the node a member. The task of the connection waits for that.
//!
//! **Caveats.** The record is not encrypted, like all messages between nodes.

use super::PeerLinks;
use super::accept::{AcceptError, close_with};
use super::exchange::HandshakeExchange;
use crate::layout_command;
use crate::local::Local;
use crate::messages::ControlMessage;
use cluster::{
    CommandRefusal, EncodedRecord, JoiningNode, LayoutCommand, LayoutCommandOutcome, LayoutRecord,
    MemberState, Message, MessageId, NodeResponse, PeerState, Requester,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use wire::handshake::{JoinAcceptStep, JoinAcceptor, refusal};
use wire::{Outbox, OutboxLimits, upgrade};

/// Time limit for the joining node to read the record.
const RECORD_TIME: Duration = Duration::from_secs(10);

/// A node that has proved that it holds the secret, and asks to be a member.
pub(crate) struct JoiningPeer {
    exchange: HandshakeExchange,
    acceptor: JoinAcceptor,
    node: JoiningNode,
}

/// Runs the handshake with a joining node, whose request has arrived.
pub(super) async fn exchange_hellos(
    exchange: &mut HandshakeExchange,
    local: &OnceLock<Arc<Local>>,
) -> Result<(JoinAcceptor, JoiningNode), AcceptError> {
    let local = local.get().ok_or(AcceptError::Starting)?;
    exchange.send(&upgrade::join_response()).await?;
    let mut acceptor = JoinAcceptor::new(local.introduce(Requester::Node), super::nonce());
    loop {
        match acceptor.handle(&std::mem::take(&mut exchange.waiting))? {
            JoinAcceptStep::NeedMore => exchange.receive().await?,
            JoinAcceptStep::Send(bytes) => exchange.send(&bytes).await?,
            JoinAcceptStep::Asked(node) => return Ok((acceptor, node)),
        }
    }
}

impl JoiningPeer {
    pub(super) fn new(exchange: HandshakeExchange, (acceptor, node): (JoinAcceptor, JoiningNode)) -> Self {
        Self { exchange, acceptor, node }
    }

    /// Makes the node a member, and answers it.
    pub(crate) async fn answer(
        self,
        links: &PeerLinks,
        local: &Local,
        control: &mpsc::Sender<ControlMessage>,
    ) {
        let Self { mut exchange, acceptor, node } = self;
        let url = &node.url;
        match membership(local, control, &node).await {
            Ok(record) => {
                tracing::info!(url, epoch = record.epoch.0, "a node that asked to join is a member");
                let frames = frames_of(&record, acceptor.version(), local);
                let answer = [acceptor.admit(), frames].concat();
                // A node that does not read in time asks again.
                let _ = tokio::time::timeout(RECORD_TIME, exchange.send(&answer)).await;
                close_with(exchange.socket, &[]).await;
            }
            Err(reason) => {
                if links.warnings.count_refused(links.clock.now().mono, url, &reason) {
                    tracing::warn!(url, reason, "a node that asked to join was refused");
                }
                close_with(exchange.socket, &acceptor.refuse(&reason)).await;
            }
        }
    }
}

/// The record, in the frames of a link that speaks `version` of the protocol.
fn frames_of(record: &LayoutRecord, version: u8, local: &Local) -> Vec<u8> {
    let id = MessageId { incarnation: local.member.incarnation, requester: Requester::Node, number: 0 };
    let answer = NodeResponse::Layout(EncodedRecord::of(record)).into();
    let mut outbox = Outbox::new(OutboxLimits { bytes_max: 0 }).speaking(version);
    outbox.push(&Message::Answer { id, answer }).expect("an empty outbox takes one message");
    let mut bytes = Vec::new();
    while !outbox.is_empty() {
        outbox.fill(local.member.clock.shown(), &mut bytes, usize::MAX / 2);
    }
    bytes
}

/// The decided record that has the node as a member, or the reason of a refusal.
async fn membership(
    local: &Local,
    control: &mpsc::Sender<ControlMessage>,
    node: &JoiningNode,
) -> Result<Arc<LayoutRecord>, String> {
    if let Some(record) = record_with(local, node).or_else(|| record_for_replacement(local, node)) {
        return Ok(record);
    }
    let later = |reason: String| Err(format!("{}{reason}", refusal::JOIN_LATER));
    match layout_command::carry_out(control, LayoutCommand::Join(node.clone())).await {
        Some(LayoutCommandOutcome::Done { record, .. }) => Ok(record),
        // It may have joined by another member meanwhile.
        Some(LayoutCommandOutcome::Refused(refusal)) => match record_with(local, node) {
            Some(record) => Ok(record),
            // A new cluster raises its feature level within a second.
            None if matches!(refusal, CommandRefusal::NoPlans { level } if level < local.feature_level_max) => {
                later(refusal.to_string())
            }
            None => Err(refusal.to_string()),
        },
        Some(LayoutCommandOutcome::NotDecided(obstacle)) => later(obstacle.to_string()),
        Some(LayoutCommandOutcome::Unknown) => later(
            "it is not known whether the node is a member: too few voters have answered in time".to_owned(),
        ),
        None => later("the node has too many requests for its control thread".to_owned()),
    }
}

/// The newest record, if the node states the URL of a member that cannot be reached. It then serves
/// in the slot of that member, which has lost its disk: the peers remember the former node there,
/// and have the new one rebuild itself.
fn record_for_replacement(local: &Local, node: &JoiningNode) -> Option<Arc<LayoutRecord>> {
    let record = Arc::clone(&local.layout.get().record);
    let member = record.members.iter().find(|member| member.url == node.url)?;
    let is_replaceable = member.slot != local.member.me
        && member.state != MemberState::Dead
        && !record.is_former_id(node.id)
        && node.feature_level_max >= record.feature_level;
    let account = local.account.lock().clone()?;
    let mut peers = account.peers.iter();
    let is_unreachable = peers.any(|peer| peer.node == member.slot && peer.state == PeerState::Unreachable);
    (is_replaceable && is_unreachable).then_some(record)
}

/// The newest record, if the node is a member by it.
fn record_with(local: &Local, node: &JoiningNode) -> Option<Arc<LayoutRecord>> {
    let record = Arc::clone(&local.layout.get().record);
    let is_member = record.members.iter().any(|member| member.node_id == Some(node.id));
    is_member.then_some(record)
}
