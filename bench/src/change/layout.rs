//! The layout of a cluster as a node shows it, and commands on it.

use crate::BenchResult;
use bench::{HttpResponse, fetch};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of a command. A node answers one within 10 seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a command is repeated that the node could not carry out.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const PATH: &str = "/v0/layout";

/// The members of the document that the scenario uses.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LayoutView {
    pub(super) epoch: u64,
    pub(super) feature_level: u32,
    pub(super) members: Vec<MemberView>,
    pub(super) plan: Option<PlanView>,
}

/// A member of the cluster.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct MemberView {
    pub(super) url: String,
    pub(super) node_id: Option<String>,
    pub(super) health: String,
}

/// The running change.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PlanView {
    pub(super) state: String,
    pub(super) copies_left: Option<u64>,
    pub(super) steps: Vec<StepView>,
}

/// The partitions that pass from one member to another now.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StepView {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) phase: String,
    pub(super) since_epoch: u64,
    /// Only the gaining node knows its copy.
    pub(super) copy: Option<CopyView>,
}

/// The copy of a step.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct CopyView {
    pub(super) bytes: u64,
}

impl StepView {
    /// Whether its partitions have two sets of replicas, of which the old one is read.
    pub(super) fn is_prepared(&self) -> bool {
        self.phase == "prepare"
    }
}

impl PlanView {
    /// The plan as text: its state, and the number of steps in each phase.
    pub(super) fn summary(&self) -> String {
        let count = |phase: &str| self.steps.iter().filter(|step| step.phase == phase).count();
        let phases = ["prepare", "read-new", "back", "new"].map(|phase| (phase, count(phase)));
        let phases = phases.into_iter().filter(|(_, count)| *count > 0);
        let phases: Vec<String> = phases.map(|(phase, count)| format!("{count} {phase}")).collect();
        if phases.is_empty() { self.state.clone() } else { format!("{}: {}", self.state, phases.join(", ")) }
    }
}

/// A change of the members, by their URLs.
#[derive(Clone, Debug)]
pub(super) enum LayoutChange {
    Add(String),
    Remove(String),
    /// The first member does not come back.
    ReplaceDead(String, String),
}

impl LayoutChange {
    fn command(&self) -> Value {
        match self {
            Self::Add(url) => json!({ "command": "plan", "add": [url] }),
            Self::Remove(url) => json!({ "command": "plan", "remove": [url] }),
            Self::ReplaceDead(old, new) => {
                json!({ "command": "plan", "replace": [{ "old": old, "new": new, "dead": true }] })
            }
        }
    }
}

/// Parses a document of `GET /v0/layout`.
pub(super) fn parse(answer: &HttpResponse) -> BenchResult<LayoutView> {
    match answer.status {
        200 => Ok(serde_json::from_slice(&answer.body)?),
        status => Err(format!("{PATH} is answered with {status}").into()),
    }
}

/// Has the node at `address` plan a change.
pub(super) fn plan(address: SocketAddr, change: &LayoutChange) -> BenchResult<String> {
    let planned = send(address, &change.command())?;
    let name = planned["plan"].as_str().ok_or_else(|| format!("the plan has no name: {planned}"))?;
    println!("  plan {name} of {change:?}: {} of {} copies move", planned["copies_moved"], planned["copies"]);
    Ok(name.to_owned())
}

/// Begins the change of a plan that the node keeps. Returns the epoch in which it begins.
pub(super) fn apply(address: SocketAddr, plan: &str) -> BenchResult<u64> {
    let begun = send(address, &json!({ "command": "apply", "plan": plan }))?;
    begun["epoch"].as_u64().ok_or_else(|| format!("the change has no epoch: {begun}").into())
}

/// Sends a command, and repeats it while the node says that nothing was done.
fn send(address: SocketAddr, command: &Value) -> BenchResult<Value> {
    let begun = Instant::now();
    loop {
        let answer = fetch(address, "POST", PATH, command.to_string().as_bytes(), COMMAND_TIMEOUT)?;
        match answer.status {
            200..300 => return Ok(serde_json::from_slice(&answer.body)?),
            503 if begun.elapsed() < PATIENCE => thread::sleep(RETRY_PAUSE),
            status => {
                let said = String::from_utf8_lossy(&answer.body);
                return Err(format!("{command} is answered with {status}: {}", said.trim()).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_of_a_node_is_parsed_with_its_running_steps() {
        let body = json!({
            "cluster_id": "00ff", "epoch": 7, "feature_level": 3, "partitions": 8,
            "members": [
                { "url": "http://a:1", "node_id": "0a", "health": "up", "epoch": 7 },
                { "url": "http://b:1", "node_id": null, "health": "unknown", "epoch": null },
            ],
            "plan": {
                "state": "running", "copies_left": 5, "seconds": 3,
                "steps": [
                    { "from": "http://a:1", "to": "http://b:1", "phase": "prepare", "since_epoch": 6,
                      "copy": { "permille": 10, "cells": 2, "bytes": 300 } },
                    { "from": "http://c:1", "to": "http://b:1", "phase": "new", "since_epoch": 7, "copy": null },
                    { "from": "http://d:1", "to": "http://b:1", "phase": "prepare", "since_epoch": 7, "copy": null },
                ],
            },
        });
        let answer = |status| HttpResponse { status, head: Vec::new(), body: body.to_string().into_bytes() };
        let view = parse(&answer(200)).unwrap();
        let plan = view.plan.unwrap();
        assert_eq!((view.epoch, view.feature_level, plan.copies_left), (7, 3, Some(5)));
        assert_eq!(
            (view.members[0].node_id.as_deref(), view.members[1].node_id.as_deref()),
            (Some("0a"), None)
        );
        assert_eq!(plan.summary(), "running: 2 prepare, 1 new");
        assert_eq!(plan.steps[0].copy.map(|copy| copy.bytes), Some(300));
        assert!(plan.steps[0].is_prepared() && !plan.steps[1].is_prepared());
        assert!(parse(&answer(503)).is_err());
    }

    #[test]
    fn a_change_is_a_command_that_a_node_decodes() {
        let [a, b] = ["http://a:1", "http://b:1"].map(str::to_owned);
        for change in
            [LayoutChange::Add(a.clone()), LayoutChange::Remove(a.clone()), LayoutChange::ReplaceDead(a, b)]
        {
            let command = change.command().to_string();
            assert!(api::LayoutCommandRequest::decode(command.as_bytes()).is_ok(), "{command}");
        }
    }
}
