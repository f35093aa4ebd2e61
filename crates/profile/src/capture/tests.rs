use super::*;
use crate::weight_table::Bounds;
use proptest::prelude::*;
use std::time::Duration;

fn builder() -> CaptureBuilder {
    CaptureBuilder::new(CaptureKind::Cpu, Duration::from_millis(100), 1_700_000_000_000)
}

/// Names of the frames of a stack, and its weights by slice.
type Named<'a> = (Vec<&'a str>, Vec<(u32, u64)>);

fn stacks_of(capture: &Capture) -> Vec<Named<'_>> {
    let weights =
        |stack: &Stack| stack.weights().iter().map(|weight| (weight.slice, weight.weight)).collect();
    capture.stacks().iter().map(|stack| (capture.names_of(stack).collect(), weights(stack))).collect()
}

#[test]
fn the_same_stack_is_one() {
    let mut builder = builder();
    builder.add(0, ["io", "read"], 2);
    builder.add(1, ["io", "write"], 1);
    builder.add(0, ["io", "read"], 3);
    builder.add(4, ["io", "read"], 1);
    builder.add_lost(7);
    let capture = builder.finish(3);
    assert_eq!(
        stacks_of(&capture),
        [(vec!["io", "read"], vec![(0, 5), (4, 1)]), (vec!["io", "write"], vec![(1, 1)])]
    );
    assert_eq!((capture.slices(), capture.lost(), capture.total()), (5, 7, 7));
}

#[test]
fn the_json_form_is_stable() {
    let mut builder = builder();
    builder.add(1, ["io", "read"], 2);
    builder.add_note("look");
    let json = String::from_utf8(builder.finish(2).to_json()).unwrap();
    assert_eq!(
        json,
        r#"{"version":1,"kind":"cpu","unit":"samples","started_unix_ms":1700000000000,"slice_ms":100,"slices":2,"lost":0,"notes":["look"],"names":["(other)","io","read"],"stacks":[{"frames":[1,2],"weights":[[1,2]]}]}"#
    );
}

#[test]
fn inconsistent_captures_are_refused() {
    let good = r#"{"version":1,"kind":"cpu","unit":"samples","started_unix_ms":0,"slice_ms":100,"slices":2,"lost":0,"names":["io"],"stacks":[{"frames":[0],"weights":[[0,1],[1,2]]}]}"#;
    Capture::from_json(good.as_bytes()).unwrap();
    for (from, to) in [
        (r#""version":1"#, r#""version":2"#),
        (r#""kind":"cpu""#, r#""kind":"alloc""#),
        (r#""kind":"cpu""#, r#""kind":"heat""#),
        (r#""slice_ms":100"#, r#""slice_ms":0"#),
        (r#""frames":[0]"#, r#""frames":[1]"#),
        ("[1,2]", "[0,2]"),
        ("[1,2]", "[2,2]"),
        ("[1,2]", "[1,0]"),
    ] {
        let bad = good.replace(from, to);
        assert!(bad != good && Capture::from_json(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_stack_too_deep_is_cut_at_the_leaf() {
    let mut builder = builder();
    builder.add(0, (0..1_000).map(|depth| depth.to_string()), 1);
    let capture = builder.finish(1);
    let names: Vec<_> = capture.names_of(&capture.stacks()[0]).collect();
    assert_eq!((names.len(), names[0], names[254], names[255]), (256, "0", "254", OTHER));
}

proptest! {
    /// Bounds that are far too small change only the resolution, never the sums.
    #[test]
    fn sums_survive_bounds_and_json(
        added in prop::collection::vec((0..64u32, prop::collection::vec("[a-e]", 0..4), 0..1_000u64), 0..200),
        stacks_max in 1..40usize,
        spare in 0..40usize,
    ) {
        let bounds = Bounds { keys_max: stacks_max, weights_max: stacks_max + spare };
        let mut builder = CaptureBuilder::with_bounds(CaptureKind::Wait, Duration::from_millis(100), 0, bounds);
        for (slice, frames, weight) in &added {
            builder.add(*slice, frames, *weight);
        }
        let capture = builder.finish(64);
        prop_assert_eq!(capture.total(), added.iter().map(|(_, _, weight)| weight).sum::<u64>());
        prop_assert!(capture.stacks().len() <= stacks_max);
        let weights: usize = capture.stacks().iter().map(|stack| stack.weights().len()).sum();
        prop_assert!(weights <= stacks_max + spare);
        prop_assert!(u64::from(capture.slices()) * u64::from(capture.slice_ms()) >= 6_400);
        prop_assert_eq!(&Capture::from_json(&capture.to_json()).unwrap(), &capture);
    }

    /// Within the bounds, every stack keeps its weight in every slice.
    #[test]
    fn every_stack_and_slice_is_kept_within_the_bounds(
        added in prop::collection::vec((0..8u32, prop::collection::vec("[a-c]", 1..4), 1..1_000u64), 0..100),
    ) {
        let mut builder = builder();
        let mut expected = std::collections::BTreeMap::new();
        for (slice, frames, weight) in &added {
            builder.add(*slice, frames, *weight);
            *expected.entry((frames.clone(), *slice)).or_insert(0) += weight;
        }
        let capture = builder.finish(8);
        let mut found = std::collections::BTreeMap::new();
        for (frames, weights) in stacks_of(&capture) {
            for (slice, weight) in weights {
                let frames: Vec<String> = frames.iter().map(|frame| (*frame).to_owned()).collect();
                prop_assert!(found.insert((frames, slice), weight).is_none());
            }
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!((capture.slices(), capture.slice_ms()), (8, 100));
    }
}
