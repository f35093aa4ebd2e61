use super::*;
use cluster::{NodeIndex, WaitSpan, WaitTarget};
use engine::CommitTimes;
use env::ManualClock;
use stdx::{Rng, WallTime};

const SLOW: Duration = Duration::from_millis(100);

fn stages(slow_request: Duration) -> (Stages, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(WallTime::EPOCH_2020));
    let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    (Stages::new(&shared, slow_request), clock)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn start() -> CommandStart {
    CommandStart { kind: RequestKind::Put, at: at(1_000) }
}

fn commit(paused: u64, [dequeued, written, synced, published]: [u64; 4]) -> CommitTimes {
    CommitTimes {
        paused: Duration::from_millis(paused),
        dequeued: at(dequeued),
        written: at(written),
        synced: at(synced),
        published: at(published),
    }
}

fn spans(trace: &LatencyTrace) -> Vec<(String, u128)> {
    trace.spans().iter().map(|(stage, took)| (stage.name().into_owned(), took.as_millis())).collect()
}

fn named(trace: &LatencyTrace) -> Duration {
    trace.spans().iter().filter(|(stage, _)| *stage != Stage::Other).map(|(_, took)| *took).sum()
}

fn ending(trace: Option<Box<LatencyTrace>>, has_waited: bool, encoded_at: Instant) -> RequestEnd {
    let request = TracedRequest { start: start(), key: KeyPrefix::of(b"user:\x001") };
    RequestEnd { request, trace, has_waited, status: StatusCode::CREATED, encoded_at }
}

#[test]
fn the_trace_of_a_write_has_the_commit_stages_of_its_group() {
    let wait = WaitTrace { earlier: Vec::new(), last: WaitTarget::Store };
    let commit = Some(commit(20, [1_050, 1_052, 1_150, 1_151]));
    let times = StoreTimes::Written { submitted: at(1_010), commit };
    let trace = LatencyTrace::of(start(), &wait, Some(&times), at(1_160));
    let expected = [
        ("coordinator", 10),
        ("commit queue", 20),
        ("pacing", 20),
        ("log write", 2),
        ("sync", 98),
        ("publish", 1),
        ("thread", 9),
    ];
    assert_eq!(spans(&trace), expected.map(|(stage, took)| (stage.to_owned(), took)));
}

#[test]
fn earlier_waits_come_first_in_a_trace() {
    let legs = [(WaitTarget::ClockBound, 1_030), (WaitTarget::Peer(NodeIndex(2)), 1_040)];
    let earlier = legs.map(|(target, until)| WaitSpan { target, until: at(until) }).to_vec();
    let times = StoreTimes::Read { enqueued: at(1_041), dequeued: at(1_090), done: at(1_180) };
    let wait = WaitTrace { earlier, last: WaitTarget::Store };
    let trace = LatencyTrace::of(start(), &wait, Some(&times), at(1_200));
    let expected = [
        ("clock bound", 30),
        ("peer 2", 10),
        ("coordinator", 1),
        ("read pool queue", 49),
        ("disk read", 90),
        ("thread", 20),
    ];
    assert_eq!(spans(&trace), expected.map(|(stage, took)| (stage.to_owned(), took)));
}

/// For arbitrary timestamps in arbitrary order, the spans add up to the total time.
#[test]
fn spans_add_up_to_the_total_time() {
    let mut rng = Rng::new(1);
    for _ in 0..10_000 {
        let mut time = || at(900 + rng.below(300));
        let times = [(); 4].map(|()| time());
        let commit = CommitTimes {
            paused: Duration::from_millis(50),
            dequeued: times[0],
            written: times[1],
            synced: times[2],
            published: times[3],
        };
        let store_times = [
            StoreTimes::Written { submitted: time(), commit: Some(commit) },
            StoreTimes::Written { submitted: time(), commit: None },
            StoreTimes::Read { enqueued: time(), dequeued: time(), done: time() },
            StoreTimes::Refused,
        ];
        let legs = [WaitTarget::Links, WaitTarget::ClockBound, WaitTarget::Links];
        let earlier = legs.map(|target| WaitSpan { target, until: time() }).to_vec();
        let wait = WaitTrace { earlier, last: WaitTarget::Store };
        for times in store_times {
            let mut trace = LatencyTrace::of(start(), &wait, Some(&times), at(1_300));
            trace.add_span(Stage::SocketWrite, at(1_250));
            let sum: Duration = trace.spans().iter().map(|(_, took)| *took).sum();
            assert_eq!((sum, trace.took()), (trace.took(), trace.until().saturating_since(at(1_000))));
            assert!(trace.until() >= at(1_300), "{trace:?} with {times:?}");
        }
    }
}

