use super::*;
use crate::registry::kind::Gates;
use crate::registry::kinds::testing::{cells, create, create_errors, merged, update_errors};
use serde_json::json;

fn config(extra: Value) -> Value {
    let hook = json!({"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/mutate"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}]});
    json!({"metadata": {"name": "c", "creationTimestamp": "2026-01-01T00:00:00Z"}, "webhooks": [merged(hook, extra)]})
}

fn update(new: Value, old: Value) -> Vec<String> {
    update_errors(&ValidatingWebhookConfigurations, &Gates::default(), config(new), config(old))
}

#[test]
fn what_is_not_said_gets_upstreams_defaults() {
    let (stored, errors) = create(&MutatingWebhookConfigurations, config(json!({})));
    assert!(errors.is_empty(), "{errors:?}");
    let hook = &stored["webhooks"][0];
    let expected = json!({"failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
        "timeoutSeconds": 10, "reinvocationPolicy": "Never"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&hook[field], value, "{field}");
    }
    assert_eq!(hook["rules"][0]["scope"], "*");
    assert_eq!(hook["clientConfig"]["service"]["port"], 443);
    let (stored, _) = create(&ValidatingWebhookConfigurations, config(json!({})));
    assert_eq!(stored["webhooks"][0].get("reinvocationPolicy"), None);
}

#[test]
fn mistakes_are_refused() {
    let rule = |extra: Value| {
        let base = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
        json!({"rules": [merged(base, extra)]})
    };
    for (extra, expected) in [
        (
            json!({"name": "short"}),
            "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
        ),
        (
            json!({"sideEffects": null}),
            "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
        ),
        (
            json!({"sideEffects": "Some"}),
            "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
        ),
        (
            json!({"admissionReviewVersions": []}),
            "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
        ),
        (
            json!({"admissionReviewVersions": ["v2"]}),
            "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
        ),
        (
            json!({"admissionReviewVersions": ["v1", "v1"]}),
            "webhooks[0].admissionReviewVersions[1]: Invalid value: \"v1\": duplicate version",
        ),
        (
            json!({"timeoutSeconds": 31}),
            "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        ),
        (
            json!({"failurePolicy": "Maybe"}),
            "webhooks[0].failurePolicy: Unsupported value: \"Maybe\": supported values: \"Fail\", \"Ignore\"",
        ),
        (
            json!({"clientConfig": {"url": "https://a"}}),
            "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
        ),
        (
            json!({"clientConfig": {"service": {"name": ""}}}),
            "webhooks[0].clientConfig.service.namespace: Required value",
        ),
        (
            json!({"clientConfig": {"service": {"path": "a"}}}),
            "webhooks[0].clientConfig.service.path: Invalid value: \"a\": must start with a '/'",
        ),
        (rule(json!({"operations": []})), "webhooks[0].rules[0].operations: Required value"),
        (
            rule(json!({"operations": ["*", "CREATE"]})),
            "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
        ),
        (
            rule(json!({"operations": ["create"]})),
            "webhooks[0].rules[0].operations[0]: Unsupported value: \"create\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
        ),
        (
            rule(json!({"resources": ["pods/*", "pods/status"]})),
            "webhooks[0].rules[0].resources[1]: Invalid value: \"pods/status\": if 'pods/*' is present, must not specify pods/status",
        ),
        (
            rule(json!({"resources": ["*", "pods"]})),
            "webhooks[0].rules[0].resources: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not specify other resources without subresources",
        ),
        (
            rule(json!({"scope": "Galaxy"})),
            "webhooks[0].rules[0].scope: Unsupported value: \"Galaxy\": supported values: \"*\", \"Cluster\", \"Namespaced\"",
        ),
        (
            json!({"matchConditions": [{"name": "a", "expression": " "}]}),
            "webhooks[0].matchConditions[0].expression: Required value",
        ),
    ] {
        assert_eq!(create_errors(&MutatingWebhookConfigurations, config(extra.clone()))[..1], [expected], "{extra}");
    }
    let broken = create_errors(
        &ValidatingWebhookConfigurations,
        config(json!({"matchConditions": [{"name": "a", "expression": "object."}]})),
    );
    assert!(
        broken[0]
            .starts_with("webhooks[0].matchConditions[0].expression: Invalid value: \"object.\": compilation failed:")
    );
}

#[test]
fn urls_are_plain_https() {
    let errors = |url: &str| {
        let extra = json!({"clientConfig": {"service": null, "url": url}});
        create_errors(&ValidatingWebhookConfigurations, config(extra))
    };
    let at = "webhooks[0].clientConfig.url";
    let form = "; desired format: https://host[/path]";
    assert!(errors("https://example.com:8443/path").is_empty());
    assert_eq!(
        errors("http://a"),
        [format!("{at}: Invalid value: \"http\": 'https' is the only allowed URL scheme{form}")]
    );
    assert_eq!(errors("https:///x"), [format!("{at}: Invalid value: \"\": host must be specified{form}")]);
    assert_eq!(
        errors("https://u:p@a/?q=1#f"),
        [
            format!("{at}: Invalid value: \"u:p\": user information is not permitted in the URL"),
            format!("{at}: Invalid value: \"f\": fragments are not permitted in the URL"),
            format!("{at}: Invalid value: \"q=1\": query parameters are not permitted in the URL")
        ]
    );
    assert_eq!(
        errors(":x"),
        [format!("{at}: Required value: url must be a valid URL: parse \":x\": missing protocol scheme{form}")]
    );
}

#[test]
fn names_are_unique_and_not_reserved() {
    let mut twice = config(json!({}));
    twice["webhooks"] = json!([twice["webhooks"][0], twice["webhooks"][0]]);
    twice["metadata"]["name"] = json!("x.static.k8s.io");
    let errors = create_errors(&ValidatingWebhookConfigurations, twice);
    assert_eq!(errors[0], "webhooks[1].name: Duplicate value: \"a.example.com\"");
    assert!(
        errors[1]
            .starts_with("metadata.name: Invalid value: \"x.static.k8s.io\": names ending with \".static.k8s.io\"")
    );
}

#[test]
fn an_old_configuration_may_keep_what_was_once_allowed() {
    let old = json!({"sideEffects": "Some", "admissionReviewVersions": ["v2"], "matchConditions": [{"name": "a", "expression": "("}]});
    assert!(update(old.clone(), old).is_empty());
    assert_eq!(update(json!({"sideEffects": "Some"}), json!({})).len(), 1);
}

#[test]
fn the_webhooks_are_counted() {
    assert_eq!(Value::Array(cells(&MutatingWebhookConfigurations, config(json!({})))), json!(["c", 1, "60m"]));
    assert_eq!(MutatingWebhookConfigurations.resource().categories, ["api-extensions"]);
}
