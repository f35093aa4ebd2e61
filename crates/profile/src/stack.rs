//! Stack walk by frame pointers.
//!
//! **Promise.** Nothing outside the given stack is read, regardless of the register values: each
//! frame lies within the bounds of the stack and above the previous frame. The walk allocates
//! nothing, and terminates.
//!
//! **Caveats.** Code without frame pointers, as most builds of the C library, hides its caller or
//! ends the walk.

use std::ops::Range;
use std::ptr;

/// Size of a frame record: the caller's frame pointer and the return address.
const RECORD_BYTES: usize = 2 * size_of::<usize>();

/// Passes the addresses of the calls above `frame` to `each`, from the leaf to the root, until it
/// returns `false`.
///
/// # Safety
/// `stack` must be mapped, and part of the stack of the calling thread or of a thread that does not
/// run during the call.
pub(crate) unsafe fn walk(mut frame: usize, mut stack: Range<usize>, each: &mut dyn FnMut(u64) -> bool) {
    loop {
        let fits = frame.is_multiple_of(align_of::<usize>())
            && frame >= stack.start
            && frame.checked_add(RECORD_BYTES).is_some_and(|end| end <= stack.end);
        if !fits {
            return;
        }
        // SAFETY: the record is aligned and lies within the stack, which is mapped.
        let [caller, return_to] = unsafe { *ptr::with_exposed_provenance::<[usize; 2]>(frame) };
        // The call precedes its return address, which may already belong to the next line or
        // function.
        if return_to == 0 || !each(return_to as u64 - 1) {
            return;
        }
        stack.start = frame + RECORD_BYTES;
        frame = caller;
    }
}

/// Frame pointer of the function into which this is inlined.
#[inline(always)]
pub(crate) fn frame_pointer() -> usize {
    let frame: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this copies a register and changes nothing else.
    unsafe {
        std::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this copies a register and changes nothing else.
    unsafe {
        std::arch::asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        frame = 0;
    }
    frame
}

/// Address range of this thread's stack; empty if the system does not report it.
pub(crate) fn own_stack() -> Range<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call initialises the attributes if it returns 0. They are read only then, and
    // destroyed once.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return 0..0;
        }
        let (mut start, mut bytes) = (ptr::null_mut(), 0);
        let is_known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut bytes) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if is_known { start as usize..start as usize + bytes } else { 0..0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn walked(frame: usize, stack: Range<usize>) -> Vec<u64> {
        let mut addresses = Vec::new();
        // SAFETY: the tests pass memory that they own.
        unsafe {
            walk(frame, stack, &mut |address| {
                addresses.push(address);
                addresses.len() < 64
            });
        }
        addresses
    }

    #[test]
    fn frames_are_followed_upwards_within_the_stack_only() {
        let memory = [const { AtomicUsize::new(0) }; 8];
        let fill = |words: [usize; 8]| {
            memory.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
        };
        let base = memory.as_ptr().expose_provenance();
        let at = |word: usize| base + word * size_of::<usize>();
        let all = base..at(8);
        // Three frames; the caller of the second one is invalid.
        fill([at(2), 101, at(5), 102, 0, usize::MAX, 103, 104]);
        assert_eq!(walked(at(0), all.clone()), [100, 101, 102]);
        fill([at(2), 101, 3, 102, 0, 0, 0, 0]);
        assert_eq!(walked(at(0), all.clone()), [100, 101]);
        fill([at(2), 0, at(4), 102, 0, 103, 0, 0]);
        assert!(walked(at(0), all.clone()).is_empty());
        for elsewhere in [0, 1, at(0) + 1, at(7), usize::MAX, usize::MAX - 7, base - 16] {
            assert!(walked(elsewhere, all.clone()).is_empty(), "{elsewhere:#x}");
        }
        // A cycle of frame pointers ends.
        fill([at(2), 101, at(0), 102, 0, 0, 0, 0]);
        assert_eq!(walked(at(0), all), [100, 101]);
    }

    #[test]
    fn a_thread_knows_its_stack() {
        for stack in [own_stack(), std::thread::spawn(own_stack).join().unwrap()] {
            assert!(stack.len() >= 64 << 10);
        }
        let local = 0;
        assert!(own_stack().contains(&(&raw const local as usize)));
    }
}
