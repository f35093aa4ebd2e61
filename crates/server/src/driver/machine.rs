//! A machine of `cluster`, as its driver sees it.

use super::{Core, Driver};
use cluster::{Effect, LinkEvent, Message, Origin, StoreId, StoreResponse};
use std::rc::Rc;
use stdx::{Instant, Now};

/// A machine of `cluster` with what only its kind of driver holds. What the methods mean is said there.
pub(crate) trait Machine: Sized + 'static {
    fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse);
    fn handle_link(&mut self, now: Now, event: LinkEvent);
    fn handle_message(&mut self, now: Now, origin: Origin, message: Message);
    fn handle_timeout(&mut self, now: Now);
    fn poll_effect(&mut self) -> Option<Effect>;
    fn poll_timeout(&self) -> Option<Instant>;

    /// Carries out an effect that is not common to both kinds.
    fn carry_out(core: &mut Core<Self>, driver: &Rc<Driver<Self>>, now: Now, effect: Effect);

    /// Everything that was brought has been dealt with.
    fn after_effects(core: &mut Core<Self>, driver: &Rc<Driver<Self>>, now: Now);
}
