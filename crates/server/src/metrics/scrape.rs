//! The response to `GET /metrics`.

use super::exposition::Exposition;
use super::source::MetricsSource;
use super::{Metrics, peers, requests, storage, system};
use crate::process::Process;
use api::EncodedResponse;
use http::StatusCode;
use std::sync::Arc;

/// Responds to `GET /metrics`.
pub(crate) async fn answer(process: &Arc<Process>, is_head: bool) -> EncodedResponse {
    let Some(metrics) = &process.metrics else {
        return api::encode_no_metrics(is_head);
    };
    let scrapes = Arc::clone(&metrics.scrapes);
    let permit = scrapes.acquire_owned().await.expect("the semaphore is not closed");
    let process = Arc::clone(process);
    let written = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        process.metrics.as_ref().map(|metrics| write(&process, metrics)).unwrap_or_default()
    });
    match written.await {
        Ok(text) => api::encode_metrics(text, is_head),
        Err(error) => {
            tracing::error!(%error, "metrics could not be written");
            let detail = "The metrics could not be written; this is a bug. See the log of the node.";
            api::Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).to_response(is_head)
        }
    }
}

fn write(process: &Process, metrics: &Metrics) -> String {
    let local = process.local.get().map(|local| &**local);
    let stats = local.map(|local| local.store.engine().stats()).unwrap_or_default();
    let source = MetricsSource { process, metrics, local, stats, now: process.env.clock.now() };
    let mut out = Exposition::default();
    system::write(&mut out, &source);
    requests::write(&mut out, &source);
    peers::write(&mut out, &source);
    storage::write(&mut out, &source);
    out.into_text()
}
