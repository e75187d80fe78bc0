//! From a POST to its answer, and a count of both.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::Around;
use super::review::{self, Answer};
use crate::probes::WebhookMetrics;
use crate::serve::{Answers, Peer, Reply, json, text};

pub const MUTATE: &str = "/mutate";
pub const VALIDATE: &str = "/validate";

/// An API server accepts objects of 3 MiB; a review carries two.
const MAX_BODY: usize = 8 * 1024 * 1024;

pub struct Webhooks {
    pub around: Around,
    pub metrics: WebhookMetrics,
}

impl Answers for Webhooks {
    async fn answer(&self, request: Request<Incoming>, _: Peer) -> Reply {
        let path = match request.uri().path() {
            MUTATE => MUTATE,
            VALIDATE => VALIDATE,
            _ => return text(StatusCode::NOT_FOUND, "webhooks are at /mutate and /validate\n"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "a webhook is asked with POST\n");
        }
        let began = Instant::now();
        let reply = match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => self.review(path, &body.to_bytes()).await,
            Err(error) => text(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {error}\n")),
        };
        self.metrics.answered(path, reply.status(), began.elapsed());
        reply
    }
}

impl Webhooks {
    async fn review(&self, path: &str, body: &Bytes) -> Reply {
        let request = match review::read(body) {
            Ok(request) => request,
            Err(error) => return text(StatusCode::BAD_REQUEST, &format!("{error}\n")),
        };
        let around = self.around.of(&request.namespace);
        let answer = if path == MUTATE {
            let follows = match request.owner() {
                Some(owner) => self.around.is_queued(&request.namespace, owner).await,
                None => false,
            };
            review::mutate(&request, around, follows)
        } else {
            review::validate(&request, around, self.around.gates())
        };
        if let Answer { refusal: Some(why), .. } = &answer {
            tracing::debug!(resource = request.resource.resource, namespace = request.namespace, %why, "refused");
        }
        json(StatusCode::OK, &review::render(&request.uid, &answer))
    }
}
