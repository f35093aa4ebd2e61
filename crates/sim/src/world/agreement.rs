//! The agreement on layout records: the durable state of voters, and the effects of nodes.
//!
//! A state of a voter is durable after the time that its disk takes. The store may refuse it, and
//! the process may end before, or after that and before the node has learned it.

use super::{World, WorldEvent};
use crate::host::process::ProcessInput;
use crate::network::Endpoint;
use cluster::{AgreementEffect, LayoutRecord, Requester, VoterState};
use std::time::Duration;
use wire::handshake::LayoutStatement;

impl World {
    /// Carries out the effects of the agreement that a node requests.
    pub(super) fn carry_out_agreement(&mut self, endpoint: Endpoint) {
        if endpoint.requester != Requester::Node {
            return;
        }
        while let Some(effect) =
            self.process(endpoint).and_then(crate::host::process::HostProcess::poll_agreement_effect)
        {
            self.trace.note(self.now, || format!("  {endpoint:?} -> {effect:?}"));
            match effect {
                AgreementEffect::Persist { revision, state } => {
                    let delay = self.voter_disk_time(endpoint);
                    self.after(delay, WorldEvent::PersistVoter(endpoint, revision, Box::new(state)));
                }
                AgreementEffect::Adopted(record) => {
                    if let Some(process) = self.process(endpoint) {
                        process.layout = LayoutStatement::of(&record);
                    }
                }
                AgreementEffect::ProposalEnded(_) | AgreementEffect::Conflict(_) => {}
            }
        }
    }

    /// Lets the store of a host make a state of the voter durable.
    pub(super) fn persist_voter(&mut self, endpoint: Endpoint, revision: u64, state: &VoterState) {
        self.show_clocks(endpoint.node);
        let Some(process) = self.process(endpoint) else { return };
        let is_durable = process.store.persist_voter(state).is_ok();
        if self.end_if_stopped(endpoint) {
            return;
        }
        let delay = Duration::from_nanos(self.rngs.agreement.below(super::step::THREAD_DELAY_MAX_NANOS));
        self.after(delay, WorldEvent::VoterPersisted(endpoint, revision, is_durable));
    }

    /// Draws the time in which a disk stores the state of a voter.
    fn voter_disk_time(&mut self, endpoint: Endpoint) -> Duration {
        let max = self.host(endpoint.node).sync_max.as_nanos() as u64;
        Duration::from_nanos(max / 8 + self.rngs.agreement.below(max))
    }

    /// Requests a change of the layout from a node.
    pub(crate) fn propose(&mut self, endpoint: Endpoint, record: LayoutRecord, within: Duration) {
        self.step(endpoint, ProcessInput::ProposeLayout(Box::new(record), within));
    }

    pub(super) fn change_layout(&mut self) {}
}
