//! Admission of large reads by a host that reads on behalf of clients.
//!
//! **Promise.** Before a large block is read, the host's callback is asked to admit its size
//! ([`read_with_admission`]); a refused block is not read. A block that was read counts against the
//! limit of concurrent large reads until the host has accounted for it or freed it. So memory
//! outside of any account is bounded, even if the response takes long to reach its client.
//!
//! **Mechanism.** The host runs a read as a closure on one thread, the *read scope*. All large
//! blocks that the closure reads share one permit of [`LargeReadLimit`]. The host receives the
//! permit with the result and drops it when it likes.
//!
//! **Caveats.** The permit covers the largest read of the scope. Of earlier reads in the scope at
//! most one value of that size may be left, as with a key that several tables contain. A scope that
//! reaches a larger block releases its permit and waits for a larger one.

use super::large_reads::{LargeReadLimit, LargeReadPermit};
use crate::Error;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Callback that admits a value of this many bytes. An error refuses the read and says when to
/// retry.
type Admit = dyn FnMut(u64) -> Result<(), Duration>;

/// The large reads of one closure on this thread.
struct ReadScope {
    admit: Box<Admit>,
    permit: Option<LargeReadPermit>,
}

thread_local! {
    static SCOPE: RefCell<Option<ReadScope>> = const { RefCell::new(None) };
}

/// Runs `read`. Before each large block that it reads from a table, `admit` is called with the
/// bytes of its value. If it refuses, the read fails with [`Error::NoRoom`]. Returns the result
/// with the permit of the large blocks, if there were any. The caller drops the permit when their
/// memory is accounted for or freed; the sum of all permits is bounded. A thread that holds a
/// permit must not call this again.
///
/// # Panics
/// If called within another such scope.
pub fn read_with_admission<T>(
    admit: impl FnMut(u64) -> Result<(), Duration> + 'static,
    read: impl FnOnce() -> T,
) -> (T, Option<LargeReadPermit>) {
    let outer = SCOPE.replace(Some(ReadScope { admit: Box::new(admit), permit: None }));
    assert!(outer.is_none(), "read scopes do not nest");
    let found = read();
    let permit = SCOPE.take().and_then(|scope| scope.permit);
    (found, permit)
}

/// Acquires a permit for `bytes`, of which `left_bytes` remain in use afterwards. It is held until
/// it is dropped, or, within a read scope, until the host drops it.
pub(crate) fn acquire(
    reads: &Arc<LargeReadLimit>,
    bytes: u64,
    left_bytes: u64,
) -> Result<Option<LargeReadPermit>, Error> {
    SCOPE.with_borrow_mut(|scope| match scope {
        None => Ok(Some(reads.acquire(bytes))),
        Some(scope) => {
            (scope.admit)(left_bytes).map_err(|retry_after| Error::NoRoom { retry_after })?;
            scope.acquire(reads, bytes);
            Ok(None)
        }
    })
}

impl ReadScope {
    fn acquire(&mut self, reads: &Arc<LargeReadLimit>, bytes: u64) {
        if self.permit.as_ref().is_none_or(|permit| permit.bytes() < bytes) {
            // Released first: two scopes that each hold a permit could wait for each other.
            self.permit = None;
            self.permit = Some(reads.acquire(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_read_scope_has_one_permit_until_its_host_drops_it() {
        let reads = Arc::<LargeReadLimit>::default();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&asked);
        let admit = move |bytes| {
            noted.borrow_mut().push(bytes);
            Ok(())
        };
        let (_, permit) = read_with_admission(admit, || {
            for bytes in [12 * MIB, 5 * MIB, 12 * MIB, 16 * MIB] {
                // None of them waits for the permit of its own scope.
                assert!(acquire(&reads, bytes, bytes / 2).expect("admit").is_none());
            }
        });
        assert_eq!(*asked.borrow(), [6 * MIB, 5 * MIB / 2, 6 * MIB, 8 * MIB]);
        assert_eq!(reads.requested_and_granted(), (2, 2));
        let others = Arc::clone(&reads);
        let other = std::thread::spawn(move || acquire(&others, 1, 1).is_ok_and(|permit| permit.is_some()));
        while reads.requested_and_granted().0 < 3 {
            std::thread::yield_now();
        }
        assert_eq!(reads.requested_and_granted().1, 2, "the host holds the permit");
        drop(permit);
        assert!(other.join().expect("the permit is granted"));
    }

    #[test]
    fn a_refused_read_does_not_wait_for_a_permit() {
        let reads = Arc::<LargeReadLimit>::default();
        let _all_of_it = reads.acquire(16 * MIB);
        let wait = Duration::from_secs(3);
        let (refused, permit) =
            read_with_admission(move |_| Err(wait), || acquire(&reads, MIB, MIB).map(drop));
        assert!(matches!(refused, Err(Error::NoRoom { retry_after }) if retry_after == wait));
        assert!(permit.is_none());
        let (_, permit) = read_with_admission(|_| Ok(()), || ());
        assert!(permit.is_none(), "nothing large was read");
    }
}