#[test]
fn the_unattributed_time_is_less_than_a_twentieth_of_the_slow_threshold() {
    let (stages, clock) = stages(SLOW);
    clock.advance(Duration::from_millis(1_100));
    assert!(!stages.is_traced(at(1_000), at(1_004)) && stages.is_traced(at(1_000), at(1_005)));
    stages.end(ending(None, true, at(1_100)));
    let latest = stages.latest();
    let [slow] = &latest.requests[..] else { panic!("one was slow: {latest:?}") };
    let told: Vec<_> = slow.stages.iter().map(|stage| (&*stage.stage, stage.took_us)).collect();
    assert_eq!(told, [("other", 5_000), ("thread", 95_000)]);
    assert_eq!((slow.took_us, slow.status, &*slow.operation), (100_000, 201, "put"));
    assert_eq!((&*slow.key, slow.key_bytes), ("user:\\x001", 7));
    assert_eq!(stages.count(RequestKind::Put), 1);
}

#[test]
fn a_client_that_does_not_read_shows_as_socket_write() {
    let (stages, clock) = stages(SLOW);
    clock.advance(Duration::from_millis(1_500));
    stages.end_after_wait(ending(None, false, at(1_001)));
    let slow = &stages.latest().requests[0];
    let told: Vec<_> = slow.stages.iter().map(|stage| (&*stage.stage, stage.took_us)).collect();
    assert_eq!(told, [("coordinator", 1_000), ("socket write", 499_000)]);
}

#[test]
fn a_threshold_of_zero_disables_the_log() {
    let (stages, clock) = stages(Duration::ZERO);
    clock.advance(Duration::from_secs(100));
    stages.end(ending(None, true, at(90_000)));
    assert_eq!(stages.latest(), SlowRequests { threshold_ms: 0, left_out: 0, requests: Vec::new() });
}

#[test]
fn a_threshold_below_a_millisecond_is_reported_as_one() {
    assert_eq!(stages(Duration::from_micros(1)).0.latest().threshold_ms, 1);
    assert_eq!(stages(SLOW).0.latest().threshold_ms, 100);
}

#[test]
fn the_log_is_bounded_and_counts_the_requests_left_out() {
    let (stages, clock) = stages(SLOW);
    clock.advance(Duration::from_secs(2));
    for _ in 0..200 {
        stages.end(ending(None, true, at(1_200)));
    }
    let latest = stages.latest();
    assert_eq!((latest.requests.len(), latest.left_out, stages.count(RequestKind::Put)), (128, 72, 200));
    clock.advance(Duration::from_secs(1));
    stages.end(ending(None, true, at(1_300)));
    let latest = stages.latest();
    assert_eq!((latest.requests.len(), latest.left_out), (128, 72));
    assert_eq!(latest.requests[0].took_us, 300_000, "the last one comes first");
}

#[test]
fn a_recording_has_each_request_in_the_slice_of_its_end() {
    let (stages, clock) = stages(SLOW);
    clock.advance(Duration::from_secs(1));
    stages.begin_recording(clock.now());
    let wait = WaitTrace { earlier: Vec::new(), last: WaitTarget::Peer(NodeIndex(1)) };
    for end in [1_050, 1_250] {
        clock.advance(Duration::from_millis(100));
        let trace = stages.trace(start(), &wait, None, at(end));
        assert!(trace.is_some(), "every request is traced");
        stages.end(ending(trace, true, at(end + 1)));
    }
    let capture = stages.end_recording().expect("it was begun").into_capture(Duration::from_secs(1));
    assert_eq!(capture.slices(), 10);
    let stacks: Vec<_> = capture
        .stacks()
        .iter()
        .map(|stack| {
            let frames: Vec<_> = capture.names_of(stack).collect();
            let weights: Vec<_> = stack.weights().iter().map(|part| (part.slice, part.weight)).collect();
            (frames.join(";"), weights)
        })
        .collect();
    let ms = 1_000_000;
    assert_eq!(
        stacks,
        [
            ("put;peer 1".to_owned(), vec![(0, 50 * ms), (2, 250 * ms)]),
            ("put;thread".to_owned(), vec![(0, ms), (2, ms)]),
        ]
    );
    assert!(!stages.is_traced(at(1_000), at(1_001)), "tracing is off again");
}

#[test]
fn at_least_95_percent_of_a_slow_request_have_a_named_stage() {
    let (stages, _) = stages(SLOW);
    for encoded_at in [1_100, 1_101, 1_500, 61_000] {
        let mut trace = stages.untraced(start(), true, at(encoded_at));
        trace.add_span(Stage::Thread, at(encoded_at));
        assert!(named(&trace) * 100 >= trace.took() * 95, "{trace:?}");
    }
}

/// The slow log is disabled, so no request was traced when its reply came.
#[test]
fn an_untraced_request_that_ends_in_a_recording_is_other() {
    let (stages, clock) = stages(Duration::ZERO);
    stages.begin_recording(clock.now());
    stages.end(ending(None, true, at(1_040)));
    let capture = stages.end_recording().expect("it was begun").into_capture(Duration::from_secs(2));
    let [stack] = capture.stacks() else { panic!("one thing was recorded: {capture:?}") };
    assert_eq!(capture.names_of(stack).collect::<Vec<_>>(), ["put", "other"]);
    assert_eq!((stack.weights()[0].slice, stack.total()), (10, 40_000_000));
}
