//! Who asks, and may they: from the credentials of a request to a user, and from a user to yes or no.
//!
//! The rules themselves are in [`crate::auth`], which sees neither the store nor HTTP. Here is what connects it to both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::auth::authenticate::Authenticator;
use crate::auth::identity::User;
use crate::auth::impersonation;
use crate::auth::jwt::{self, Live, LivePod, Lookup, SigningKey};
use crate::auth::rbac::escalation::Write;
use crate::auth::rbac::{self, Attributes, Decision, Rules};
use crate::auth::refusal::{Forbidden, Refusal};
use crate::auth::token_file::TokenFile;
use crate::auth::{reviews, token_request};
use crate::object::{self, Object};
use crate::registry::kind::Resource;
use crate::request::{Info, Query};
use crate::rest::{Answer, Ask, Target};
use crate::selector::FieldSelector;
use crate::server::{Options, Server};
use crate::service::Peer;
use crate::status::{ApiError, Result};
use crate::stored;

/// The secrets that authentication needs.
pub struct Keys {
    pub service_account: SigningKey,
    pub tokens: TokenFile,
}

/// The gatekeeper's state. The rules are derived from stored roles and bindings, anew when one of those was written.
pub(crate) struct Access {
    signing: SigningKey,
    authenticator: Authenticator,
    rules: RwLock<Arc<Rules>>,
    rules_are_old: AtomicBool,
    address: String,
}

impl Access {
    pub fn new(keys: Keys, options: &Options) -> Access {
        Access {
            authenticator: Authenticator::new(vec![keys.service_account.public().clone()], keys.tokens),
            signing: keys.service_account,
            rules: RwLock::default(),
            rules_are_old: AtomicBool::new(true),
            address: options.address.clone(),
        }
    }

    pub fn rules_changed(&self) {
        self.rules_are_old.store(true, Ordering::Release);
    }

    pub fn jwks(&self) -> Value {
        jwt::jwks(&self.authenticator.keys)
    }

    pub fn openid_configuration(&self) -> Value {
        jwt::openid_configuration(&self.address)
    }
}

impl Server {
    /// The user of a request, after impersonation.
    pub(crate) fn authenticate(&self, headers: &HeaderMap, peer: &Peer) -> Result<Arc<User>> {
        self.access().authenticator.request(peer.certificate.as_ref(), headers, self, self.clock().now()).map_err(
            |why| {
                tracing::debug!(%why, "a request was not authenticated");
                ApiError::unauthorized()
            },
        )
    }

    /// Refuses what the user may not do. Gives the user to go on with, who is someone else when the request says so.
    pub(crate) fn authorize(
        &self,
        user: Arc<User>,
        headers: &mut HeaderMap,
        info: &Info,
        query: &Query,
    ) -> Result<Arc<User>> {
        let rules = self.rules();
        let fields = query.get("fieldSelector").and_then(|text| FieldSelector::parse(text).ok());
        let name = info.authorized_name(fields.as_ref());
        let mut user = user;
        let wanted = impersonation::wanted(headers).map_err(ApiError::bad_request)?;
        if let Some(wanted) = wanted {
            impersonation::strip(headers);
            let asked = attributes(&user, info, &name);
            let allow = |a: &Attributes<'_>| rbac::authorize(a, &rules);
            user = Arc::new(impersonation::impersonate(&wanted, &asked, &allow).map_err(|f| forbidden(&f))?);
        }
        let asked = attributes(&user, info, &name);
        let Decision { allow, reason } = rbac::authorize(&asked, &rules);
        if allow { Ok(user) } else { Err(forbidden(&asked.forbidden(&reason))) }
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        let access = self.access();
        if access.rules_are_old.load(Ordering::Acquire) {
            // Under one lock, as the catalog is made: a right that was taken away must not come back by a race.
            let mut current = access.rules.write();
            if access.rules_are_old.swap(false, Ordering::AcqRel) {
                *current = Arc::new(Rules::new(
                    self.all_of("clusterroles"),
                    self.all_of("clusterrolebindings"),
                    self.all_of("roles"),
                    self.all_of("rolebindings"),
                ));
            }
        }
        access.rules.read().clone()
    }

    fn all_of<T: DeserializeOwned>(&self, plural: &str) -> Vec<T> {
        let collection = format!("rbac.authorization.k8s.io/{plural}");
        let page = self.store().list(&collection, &usher_store::ListOptions::default());
        page.into_iter().flat_map(|p| p.entries).filter_map(|e| serde_json::from_slice(&e.value).ok()).collect()
    }

    /// Nobody may hand out rights they do not have.
    pub(crate) fn check_escalation(&self, target: &Target<'_>, new: &Object, old: Option<&Object>) -> Result<()> {
        let resource = target.kind.resource();
        if resource.group != "rbac.authorization.k8s.io" {
            return Ok(());
        }
        let rules = self.rules();
        let write = Write {
            user: &target.ask.user,
            rules: &rules,
            namespace: target.namespace(),
            name_in_path: &target.ask.info.name,
        };
        let checked = match resource.plural.as_str() {
            "clusterroles" => write.cluster_role(&typed(new)?, old.map(typed).transpose()?.as_ref()),
            "roles" => write.role(&typed(new)?, old.map(typed).transpose()?.as_ref()),
            "clusterrolebindings" => write.cluster_role_binding(&typed(new)?, old.map(typed).transpose()?.as_ref()),
            "rolebindings" => write.role_binding(&typed(new)?, old.map(typed).transpose()?.as_ref()),
            _ => Ok(()),
        };
        checked.map_err(|refusal| refused(&refusal))
    }

