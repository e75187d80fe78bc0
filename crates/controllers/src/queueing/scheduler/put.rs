//! Writes a decision, once, and finds out whether it was written.
//!
//! A write names the revision it was made from, so it can take effect once at most, and can be tried again for as long as there is
//! no answer that settles it. Quota stays booked until then: a write whose answer was lost may have been carried out.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use usher_api::kueue::Workload;

use super::write::{Kind, Write};
use crate::queueing::merge_patch;
use crate::runtime::objects::is_conflict;
use crate::runtime::queue::backoff;

/// A server that is away or sheds load is asked again within this time.
const RETRY_CAP: Duration = Duration::from_secs(5);

/// The object as it is now; `None`: the workload is no longer as it was seen, and nothing was written.
pub async fn put(client: &Client, write: &Write) -> Option<Arc<Workload>> {
    let (from, to) = (serde_json::to_value(&write.of.status).ok()?, serde_json::to_value(&write.to).ok()?);
    let Some(status) = merge_patch::diff(&from, &to) else { return Some(write.of.clone()) };
    let meta = &write.of.metadata;
    let api = Api::<Workload>::namespaced(client.clone(), meta.namespace.as_deref().unwrap_or_default());
    let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status});
    let name = meta.name.as_deref().unwrap_or_default();
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let (mut failures, mut in_doubt) = (0, false);
    loop {
        let mut answer = api.patch_status(name, &params, &patch).await;
        if in_doubt {
            answer = look(&api, name, write, answer).await;
        }
        let error = match answer {
            Ok(now) => return Some(Arc::new(now)),
            Err(error) => error,
        };
        if is_answer(&error) {
            tracing::debug!(name, %error, "a decision could not be written; it is made again");
            return None;
        }
        failures += 1;
        // Whoever is told that there is too much to do was not listened to.
        in_doubt |= !matches!(&error, kube::Error::Api(status) if status.code == 429);
        tracing::debug!(name, %error, "a decision is written once more");
        tokio::time::sleep(backoff(failures, RETRY_CAP)).await;
    }
}

/// A conflict after a lost answer may be one with ourselves.
async fn look(
    api: &Api<Workload>,
    name: &str,
    write: &Write,
    answer: Result<Workload, kube::Error>,
) -> Result<Workload, kube::Error> {
    let Err(conflict) = answer else { return answer };
    if !is_conflict(&conflict) {
        return Err(conflict);
    }
    let now = api.get(name).await?;
    // What matters of an admission is who holds the quota; more may have happened since. The rest is decided again.
    let ours = now.metadata.uid == write.of.metadata.uid
        && write.kind == Kind::Admission
        && now.status.admission == write.to.admission;
    if ours { Ok(now) } else { Err(conflict) }
}

/// Whether the server has looked at the request and said no.
fn is_answer(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && !matches!(status.code, 408 | 429))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::Value;
    use usher_api::kueue::Workload;

    use super::*;

    /// A server that answers in turn: with a code, and whether it did what it was asked to.
    #[derive(Default)]
    struct Server {
        stored: Value,
        answers: VecDeque<(u16, bool)>,
        writes: usize,
    }

    fn client(server: &Arc<Mutex<Server>>) -> Client {
        let server = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let asked: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
                let mut server = server.lock();
                if parts.method == Method::GET {
                    return answer(200, server.stored.clone());
                }
                server.writes += 1;
                let (code, does) = server.answers.pop_front().expect("an answer");
                if asked["metadata"]["resourceVersion"] != server.stored["metadata"]["resourceVersion"] {
                    return answer(409, status(409));
                }
                if does {
                    server.stored["status"] = json!({"admission": {"clusterQueue": "q", "podSetAssignments": []}});
                    server.stored["metadata"]["resourceVersion"] = json!("8");
                }
                if code == 200 { answer(200, server.stored.clone()) } else { answer(code, status(code)) }
            }
        });
        Client::new(service, "default")
    }

    fn answer(code: u16, body: Value) -> Result<Response<Body>, kube::Error> {
        Ok(Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).expect("an answer"))
    }

    fn status(code: u16) -> Value {
        json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "No"})
    }

    async fn outcome(answers: &[(u16, bool)]) -> (Option<String>, usize) {
        let stored = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w", "namespace": "n",
            "uid": "u", "resourceVersion": "7"}, "spec": {"queueName": "q", "podSets": []}});
        let of: Workload = serde_json::from_value(stored.clone()).expect("a workload");
        let admission = json!({"admission": {"clusterQueue": "q", "podSetAssignments": []}});
        let to = serde_json::from_value(admission).expect("a status");
        let write = Write { of: Arc::new(of), to, kind: Kind::Admission, told: Vec::new() };
        let server = Server { stored, answers: answers.iter().copied().collect(), writes: 0 };
        let server = Arc::new(Mutex::new(server));
        let now = put(&client(&server), &write).await;
        let writes = server.lock().writes;
        (now.and_then(|now| now.metadata.resource_version.clone()), writes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_ends_with_an_answer_that_settles_it() {
        let written = Some("8".to_owned());
        assert_eq!(outcome(&[(200, true)]).await, (written.clone(), 1));
        assert_eq!(outcome(&[(409, false)]).await, (None, 1), "somebody was faster");
        assert_eq!(outcome(&[(404, false)]).await, (None, 1));
        assert_eq!(outcome(&[(429, false), (429, false), (200, true)]).await, (written.clone(), 3));
        assert_eq!(outcome(&[(504, false), (200, true)]).await, (written.clone(), 2), "it was not carried out");
        assert_eq!(outcome(&[(504, true), (200, true)]).await, (written, 2), "it was, and only the answer was lost");
        assert_eq!(outcome(&[(504, false), (409, false)]).await, (None, 2), "somebody was faster in between");
    }
}
