//! Large reads of a host that reads for others.
//!
//! **Promise.** Before something large is read, the host is asked ([`read_with_consent`]): what it has no room for is not
//! read. What was read is counted among all that is read at once until the host says that it is elsewhere in account, or
//! let go: so what is in no account of anybody is known to be little, however long the way to its reader is.
//!
//! **Mechanism.** The host says what one errand is by carrying it out within a call, on one thread. Whatever large is read on
//! the way is read in one turn of [`LargeReads`], which the host is given at the end and drops when it likes.
//!
//! **Caveats.** The turn is that of the largest read: of what was read before it nothing is thought to be left but one such
//! value, as with a key that is in several tables. An errand that comes to something larger than before gives its turn
//! back, and waits for another one.

use super::large_reads::{LargeRead, LargeReads};
use crate::Error;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// What the host says of something large that will take so many bytes, once it is read. An error: it is not to be read,
/// and when to try again.
type Consent = dyn FnMut(u64) -> Result<(), Duration>;

/// What a thread reads for its host.
struct Errand {
    consent: Box<Consent>,
    turn: Option<LargeRead>,
}

thread_local! {
    static ERRAND: RefCell<Option<Errand>> = const { RefCell::new(None) };
}

/// Carries out `errand`. Before each large block that it reads from a table, `consent` is asked whether there is room for so
/// many bytes: if not, the read fails with [`Error::NoRoom`]. Returns the turn of what was large, to be dropped when that is
/// in an account or let go; the bytes of all such turns together are few. Whoever holds one must not begin another errand.
///
/// # Panics
/// When called within an errand.
pub fn read_with_consent<T>(
    consent: impl FnMut(u64) -> Result<(), Duration> + 'static,
    errand: impl FnOnce() -> T,
) -> (T, Option<LargeRead>) {
    let outer = ERRAND.replace(Some(Errand { consent: Box::new(consent), turn: None }));
    assert!(outer.is_none(), "an errand is no part of another one");
    let read = errand();
    let turn = ERRAND.take().and_then(|errand| errand.turn);
    (read, turn)
}

/// Waits for a turn to take so many bytes, of which so many stay. It lasts until it is dropped, or, where a host has given
/// its consent, for as long as the host likes.
pub(crate) fn begin(
    reads: &Arc<LargeReads>,
    bytes: u64,
    left_bytes: u64,
) -> Result<Option<LargeRead>, Error> {
    ERRAND.with_borrow_mut(|errand| match errand {
        None => Ok(Some(reads.wait(bytes))),
        Some(errand) => {
            (errand.consent)(left_bytes).map_err(|retry_after| Error::NoRoom { retry_after })?;
            errand.begin(reads, bytes);
            Ok(None)
        }
    })
}

impl Errand {
    fn begin(&mut self, reads: &Arc<LargeReads>, bytes: u64) {
        if self.turn.as_ref().is_none_or(|turn| turn.bytes() < bytes) {
            // Given back first: two who hold one could wait for each other.
            self.turn = None;
            self.turn = Some(reads.wait(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_errand_has_one_turn_which_lasts_until_its_host_drops_it() {
        let reads = Arc::<LargeReads>::default();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&asked);
        let consent = move |bytes| {
            noted.borrow_mut().push(bytes);
            Ok(())
        };
        let (_, turn) = read_with_consent(consent, || {
            for bytes in [12 * MIB, 5 * MIB, 12 * MIB, 16 * MIB] {
                // None of them waits for what this errand has itself.
                assert!(begin(&reads, bytes, bytes / 2).expect("consent").is_none());
            }
        });
        assert_eq!(*asked.borrow(), [6 * MIB, 5 * MIB / 2, 6 * MIB, 8 * MIB]);
        assert_eq!(reads.came_and_began(), (2, 2));
        let others = Arc::clone(&reads);
        let other = std::thread::spawn(move || begin(&others, 1, 1).is_ok_and(|turn| turn.is_some()));
        while reads.came_and_began().0 < 3 {
            std::thread::yield_now();
        }
        assert_eq!(reads.came_and_began().1, 2, "the host has not dropped it");
        drop(turn);
        assert!(other.join().expect("it has its turn"));
    }

    #[test]
    fn what_the_host_has_no_room_for_is_not_waited_for() {
        let reads = Arc::<LargeReads>::default();
        let _all_of_it = reads.wait(16 * MIB);
        let wait = Duration::from_secs(3);
        let (refused, turn) = read_with_consent(move |_| Err(wait), || begin(&reads, MIB, MIB).map(drop));
        assert!(matches!(refused, Err(Error::NoRoom { retry_after }) if retry_after == wait));
        assert!(turn.is_none());
        let (_, turn) = read_with_consent(|_| Ok(()), || ());
        assert!(turn.is_none(), "nothing large was read");
    }
}
