//! `GET /v0/profile`: a profile that the node takes of itself. One at a time.
//!
//! **Promise.** No I/O thread works or waits for a CPU or allocation profile. A separate thread
//! with a lower priority collects, symbolizes and writes the samples. A profile ends early when its
//! client disconnects or the node stops.

use crate::stages::Stages;
use ::profile::{Capture, ProfileError, alloc, cpu};
use api::{EncodedResponse, Problem, ProfileKind, ProfileRequest};
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;
use tokio::sync::oneshot;

/// `Retry-After` of a profile that was interrupted.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Allowance for writing a profile after its recording has ended.
const WRITING_TIME: Duration = Duration::from_secs(1);
/// Interval of the checks whether a profile must end early.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Name of the recording thread, under which it appears in its own profile.
const THREAD_NAME: &str = "veche-profile";
/// Niceness of the recording thread, which lets serving threads run first.
const NICENESS: i32 = 5;

/// The profile that a process records of itself.
#[derive(Debug, Default)]
pub(crate) struct ProfileState {
    /// End of the profile that is being recorded, in nanoseconds of the monotonic clock; 0: none.
    until_nanos: AtomicU64,
}

/// Records the requested profile from `now` on, and answers when its time is over. The profile ends
/// early once `must_end` is true.
pub(crate) async fn answer(
    state: &Arc<ProfileState>,
    stages: &Stages,
    now: Instant,
    asked: ProfileRequest,
    must_end: impl Fn() -> bool,
) -> Result<EncodedResponse, Problem> {
    let permit = ProfilePermit::take(state, now, asked.time).map_err(busy)?;
    let taken = async {
        match asked.kind {
            ProfileKind::Cpu => on_own_thread(permit, asked.time, cpu::record).await,
            ProfileKind::Alloc => on_own_thread(permit, asked.time, alloc::record).await,
            ProfileKind::Wait => {
                let _permit = permit;
                Ok(stages.record_profile(asked.time).await.to_json())
            }
        }
    };
    let ends_early = async {
        while !must_end() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        taken = taken => taken.map(api::encode_profile),
        () = ends_early => {
            Err(Problem::unavailable(RETRY_AFTER, "The profile was interrupted: the node is stopping, or the client disconnected."))
        }
    }
}

/// Records on a separate thread, which stops when the returned future is dropped. Returns the
/// capture as JSON, which can take a while to write.
async fn on_own_thread(
    permit: ProfilePermit,
    time: Duration,
    record: fn(Duration, &AtomicBool) -> Result<Capture, ProfileError>,
) -> Result<Vec<u8>, Problem> {
    let wanted = ClientPresence::default();
    let cancelled = Arc::clone(&wanted.cancelled);
    let (done, taken) = oneshot::channel();
    let work = move || {
        let _permit = permit;
        // Best effort: the profile is correct without the lower priority.
        let _ = rustix::process::nice(NICENESS);
        let taken = record(time, &cancelled).map(|capture| capture.to_json());
        // The receiver is gone if the profile was interrupted.
        let _ = done.send(taken);
    };
    std::thread::Builder::new()
        .name(THREAD_NAME.to_owned())
        .spawn(work)
        .map_err(|error| internal(&format!("no thread can be started: {error}")))?;
    let taken = taken.await.map_err(|_| internal("its recording thread panicked; this is a bug"))?;
    drop(wanted);
    taken.map_err(|error| problem_of(&error))
}

fn problem_of(error: &ProfileError) -> Problem {
    match error {
        ProfileError::Busy => busy(RETRY_AFTER),
        ProfileError::NoAllocator | ProfileError::System { .. } => internal(&error.to_string()),
    }
}

fn busy(left: Duration) -> Problem {
    Problem::unavailable(left, "Another profile is being recorded. Try again when it ends.")
}

fn internal(why: &str) -> Problem {
    tracing::warn!(why, "a profile failed");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("The profile cannot be taken: {why}."))
}

/// Cancels a profile when it is dropped.
#[derive(Default)]
struct ClientPresence {
    cancelled: Arc<AtomicBool>,
}

impl Drop for ClientPresence {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Exclusive permission to record a profile. Dropping it releases the permission.
struct ProfilePermit(Arc<ProfileState>);

impl ProfilePermit {
    /// Permission for a profile that takes `time`.
    ///
    /// # Errors
    /// The remaining time of another profile.
    fn take(state: &Arc<ProfileState>, now: Instant, time: Duration) -> Result<Self, Duration> {
        let until = (now + time + WRITING_TIME).as_nanos().max(1);
        let taken = state.until_nanos.compare_exchange(0, until, Ordering::Acquire, Ordering::Relaxed);
        match taken {
            Ok(_) => Ok(Self(Arc::clone(state))),
            Err(other) => Err(Duration::from_nanos(other.saturating_sub(now.as_nanos()))),
        }
    }
}

impl Drop for ProfilePermit {
    fn drop(&mut self) {
        self.0.until_nanos.store(0, Ordering::Release);
    }
}
