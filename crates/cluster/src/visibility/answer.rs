//! Answers who waits, to those who may know: the API server says who may (a SubjectAccessReview), the scheduler who waits.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::caller::{Caller, FrontProxy};
use super::path::{self, Asked, Line};
use crate::names::VISIBILITY_GROUP as GROUP;
use crate::serve::{Answers, Peer, Reply, json};

/// Who waits in a line, from an offset on, at most so many; None if there is no such queue.
pub type Source = Arc<dyn Fn(Line, usize, usize) -> BoxFuture<'static, Option<Vec<Value>>> + Send + Sync>;

pub struct Visibility {
    pub client: Client,
    pub proxy: Option<FrontProxy>,
    /// None while another copy leads.
    pub source: Box<dyn Fn() -> Option<Source> + Send + Sync>,
}

impl Answers for Visibility {
    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Reply {
        let (version, line) = match path::read(request.uri().path()) {
            Asked::Discovery(document) => return json(StatusCode::OK, &document),
            Asked::Unknown => return refusal(404, "NotFound", "the server could not find the requested resource"),
            Asked::Pending { version, line } => (version, line),
        };
        if request.method() != Method::GET {
            let message = "the server does not allow this method on the requested resource";
            return refusal(405, "MethodNotAllowed", message);
        }
        let certificate = peer.as_deref();
        let caller = self.proxy.as_ref().and_then(|proxy| proxy.identify(request.headers(), certificate));
        let Some(caller) = caller else { return refusal(401, "Unauthorized", "Unauthorized") };
        match self.may(&caller, version, &line).await {
            Ok(true) => {}
            Ok(false) => return refusal(403, "Forbidden", &forbidden(&caller, &line)),
            Err(error) => {
                let message = format!("cannot ask whether {} may see this: {error}; try again", caller.user);
                return refusal(500, "InternalError", &message);
            }
        }
        let (offset, limit) = match path::window(request.uri().query().unwrap_or_default()) {
            Ok(window) => window,
            Err(problem) => return refusal(400, "BadRequest", &problem),
        };
        let Some(source) = (self.source)() else {
            let message = "another copy of usher leads and knows who waits; try again in a moment";
            return refusal(503, "ServiceUnavailable", message);
        };
        match source(line.clone(), offset, limit).await {
            Some(items) => json(
                StatusCode::OK,
                &json!({"kind": "PendingWorkloadsSummary", "apiVersion": format!("{GROUP}/{version}"),
                    "metadata": {}, "items": items}),
            ),
            None => not_found(&line),
        }
    }
}

impl Visibility {
    async fn may(&self, caller: &Caller, version: &str, line: &Line) -> Result<bool, kube::Error> {
        let review = serde_json::from_value(review(caller, version, line)).map_err(kube::Error::SerdeError)?;
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&Default::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

fn review(caller: &Caller, version: &str, line: &Line) -> Value {
    let (resource, name, namespace) = parts(line);
    json!({"metadata": {}, "spec": {"user": caller.user, "groups": caller.groups, "extra": caller.extra,
        "resourceAttributes": {"verb": "get", "group": GROUP, "version": version, "resource": resource,
            "subresource": "pendingworkloads", "name": name, "namespace": namespace}}})
}

fn parts(line: &Line) -> (&'static str, &str, &str) {
    match line {
        Line::ClusterQueue(name) => ("clusterqueues", name, ""),
        Line::LocalQueue { namespace, name } => ("localqueues", name, namespace),
    }
}

fn forbidden(caller: &Caller, line: &Line) -> String {
    let (resource, name, namespace) = parts(line);
    let scope = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    format!(
        "{resource}.{GROUP} {name:?} is forbidden: User {:?} cannot get resource \"{resource}/pendingworkloads\" in API group \"{GROUP}\" {scope}",
        caller.user
    )
}

/// Upstream names the queue by its singular here.
fn not_found(line: &Line) -> Reply {
    let (resource, name, _) = parts(line);
    let singular = resource.trim_end_matches('s');
    let mut status = status(404, "NotFound", &format!("{singular}.{GROUP} {name:?} not found"));
    status["details"] = json!({"name": name, "group": GROUP, "kind": singular});
    json(StatusCode::NOT_FOUND, &status)
}

fn refusal(code: u16, reason: &str, message: &str) -> Reply {
    let http = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(http, &status(code, reason, message))
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eve() -> Caller {
        Caller { user: "eve".to_owned(), groups: vec!["g".to_owned()], ..Caller::default() }
    }

    #[test]
    fn who_may_see_a_line_is_asked_for_that_line() {
        let line = Line::LocalQueue { namespace: "n".to_owned(), name: "q".to_owned() };
        let asked = review(&eve(), "v1beta2", &line);
        assert_eq!(asked["spec"]["user"], "eve");
        assert_eq!(
            asked["spec"]["resourceAttributes"],
            json!({"verb": "get", "group": GROUP, "version": "v1beta2", "resource": "localqueues",
                "subresource": "pendingworkloads", "name": "q", "namespace": "n"})
        );
        let typed: Result<SubjectAccessReview, _> = serde_json::from_value(asked);
        assert!(typed.is_ok());
    }

    #[test]
    fn a_refusal_says_who_may_not_see_what() {
        let said = forbidden(&eve(), &Line::ClusterQueue("q".to_owned()));
        assert_eq!(
            said,
            "clusterqueues.visibility.kueue.x-k8s.io \"q\" is forbidden: User \"eve\" cannot get resource \
             \"clusterqueues/pendingworkloads\" in API group \"visibility.kueue.x-k8s.io\" at the cluster scope"
        );
    }
}
