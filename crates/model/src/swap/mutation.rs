//! The bounds in which a model without a rule breaks a promise.

use super::config::{A, G, H, SwapConfig, SwapRule, X};

/// A small model without `rule`, in which the search finds a counterexample.
pub fn without(rule: SwapRule) -> SwapConfig {
    let of_one = SwapConfig { reads: 1, ..SwapConfig::swap(1, 1, 1) };
    let of_three = SwapConfig { reads: 1, ..SwapConfig::swap(2, 2, 3) };
    let cancelled = SwapConfig { cancels_max: 1, epochs: 5, ..of_one.clone() };
    let again = SwapConfig { swaps_max: 2, epochs: 6, ..cancelled.clone() };
    let dead = SwapConfig { mortal: X.set(), ..of_three.clone() };
    let lossy = |node: super::SwapNode| SwapConfig { lossy: node.set(), epochs: 5, ..of_three.clone() };
    let config = match rule {
        SwapRule::WriteBackToBoth | SwapRule::WriteBackEqualAnswers => SwapConfig { reads: 2, ..of_one },
        SwapRule::FreshAcknowledgements | SwapRule::WriteBothInPrepare | SwapRule::WriteBothInReadNew => {
            of_three
        }
        SwapRule::WriteBothInBack | SwapRule::BackBeforeOld | SwapRule::FenceBeforeOld => cancelled,
        SwapRule::CompleteNamesAttempt | SwapRule::CopyNamesAttempt | SwapRule::DropByNewest => again,
        SwapRule::PurgeBeforeStore | SwapRule::PurgeBeforeCopy => again,
        SwapRule::PurgeBeforeGain => SwapConfig { collects: true, writes: 2, ..again },
        SwapRule::DeadIsNotCounted | SwapRule::SourcesFence | SwapRule::EnoughSources => dead,
        SwapRule::CopyAnewAfterLoss => lossy(G),
        SwapRule::FenceBeforeRebuild => SwapConfig { epochs: 3, swaps_max: 0, ..lossy(A) },
        SwapRule::NewIdRefuses | SwapRule::RebuildBeforeReads => lossy(A),
        _ => of_one,
    };
    debug_assert!(!config.members().contains(H));
    SwapConfig { without: Some(rule), ..config }
}
