//! The interface between a driver and its state machine.

use super::{Core, MachineDriver};
use cluster::{Effect, LinkEvent, Message, Origin, StoreId, StoreResponse};
use std::rc::Rc;
use stdx::{Instant, Now};

/// A state machine of `cluster`, together with the state that only its kind of driver needs. The
/// methods without documentation have the contract of the methods of the same name of
/// `cluster::Coordinator` and `cluster::Node`.
pub(crate) trait Machine: Sized + 'static {
    fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse);
    fn handle_link(&mut self, now: Now, event: LinkEvent);
    fn handle_message(&mut self, now: Now, origin: Origin, message: Message);
    fn handle_timeout(&mut self, now: Now);
    fn poll_effect(&mut self) -> Option<Effect>;
    fn poll_timeout(&self) -> Option<Instant>;

    /// Carries out an effect that only one kind of machine emits.
    fn carry_out(core: &mut Core<Self>, driver: &Rc<MachineDriver<Self>>, now: Now, effect: Effect);

    /// Runs after each input, when no effect is left.
    fn after_effects(core: &mut Core<Self>, driver: &Rc<MachineDriver<Self>>, now: Now);
}
