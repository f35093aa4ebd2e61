//! `POST /v0/layout`: commands of operators on the layout of the cluster.
//!
//! **Promise.** A request is answered once its command has taken effect, is refused, or may have
//! taken effect without this node knowing. It goes on if the client disconnects. A plan is applied
//! only by its name, so an operator never applies the plan of another one.
//!
//! **Mechanism.** A plan is computed on a thread that may block, one at a time, and kept in memory.
//! All other commands are carried out by the node on the control thread.
//!
//! **Caveats.** The sizes of partitions are estimated by the data of this node, which therefore has
//! to hold data. The free space of other nodes is not known, so the room on their disks is not
//! checked.

use crate::driver::layout_commands::RequestedCommand;
use crate::layout_status::capitalized;
use crate::local::Local;
use crate::messages::ControlMessage;
use api::{EncodedResponse, LayoutCommandRequest, PlanDocument, Problem};
use cluster::{
    CommandRefusal, LayoutCommand, LayoutCommandOutcome, LayoutRecord, NodeIndex, PeerState, PlacementChange,
    PlacementPlan, PlacementRefusal, PlannedChange, RateLimit,
};
use http::StatusCode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stdx::NodeTag;
use tokio::sync::{mpsc, oneshot};

/// Time in which a command is to be decided.
const WITHIN: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The plan that this node keeps.
#[derive(Debug, Default)]
pub(crate) struct LayoutPlans {
    kept: Mutex<Option<Arc<KeptPlan>>>,
    /// Held while a plan is computed.
    computing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct KeptPlan {
    name: String,
    change: PlannedChange,
}

/// Carries out a command.
///
/// # Errors
/// The response to a command that has not taken effect, or may not have.
pub(crate) async fn answer(
    plans: &Arc<LayoutPlans>,
    local: &Arc<Local>,
    control: &mpsc::Sender<ControlMessage>,
    request: LayoutCommandRequest,
) -> Result<EncodedResponse, Problem> {
    let record = Arc::clone(&local.layout.get().record);
    record.check_plans_supported().map_err(|refusal| refused(&refusal))?;
    let mut applied = None;
    let command = match request {
        LayoutCommandRequest::Plan { changes, rate_limit } => {
            return plan(plans, local, record, changes, rate_limit).await;
        }
        LayoutCommandRequest::Apply { plan } => {
            let kept = plans.find(&plan)?;
            let command = LayoutCommand::Begin(Box::new(kept.change.clone()));
            applied = Some(kept);
            command
        }
        LayoutCommandRequest::Pause => LayoutCommand::Pause,
        LayoutCommandRequest::Resume => LayoutCommand::Resume,
        LayoutCommandRequest::Cancel => LayoutCommand::Cancel,
        LayoutCommandRequest::Limit { rate_limit } => LayoutCommand::Limit(rate_limit),
        LayoutCommandRequest::DeclareDead { members } => {
            LayoutCommand::DeclareDead(ids_of(&record, &members)?)
        }
    };
    let outcome = carry_out(control, command).await.ok_or_else(|| {
        Problem::unavailable(
            RETRY_AFTER,
            "The node has too many requests for its control thread. Nothing was done. Try again.",
        )
    })?;
    let answered = answer_of(outcome);
    if answered.is_ok()
        && let Some(applied) = applied
    {
        plans.forget(&applied);
    }
    answered
}

/// Has the node carry out a command. `None`: its control thread has too many requests, and nothing
/// was done.
pub(crate) async fn carry_out(
    control: &mpsc::Sender<ControlMessage>,
    command: LayoutCommand,
) -> Option<LayoutCommandOutcome> {
    let (requester, outcome) = oneshot::channel();
    let requested = RequestedCommand { command, within: WITHIN, requester };
    control.try_send(ControlMessage::LayoutCommand(Box::new(requested))).ok()?;
    // The sender is dropped if the process ends.
    Some(outcome.await.unwrap_or(LayoutCommandOutcome::Unknown))
}

/// The response to a command that has ended.
fn answer_of(outcome: LayoutCommandOutcome) -> Result<EncodedResponse, Problem> {
    match outcome {
        LayoutCommandOutcome::Done { epoch, .. } => Ok(api::encode_layout_changed(epoch)),
        LayoutCommandOutcome::Refused(refusal) => Err(refused(&refusal)),
        LayoutCommandOutcome::NotDecided(obstacle) => {
            let sentence = capitalized(&obstacle.to_string());
            Err(Problem::unavailable(RETRY_AFTER, format!("{sentence} Nothing was changed. Try again.")))
        }
        LayoutCommandOutcome::Unknown => Err(Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            "The command may have taken effect, or may do so later: too few voters have answered in time. See the layout \
             before you repeat it: GET /v0/layout.",
        )),
    }
}

