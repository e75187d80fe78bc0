//! ServiceAccounts. Their tokens are made by the server, through the `token` subresource.

use k8s_openapi::api::core::v1::{ObjectReference, ServiceAccount};

use crate::registry::kind::{Cx, Kind, Resource};

const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

pub struct ServiceAccounts;

impl Kind for ServiceAccounts {
    type Object = ServiceAccount;

    fn delete_shows_object(&self) -> bool {
        true
    }

    fn resource(&self) -> Resource {
        let token = ("authentication.k8s.io", "v1", "TokenRequest");
        Resource::namespaced("", "v1", "ServiceAccount", "serviceaccounts").short(&["sa"]).sub(
            "token",
            &["create"],
            Some(token),
        )
    }

    fn prepare_create(&self, _cx: &Cx, account: &mut ServiceAccount) {
        keep_only_secret_names(account);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut ServiceAccount, _old: &ServiceAccount) {
        keep_only_secret_names(new);
    }

    fn warnings(&self, new: &ServiceAccount, old: Option<&ServiceAccount>) -> Vec<String> {
        let has = |account: &ServiceAccount| {
            account.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MOUNTABLE_SECRETS))
        };
        if !has(new) || old.is_some_and(has) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )]
    }
}

fn keep_only_secret_names(account: &mut ServiceAccount) {
    for secret in account.secrets.iter_mut().flatten() {
        *secret = ObjectReference { name: secret.name.take(), ..ObjectReference::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kinds::testing::create;
    use serde_json::json;

    #[test]
    fn secrets_are_kept_by_name_only() {
        let (stored, errors) =
            create(&ServiceAccounts, json!({"metadata": {"name": "a"}, "secrets": [{"name": "s", "kind": "Secret"}]}));
        assert!(errors.is_empty());
        assert_eq!(stored["secrets"], json!([{"name": "s"}]));
    }

    #[test]
    fn a_deprecated_annotation_warns_when_it_is_added() {
        let with: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"annotations": {MOUNTABLE_SECRETS: "true"}}})).unwrap();
        assert_eq!(ServiceAccounts.warnings(&with, None).len(), 1);
        assert!(ServiceAccounts.warnings(&with, Some(&with)).is_empty());
    }

    #[test]
    fn tokens_are_asked_for_in_their_own_group() {
        let token = &ServiceAccounts.resource().subresources[0];
        assert_eq!(token.body, Some(("authentication.k8s.io".into(), "v1".into(), "TokenRequest".into())));
        assert_eq!(token.verbs, ["create"]);
    }
}