    /// `POST serviceaccounts/x/token`.
    pub(crate) async fn issue_token(&self, target: &Target<'_>) -> Result<Answer> {
        let body = self.body_as(target, "authentication.k8s.io", "v1", "TokenRequest")?;
        let mut warnings = Vec::new();
        let dry_run = crate::request::WriteOptions::parse(&target.ask.query, "CreateOptions")?.dry_run;
        let body = self.reviewed(target, body, dry_run, &mut warnings).await?;
        let now = self.clock().now();
        let name = &target.ask.info.name;
        token_request::create(&body, target.namespace(), name, self, &self.access().signing, now, self.ids())
            .map(|answer| Answer::json(201, &answer).warned(warnings))
            .map_err(|refusal| refused(&refusal))
    }

    /// A question about access, answered in its `status`.
    pub(crate) async fn review(&self, ask: &Ask, resource: &Resource) -> Result<Answer> {
        ask.accepts_whole()?;
        let body = crate::rest::question_body(ask, resource)?;
        let rules = self.rules();
        let authorize = |a: &Attributes<'_>| rbac::authorize(a, &rules);
        let answer = match resource.kind.as_str() {
            "SubjectAccessReview" => reviews::subject_access_review(&body, &authorize),
            "LocalSubjectAccessReview" => reviews::local_subject_access_review(&body, &ask.info.namespace, &authorize),
            "SelfSubjectAccessReview" => reviews::self_subject_access_review(&body, &ask.user, &authorize),
            "SelfSubjectRulesReview" => reviews::self_subject_rules_review(&body, &ask.user, &rules),
            "SelfSubjectReview" => Ok(reviews::self_subject_review(&ask.user, self.clock().now())),
            "TokenReview" => {
                let now = self.clock().now();
                reviews::token_review(&body, &|token, audiences| {
                    self.access().authenticator.token(token, audiences, self, now)
                })
            }
            _ => return Err(ApiError::no_such_path()),
        };
        answer.map(|answer| Answer::json(201, &answer)).map_err(|refusal| match refusal {
            // Upstream has forgotten the kind of a review by the time it refuses it.
            Refusal::Invalid { group, name, errors, .. } => ApiError::invalid_kind(group, "", &name, &errors),
            other => refused(&other),
        })
    }
}

/// What is still there of the things a token is bound to.
impl Lookup for Server {
    fn service_account(&self, namespace: &str, name: &str) -> Option<Live> {
        self.live("core/serviceaccounts", namespace, name).map(|o| live(&o))
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<LivePod> {
        let pod = self.live("core/pods", namespace, name)?;
        let text = |at: &str| pod.pointer(at).and_then(Value::as_str).unwrap_or("").to_owned();
        Some(LivePod {
            live: live(&pod),
            service_account: text("/spec/serviceAccountName"),
            node: text("/spec/nodeName"),
        })
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Live> {
        self.live("core/secrets", namespace, name).map(|o| live(&o))
    }

    fn node(&self, name: &str) -> Option<Live> {
        self.live("core/nodes", "", name).map(|o| live(&o))
    }
}

impl Server {
    fn live(&self, collection: &str, namespace: &str, name: &str) -> Option<Object> {
        let entry = self.store().get(collection, &stored::key(namespace, name))?;
        serde_json::from_slice(&entry.value).ok()
    }
}

fn live(object: &Object) -> Live {
    Live {
        uid: object::uid(object).to_owned(),
        deleted_at: object::parse_time(object::meta_str(object, "deletionTimestamp")),
    }
}

fn typed<T: DeserializeOwned>(object: &Object) -> Result<T> {
    serde_json::from_value(object.clone()).map_err(|e| ApiError::bad_request(e.to_string()))
}

fn attributes<'a>(user: &'a User, info: &'a Info, name: &'a str) -> Attributes<'a> {
    if info.is_resource {
        Attributes {
            user,
            verb: info.verb,
            namespace: &info.namespace,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            name,
            path: None,
        }
    } else {
        Attributes::path(user, info.verb, &info.path)
    }
}

fn forbidden(f: &Forbidden) -> ApiError {
    ApiError::forbidden_on(&f.group, &f.resource, &f.name, &f.why)
}

fn refused(refusal: &Refusal) -> ApiError {
    match refusal {
        Refusal::Forbidden(f) => forbidden(f),
        Refusal::Invalid { group, kind, name, errors } => ApiError::invalid_kind(group, kind, name, errors),
        Refusal::Internal(why) => ApiError::internal(why),
        other => ApiError::other(other.code(), other.reason(), other.message()),
    }
}
