//! Each rule of the swap is needed: without it, the search finds a counterexample.

mod common;

use common::needed_rules;
use model::swap::{SwapRule, without};

needed_rules! {
    SwapRule,
    a_node_refuses_requests_of_an_older_epoch: Fence,
    fenced_is_stated_after_older_requests_have_ended: Drain,
    the_record_is_durable_before_it_counts: DurableRecord,
    the_fence_judges_the_epoch_of_the_plan: EpochOfPlan,
    acknowledgements_begin_at_zero_when_an_operation_is_planned_anew: FreshAcknowledgements,
    writes_need_both_sets_in_prepare: WriteBothInPrepare,
    writes_need_both_sets_in_read_new: WriteBothInReadNew,
    writes_need_both_sets_in_back: WriteBothInBack,
    both_sets_hold_what_a_read_returns: WriteBackToBoth,
    both_sets_hold_what_equal_answers_return: WriteBackEqualAnswers,
    x_fences_prepare_before_it_is_copied: FenceBeforeCopy,
    the_copy_is_complete_before_read_new: CompleteBeforeReadNew,
    complete_counts_for_its_attempt_only: CompleteNamesAttempt,
    a_copy_is_stored_by_its_attempt_only: CopyNamesAttempt,
    x_fences_read_new_before_new_is_decided: FenceBeforeNew,
    x_keeps_its_copy_until_it_has_fenced_new: KeepUntilNew,
    back_comes_before_old: BackBeforeOld,
    g_fences_back_before_old_is_decided: FenceBeforeOld,
    a_node_drops_by_its_newest_record_only: DropByNewest,
    a_node_purges_before_it_gains: PurgeBeforeGain,
    a_gaining_node_stores_after_its_purge: PurgeBeforeStore,
    a_gaining_node_copies_after_its_purge: PurgeBeforeCopy,
    no_plan_counts_a_dead_node: DeadIsNotCounted,
    sources_fence_before_they_replace_a_dead_node: SourcesFence,
    sources_fence_before_a_replica_is_rebuilt: FenceBeforeRebuild,
    enough_sources_replace_a_dead_node: EnoughSources,
    a_lost_disk_refuses_until_its_new_id_is_named: NewIdRefuses,
    a_gaining_node_copies_anew_after_the_loss_of_its_disk: CopyAnewAfterLoss,
    a_replica_answers_no_reads_before_it_is_rebuilt: RebuildBeforeReads,
}
