//! Answers of peers, and replies to clients.

use super::{cell, failures, meta};
use crate::player::Player;
use cluster::{Acks, NodeResponse, Page, PeerAnswer, RangeAnswer, ReplicaResponse, Reply};
use stdx::{Cell, CellKind};

pub(super) fn answer(player: &mut Player, answer: &PeerAnswer) -> String {
    match answer {
        PeerAnswer::Replica(response) => response_text(player, response),
        PeerAnswer::Node(NodeResponse::Heartbeat(_)) => "heartbeat".to_owned(),
        PeerAnswer::Node(NodeResponse::Range(answer)) => range_answer(player, answer),
        PeerAnswer::Node(NodeResponse::Chain(response)) => format!("{response:?}"),
        PeerAnswer::Node(NodeResponse::Layout(_)) => "layout record".to_owned(),
        PeerAnswer::Node(NodeResponse::Copied(answer)) => format!("{answer:?}"),
        PeerAnswer::Failed(fault) => failures::replica_fault(fault),
    }
}

fn response_text(player: &mut Player, response: &ReplicaResponse) -> String {
    match response {
        ReplicaResponse::Cell(None) | ReplicaResponse::Meta(None) => "none".to_owned(),
        ReplicaResponse::Cell(Some(cell)) => bare_cell(player, cell),
        ReplicaResponse::Meta(Some(held)) => {
            let deleted = if held.kind == CellKind::Tombstone { "deleted" } else { "" };
            format!("{deleted}{}", meta(player, held))
        }
        ReplicaResponse::Written { superseded: false } => "written".to_owned(),
        ReplicaResponse::Written { superseded: true } => "written, superseded".to_owned(),
        ReplicaResponse::HintsKept => "hint kept".to_owned(),
        ReplicaResponse::Page { page, rest } => {
            let more = if rest.is_some() { ", more follow" } else { "" };
            format!("{}{more}", page_text(player, page))
        }
        ReplicaResponse::SamePage => "same".to_owned(),
        ReplicaResponse::SnapshotEnded => "scan ended".to_owned(),
    }
}

fn range_answer(player: &mut Player, answer: &RangeAnswer) -> String {
    let (entries, until) = match answer {
        RangeAnswer::Same => return "same".to_owned(),
        RangeAnswer::Versions { entries, until } => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, held)| {
                    let deleted = if held.kind == CellKind::Tombstone { " deleted" } else { "" };
                    format!("{}{deleted}{}", player.names.of_key(key.as_bytes()), meta(player, held))
                })
                .collect();
            (entries, until)
        }
        RangeAnswer::Cells { entries, until } => {
            (entries.iter().map(|(key, held)| cell(player, key.as_bytes(), held)).collect(), until)
        }
    };
    let more = if until.is_some() { ", more follow" } else { "" };
    format!("[{}]{more}", entries.join(", "))
}

/// A cell without its key: `v@1`, or `deleted@2`.
fn bare_cell(player: &mut Player, cell: &Cell) -> String {
    let with_key = super::cell(player, b"?", cell);
    with_key.trim_start_matches('?').trim_start_matches(['=', ' ']).to_owned()
}

pub(super) fn reply(player: &mut Player, reply: &Reply) -> String {
    match reply {
        Reply::Found { cell, acks } => format!("found {}, {}", bare_cell(player, cell), of(*acks)),
        Reply::Missing { acks } => format!("not found, {}", of(*acks)),
        Reply::Written { version, superseded, acks } => {
            let superseded = if *superseded { ", superseded" } else { "" };
            format!("written {}, {}{superseded}", player.names.of_version(*version), of(*acks))
        }
        Reply::Page { page, is_last } => {
            let last = if *is_last { "last page" } else { "page" };
            format!("{last} {}", page_text(player, page))
        }
        Reply::Failed(failure) => format!("failed, {}", failures::failure(failure)),
    }
}

pub(super) fn of(acks: Acks) -> String {
    format!("{} of {}", acks.got, acks.from)
}

fn page_text(player: &mut Player, page: &Page) -> String {
    let entries: Vec<String> = page
        .entries()
        .map(|entry| (entry.key.to_vec(), entry.cell.to_cell()))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(key, held)| cell(player, &key, &held))
        .collect();
    format!("[{}]", entries.join(", "))
}
