use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;

/// Set to write the files anew.
const UPDATE: &str = "USHER_UPDATE_DEPLOY";

fn deploy() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(text: &str) -> Vec<Value> {
    let documents = text.split("---\n").skip(1);
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn committed(path: &str) -> String {
    std::fs::read_to_string(deploy().join(path)).unwrap_or_default()
}

#[test]
fn the_committed_files_are_what_the_code_generates() {
    let mut expected = BTreeSet::new();
    for (path, text) in yaml::files().unwrap() {
        let file = deploy().join(&path);
        if std::env::var_os(UPDATE).is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        assert_eq!(committed(&path), text, "deploy/{path} is old: write it anew with {UPDATE}=1");
        expected.insert(file);
    }
    let mut found = BTreeSet::new();
    let mut open = vec![deploy()];
    while let Some(place) = open.pop() {
        for entry in std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => open.push(entry),
                false => found.extend([entry]),
            }
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn kustomize_and_the_command_install_the_same() {
    assert_eq!(read(&committed("usher.yaml")), all(&Settings::default()));
}

/// The chart uses nothing of Helm's language but these three.
#[test]
fn the_chart_with_its_values_installs_the_same() {
    let values: Value = serde_saphyr::from_str(&committed("helm/usher/values.yaml")).unwrap();
    let template = committed("helm/usher/templates/usher.yaml")
        .replace("{{ .Release.Namespace }}", "usher-system")
        .replace("{{ .Values.image }}", values["image"].as_str().unwrap())
        .replace("{{ .Values.replicas }}", &values["replicas"].to_string());
    assert!(!template.contains("{{"));
    assert_eq!(read(&template), installed(&Settings::default()));
    let definitions = usher_api::kueue::definitions();
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        assert_eq!(read(&committed(&format!("helm/usher/crds/{name}.yaml"))), [definition]);
    }
}

fn typed<K: DeserializeOwned>(kind: &str) -> Vec<K> {
    let of_kind = all(&Settings::default()).into_iter().filter(|object| object["kind"] == kind);
    of_kind.map(|object| serde_json::from_value(object).unwrap()).collect()
}

#[test]
fn objects_are_what_they_say_they_are() {
    let deployment = &typed::<Deployment>("Deployment")[0];
    assert_eq!(deployment.spec.replicas, Some(2));
    assert_eq!(typed::<PodDisruptionBudget>("PodDisruptionBudget").len(), 1);
    assert_eq!(typed::<Service>("Service").len(), 3);
    assert_eq!(typed::<APIService>("APIService").len(), 2);
    assert_eq!(typed::<MutatingWebhookConfiguration>("MutatingWebhookConfiguration").len(), 1);
    assert_eq!(typed::<ValidatingWebhookConfiguration>("ValidatingWebhookConfiguration").len(), 1);
    let mut seen = BTreeSet::new();
    for object in all(&Settings::default()) {
        let id = [&object["kind"], &object["metadata"]["namespace"], &object["metadata"]["name"]].map(Value::to_string);
        assert!(seen.insert(id.clone()), "twice: {id:?}");
    }
}

#[test]
fn no_right_is_given_for_everything() {
    let roles = typed::<ClusterRole>("ClusterRole").into_iter().filter_map(|role| role.rules);
    for rule in roles.chain(typed::<Role>("Role").into_iter().filter_map(|role| role.rules)).flatten() {
        let all = [&rule.verbs, rule.resources.as_ref().unwrap(), rule.api_groups.as_ref().unwrap()];
        assert!(all.iter().all(|list| !list.is_empty() && !list.iter().any(|entry| entry == "*")), "{rule:?}");
        let secret = rule.resources.as_ref().unwrap().iter().any(|resource| resource == "secrets");
        assert!(!secret || rule.resource_names.is_some() || rule.verbs == ["create"], "{rule:?}");
    }
}

/// When Usher is down, what it has nothing to do with goes on: nothing is asked about other kinds, and Jobs only where they
/// name a queue or would get one.
#[test]
fn jobs_that_are_not_queued_never_wait_for_a_webhook() {
    for object in webhooks::all(&Settings::default()) {
        for hook in object["webhooks"].as_array().unwrap() {
            assert_eq!(hook["failurePolicy"], "Fail", "{hook}");
            for rule in hook["rules"].as_array().unwrap() {
                assert!(!rule.to_string().contains('*'), "{rule}");
                if rule["apiGroups"][0] == "kueue.x-k8s.io" {
                    continue;
                }
                let (objects, namespaces) = (&hook["objectSelector"], &hook["namespaceSelector"]);
                let named = objects["matchExpressions"][0]["operator"] == "Exists";
                let has_default = namespaces["matchLabels"]["kueue.x-k8s.io/has-default-queue"] == "true";
                assert!(named || has_default, "{hook}");
            }
        }
    }
}
