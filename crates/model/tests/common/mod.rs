//! Tests that leave out one rule of a protocol each, and expect a counterexample.

/// Defines a test for each rule: without the rule, the search finds a counterexample.
///
/// `cargo test -p model --test swap_rules -- --nocapture` prints the counterexamples.
macro_rules! needed_rules {
    ($rules:ident, $($test:ident: $rule:ident,)*) => {
        $(
            #[test]
            fn $test() {
                let rule = $rules::$rule;
                let bounds = model::search::SearchBounds { states: 4_000_000, depth: 200 };
                let report = model::search::search(&without(rule), bounds);
                println!("without {rule:?}: {report}");
                let is_broken = matches!(report.outcome, model::search::Outcome::Violated { .. });
                assert!(is_broken, "{rule:?} is not needed: {report}");
            }
        )*
    };
}

pub(crate) use needed_rules;