fn refused(refusal: &CommandRefusal) -> Problem {
    let status = match refusal {
        CommandRefusal::NodeBounds => StatusCode::BAD_REQUEST,
        _ => StatusCode::CONFLICT,
    };
    Problem::new(status, capitalized(&refusal.to_string()))
}

fn not_planned(refusal: &PlacementRefusal) -> Problem {
    let status = match refusal {
        PlacementRefusal::NamedTwice { .. }
        | PlacementRefusal::WeightZero { .. }
        | PlacementRefusal::UrlLength { .. }
        | PlacementRefusal::ZoneLength { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::CONFLICT,
    };
    Problem::new(status, capitalized(&refusal.to_string()))
}

/// The ids of the members with these URLs.
fn ids_of(record: &LayoutRecord, urls: &[String]) -> Result<Vec<NodeTag>, Problem> {
    let id = |url: &String| {
        let member = record.members.iter().find(|member| member.url == *url);
        let id = member.and_then(|member| member.node_id);
        id.ok_or_else(|| not_planned(&PlacementRefusal::NotAMember { url: url.clone() }))
    };
    urls.iter().map(id).collect()
}

/// Plans a change of `record`, and keeps the plan.
async fn plan(
    plans: &Arc<LayoutPlans>,
    local: &Arc<Local>,
    record: Arc<LayoutRecord>,
    changes: Vec<PlacementChange>,
    rate_limit: Option<RateLimit>,
) -> Result<EncodedResponse, Problem> {
    let permit = Arc::clone(&plans.computing)
        .try_lock_owned()
        .map_err(|_| Problem::unavailable(RETRY_AFTER, "Another plan is being computed. Try again."))?;
    let (plans, local) = (Arc::clone(plans), Arc::clone(local));
    let planned = tokio::task::spawn_blocking(move || -> Result<_, Problem> {
        let _permit = permit;
        let plan = PlacementPlan::new(&record, &changes).map_err(|refusal| not_planned(&refusal))?;
        let bytes = bytes_per_partition(&record, local.member.me, stored_bytes(&local));
        let change = PlannedChange { base: record, plan, rate_limit };
        let mut document = PlanDocument::of(&change, bytes);
        document.notes.extend(dead_that_answer(&local, &change.base, &changes));
        *plans.kept.lock() = Some(Arc::new(KeptPlan { name: document.plan.clone(), change }));
        Ok(api::encode_layout_plan(&document))
    });
    planned.await.unwrap_or_else(|_| {
        let detail = "The thread that computed the plan panicked; this is a bug. See the log of the node.";
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
    })
}

/// A note for each member that is to be replaced as dead, and answers.
fn dead_that_answer(local: &Local, record: &LayoutRecord, changes: &[PlacementChange]) -> Vec<String> {
    let account = local.account.lock().clone();
    let answers = |url: &String| {
        let member = record.members.iter().find(|member| member.url == *url)?;
        let peer = account.as_ref()?.peers.iter().find(|peer| peer.node == member.slot)?;
        (member.slot == local.member.me || peer.state == PeerState::Up).then_some(())
    };
    let note = |url: &String| {
        format!(
            "{url} answers: with --dead it ends at once and hands nothing over, and without it gives its data away first"
        )
    };
    let dead = changes.iter().filter_map(|change| match change {
        PlacementChange::Replace { old, is_dead: true, .. } => Some(old),
        _ => None,
    });
    dead.filter(|url| answers(url).is_some()).map(note).collect()
}

/// Bytes of the data of this node, on disk and in memory.
fn stored_bytes(local: &Local) -> u64 {
    let stats = local.store.engine().stats();
    let tables: u64 = stats.levels.iter().map(|level| level.file_bytes).sum();
    tables + stats.memory.memtable_bytes
}

/// Mean size of a copy of a partition on the node `me`, which stores this number of bytes. `None`:
/// it holds no partition.
fn bytes_per_partition(record: &LayoutRecord, me: NodeIndex, stored_bytes: u64) -> Option<u64> {
    let from = usize::from(record.default_from).min(record.members.len());
    let lists = record.lists.chunks_exact(record.members.len().max(1));
    let held = lists.filter(|list| list[..from].contains(&me)).count() as u64;
    stored_bytes.checked_div(held)
}

impl LayoutPlans {
    fn find(&self, name: &str) -> Result<Arc<KeptPlan>, Problem> {
        let kept = self.kept.lock().clone();
        kept.filter(|kept| kept.name == name).ok_or_else(|| {
            let detail = format!(
                "This node does not keep the plan {name}: it was applied, another plan has replaced it, or the node has \
                 started again since. Plan again."
            );
            Problem::new(StatusCode::CONFLICT, detail)
        })
    }

    /// Forgets a plan that was applied, unless another one has replaced it.
    fn forget(&self, applied: &Arc<KeptPlan>) {
        let mut kept = self.kept.lock();
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, applied)) {
            *kept = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterOrigin, CommandObstacle, FEATURE_LEVEL_PLANS, LayoutEpoch, RecordHash};

    fn record() -> Arc<LayoutRecord> {
        let nodes = ["http://a:1", "http://b:1", "http://c:1", "http://d:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 16, hash_version: 1, default_from: 2, tag: NodeTag(7) };
        let mut record = LayoutRecord::first(origin).expect("four nodes are a cluster");
        record.feature_level = FEATURE_LEVEL_PLANS;
        (0..).zip(&mut record.members).for_each(|(id, member)| member.node_id = Some(NodeTag(10 + id)));
        Arc::new(record)
    }

    fn planned(base: &Arc<LayoutRecord>, weight: u16, rate_limit: Option<RateLimit>) -> PlannedChange {
        let changes = [PlacementChange::Weight { url: "http://a:1".to_owned(), weight }];
        let plan = PlacementPlan::new(base, &changes).expect("a possible change");
        PlannedChange { base: Arc::clone(base), plan, rate_limit }
    }

    fn status_of(answered: Result<EncodedResponse, Problem>) -> u16 {
        let response = answered.unwrap_or_else(|problem| problem.to_response(false));
        response.response.status().as_u16()
    }

    #[test]
    fn a_plan_is_applied_by_its_own_name_only() {
        let (plans, base) = (LayoutPlans::default(), record());
        let keep = |weight| {
            let change = planned(&base, weight, None);
            let name = change.name();
            *plans.kept.lock() = Some(Arc::new(KeptPlan { name: name.clone(), change }));
            name
        };
        let first = keep(2);
        let kept = plans.find(&first).expect("it is kept");
        let second = keep(3);
        assert_ne!(first, second);
        assert_eq!(
            status_of(plans.find(&first).map(|_| unreachable!())),
            409,
            "another operator has planned"
        );
        plans.forget(&kept);
        assert!(plans.find(&second).is_ok(), "only the applied plan is forgotten");
        let kept = plans.find(&second).expect("it is kept");
        plans.forget(&kept);
        assert!(plans.find(&second).is_err());
    }

    #[test]
    fn the_name_of_a_plan_depends_on_its_record_its_result_and_its_limit() {
        let base = record();
        let name = planned(&base, 2, None).name();
        assert_eq!(name, planned(&base, 2, None).name());
        assert_eq!(name.len(), 16);
        let other = Arc::new(LayoutRecord { parent: RecordHash([1; 32]), ..(*base).clone() });
        for change in
            [planned(&base, 3, None), planned(&base, 2, RateLimit::new(1)), planned(&other, 2, None)]
        {
            assert_ne!(change.name(), name);
        }
    }

    #[test]
    fn each_outcome_has_its_status() {
        let done = LayoutCommandOutcome::Done { epoch: LayoutEpoch(9), record: record() };
        let body = answer_of(done).expect("it has taken effect").response.into_body();
        assert_eq!(body, r#"{"epoch":9}"#);
        let refused = LayoutCommandOutcome::Refused(CommandRefusal::NoPlan);
        assert_eq!(status_of(answer_of(refused)), 409);
        let obstacle = CommandObstacle::NoMajority { able: 1, voters: 3 };
        let problem = answer_of(LayoutCommandOutcome::NotDecided(obstacle)).expect_err("no effect");
        let response = problem.to_response(false).response;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        let text = String::from_utf8_lossy(response.body()).into_owned();
        assert!(
            text.contains("1 of the 3 voters can be reached") && text.contains("Nothing was changed"),
            "{text}"
        );
        assert_eq!(status_of(answer_of(LayoutCommandOutcome::Unknown)), 504);
    }

    #[test]
    fn a_plan_that_leaves_too_few_members_is_refused_with_the_numbers() {
        let remove = |url: &str| PlacementChange::Remove { url: url.to_owned() };
        let changes = [remove("http://a:1"), remove("http://b:1"), remove("http://c:1")];
        let refusal = PlacementPlan::new(&record(), &changes).expect_err("one is left");
        let response = not_planned(&refusal).to_response(false).response;
        assert_eq!(response.status(), 409);
        let text = String::from_utf8_lossy(response.body()).into_owned();
        assert!(text.contains("1 nodes would hold data, and each key has 2 replicas"), "{text}");
    }

    #[test]
    fn the_preview_has_the_bytes_of_each_member_and_the_time_at_the_limit() {
        let base = record();
        let held = base.lists.chunks_exact(4).filter(|list| list[..2].contains(&NodeIndex(0))).count() as u64;
        assert_eq!(bytes_per_partition(&base, NodeIndex(0), held * 1_000), Some(1_000));
        assert_eq!(bytes_per_partition(&base, NodeIndex(9), 1_000), None, "it holds no partition");
        let change = planned(&base, 2, RateLimit::new(500));
        let document = serde_json::to_value(PlanDocument::of(&change, Some(1_000))).expect("JSON");
        let member = &document["members"][0];
        let gained = member["partitions_gained"].as_u64().expect("a number");
        assert!(gained > 0);
        assert_eq!(member["bytes_gained"], gained * 1_000);
        assert_eq!(document["seconds_at_limit"], gained * 2, "it has the most to move");
        assert_eq!(document["bytes_moved"], document["copies_moved"].as_u64().expect("a number") * 1_000);
        assert_eq!(document["plan"], change.name());
        let names = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().expect("an object").keys().cloned().collect()
        };
        let mut expected = vec![
            "plan",
            "epoch",
            "copies",
            "copies_moved",
            "bytes_moved",
            "bytes_per_partition",
            "bytes_per_second",
            "seconds_at_limit",
            "members",
            "moves",
            "notes",
        ];
        expected.sort_unstable();
        assert_eq!(names(&document), expected);
        let mut of_member = vec![
            "url",
            "zone",
            "weight",
            "is_removed",
            "share_before",
            "share_after",
            "partitions_gained",
            "partitions_lost",
            "bytes_gained",
            "bytes_lost",
        ];
        of_member.sort_unstable();
        assert_eq!(names(member), of_member);
        assert_eq!(names(&document["moves"][0]), ["bytes", "from", "is_from_dead", "partitions", "to"]);
        let unknown = serde_json::to_value(PlanDocument::of(&change, None)).expect("JSON");
        assert!(unknown["bytes_moved"].is_null() && unknown["seconds_at_limit"].is_null());
    }
}
