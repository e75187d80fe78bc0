use super::*;
use crate::auth::bootstrap::defaults;
use crate::auth::identity::{AUTHENTICATED, MASTERS};
use crate::auth::rbac::authorize;

fn rules() -> Rules {
    let all = defaults();
    Rules::new(all.cluster_roles, all.cluster_role_bindings, all.roles, all.role_bindings)
}

fn subject_review(spec: Value) -> Result<Value, Refusal> {
    let rules = rules();
    subject_access_review(&json!({"spec": spec}), &|attributes| authorize(attributes, &rules))
}

fn self_review(user: &User, body: Value) -> Result<Value, Refusal> {
    let rules = rules();
    self_subject_access_review(&body, user, &|attributes| authorize(attributes, &rules))
}

#[test]
fn a_subject_access_review_answers_for_the_subject_it_names() {
    let pods = json!({"verb": "list", "resource": "pods", "namespace": "ns"});
    let root = subject_review(json!({"user": "x", "groups": [MASTERS], "resourceAttributes": pods})).unwrap();
    assert_eq!(root["status"], json!({"allowed": true}));
    assert_eq!(
        (&root["kind"], &root["apiVersion"]),
        (&json!("SubjectAccessReview"), &json!("authorization.k8s.io/v1"))
    );
    assert_eq!(root["spec"]["user"], "x");
    let jane = subject_review(json!({"user": "jane", "resourceAttributes": pods})).unwrap();
    assert_eq!(jane["status"], json!({"allowed": false}));
    let path =
        json!({"user": "x", "groups": [AUTHENTICATED], "nonResourceAttributes": {"verb": "get", "path": "/api"}});
    assert_eq!(
        subject_review(path).unwrap()["status"],
        json!({
            "allowed": true,
            "reason": "RBAC: allowed by ClusterRoleBinding \"system:discovery\" of ClusterRole \"system:discovery\" to \
                       Group \"system:authenticated\"",
        })
    );
}

#[test]
fn every_attribute_reaches_the_authorizer() {
    let asked = std::cell::RefCell::new(String::new());
    let spec = json!({"user": "u", "uid": "i", "groups": ["g"], "extra": {"k": ["v"]}, "resourceAttributes": {
        "namespace": "ns", "verb": "get", "group": "batch", "version": "v1", "resource": "jobs", "subresource": "status", "name": "n",
    }});
    let record = |a: &Attributes| {
        *asked.borrow_mut() = format!(
            "{} {} {:?} {:?} {} {} {} {} {} {} {}",
            a.user.name,
            a.user.uid,
            a.user.groups,
            a.user.extra,
            a.namespace,
            a.verb,
            a.group,
            a.version,
            a.resource,
            a.subresource,
            a.name
        );
        Decision::default()
    };
    subject_access_review(&json!({"spec": spec}), &record).unwrap();
    assert_eq!(*asked.borrow(), "u i [\"g\"] {\"k\": [\"v\"]} ns get batch v1 jobs status n");
}

#[test]
fn a_review_without_a_clear_question_is_invalid() {
    let message = |spec: Value| subject_review(spec).unwrap_err().message();
    assert_eq!(
        message(json!({})),
        "SubjectAccessReview.authorization.k8s.io \"\" is invalid: [spec: Invalid value: null: exactly one of \
         nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: \"\": at least one of \
         user or group must be specified]"
    );
    let both = json!({"user": "u", "resourceAttributes": {}, "nonResourceAttributes": {"path": "/x", "verb": "get"}});
    assert!(message(both).contains("spec: Invalid value: {\"Path\":\"/x\",\"Verb\":\"get\"}: exactly one of"));
    let rules = rules();
    let named = json!({"metadata": {"name": "x"}, "spec": {"user": "u", "resourceAttributes": {}}});
    let refused = subject_access_review(&named, &|a| authorize(a, &rules)).unwrap_err();
    assert!(refused.message().contains("metadata: Invalid value: {\"name\":\"x\"}: must be empty"));
    assert_eq!(refused.code(), 422);
    assert!(matches!(subject_review(json!({"user": 7})), Err(Refusal::BadRequest(_))));
    let managed = json!({"metadata": {"creationTimestamp": null, "managedFields": [{}]}, "spec": {"user": "u", "resourceAttributes": {}}});
    assert!(subject_access_review(&managed, &|a| authorize(a, &rules)).is_ok());
}

#[test]
fn selectors_are_checked_and_what_is_unknown_in_them_is_said() {
    let review = |attributes: Value| {
        self_review(&User::new("u", &[MASTERS]), json!({"spec": {"resourceAttributes": attributes}}))
    };
    let message = |attributes: Value| review(attributes).unwrap_err().message();
    assert!(message(json!({"fieldSelector": {}})).contains(
        "spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is \
         specified, requirements or rawSelector is required"
    ));
    let both = json!({"labelSelector": {"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]}});
    assert!(
        message(both).contains("labelSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time")
    );
    let empty = json!({"fieldSelector": {"requirements": [{"key": "", "operator": "In"}]}});
    assert!(message(empty.clone()).contains("requirements[0].key: Required value: must be specified"));
    assert!(
        message(empty)
            .contains("requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'")
    );
    let note = |attributes: Value| review(attributes).unwrap()["status"]["evaluationError"].clone();
    let new = json!({"key": "a", "operator": "Newer", "values": []});
    let old = json!({"key": "a", "operator": "In", "values": ["b"]});
    assert_eq!(
        note(
            json!({"labelSelector": {"requirements": [new.clone()]}, "fieldSelector": {"requirements": [new, old.clone()]}})
        ),
        "spec.resourceAttributes.fieldSelector partially ignored due to parse error; \
         spec.resourceAttributes.labelSelector ignored due to parse error"
    );
    assert_eq!(note(json!({"labelSelector": {"requirements": [old]}})), Value::Null);
}

#[test]
fn a_self_review_is_about_the_caller() {
    let body = json!({"spec": {"resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}}});
    assert_eq!(self_review(&User::new("root", &[MASTERS]), body.clone()).unwrap()["status"]["allowed"], true);
    assert_eq!(self_review(&User::new("jane", &[AUTHENTICATED]), body).unwrap()["status"]["allowed"], false);
    let nothing = self_review(&User::new("jane", &[]), json!({})).unwrap_err().message();
    assert!(
        nothing.starts_with("SelfSubjectAccessReview.authorization.k8s.io \"\" is invalid: spec: Invalid value: null")
    );
}

#[test]
fn a_local_review_stays_in_its_namespace() {
    let rules = rules();
    let review = |body: Value| local_subject_access_review(&body, "ns", &|a| authorize(a, &rules));
    let body = |own: &str, wanted: &str| json!({"metadata": {"namespace": own}, "spec": {"user": "u", "resourceAttributes": {"namespace": wanted}}});
    assert!(review(body("ns", "ns")).is_ok());
    let elsewhere = review(body("ns", "other")).unwrap_err().message();
    assert!(
        elsewhere
            .ends_with("spec.resourceAttributes.namespace: Invalid value: \"other\": must match metadata.namespace")
    );
    assert_eq!(
        review(body("other", "other")).unwrap_err(),
        Refusal::BadRequest("spec.resourceAttributes.namespace must match namespace: ns".to_owned())
    );
    let path = json!({"metadata": {"namespace": "ns"}, "spec": {"user": "u", "nonResourceAttributes": {"path": "/x"}}});
    assert!(review(path).unwrap_err().message().contains(
        "spec.nonResourceAttributes: Invalid value: {\"Path\":\"/x\",\"Verb\":\"\"}: disallowed on this kind of request"
    ));
}

#[test]
fn a_rules_review_lists_what_the_caller_may_do() {
    let review = |body: Value| self_subject_rules_review(&body, &User::new("jane", &[AUTHENTICATED]), &rules());
    let found = review(json!({"spec": {"namespace": "default"}})).unwrap();
    assert_eq!(found["spec"], json!({}));
    assert_eq!(found["status"]["incomplete"], false);
    let resources = found["status"]["resourceRules"].as_array().unwrap();
    assert!(resources.contains(&json!({
        "verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"],
    })));
    assert_eq!(found["status"]["nonResourceRules"].as_array().unwrap().len(), 2);
    assert_eq!(review(json!({})), Err(Refusal::BadRequest("no namespace on request".to_owned())));
}

#[test]
fn a_token_review_tells_whose_token_it_is() {
    let find = |token: &str, audiences: &[String]| match token {
        "good" => Ok((User::new("jane", &["dev"]), audiences.to_vec())),
        _ => Err(Unauthorized("invalid bearer token".to_owned())),
    };
    let review = |spec: Value| token_review(&json!({"spec": spec}), &find);
    let good = review(json!({"token": "good"})).unwrap();
    assert_eq!(
        good["status"],
        json!({"authenticated": true, "user": {"username": "jane", "groups": ["dev"]}, "audiences": [ISSUER]})
    );
    assert_eq!(good["apiVersion"], "authentication.k8s.io/v1");
    assert_eq!(
        review(json!({"token": "good", "audiences": ["vault"]})).unwrap()["status"]["audiences"],
        json!(["vault"])
    );
    assert_eq!(
        review(json!({"token": "bad"})).unwrap()["status"],
        json!({"user": {}, "error": "invalid bearer token"})
    );
    for spec in [json!({}), json!({"token": ""})] {
        assert_eq!(
            review(spec),
            Err(Refusal::BadRequest("token is required for TokenReview in authentication".to_owned()))
        );
    }
    assert!(review(json!({"token": 1})).is_err() && review(json!({"token": "x", "audiences": 1})).is_err());
}

#[test]
fn whoami_tells_the_caller_who_they_are() {
    let now = "2026-01-01T00:00:00.5Z".parse().unwrap();
    let answer = self_subject_review(&User::new("jane", &["dev"]), now);
    assert_eq!(answer["status"]["userInfo"], json!({"username": "jane", "groups": ["dev"]}));
    assert_eq!(answer["metadata"]["creationTimestamp"], "2026-01-01T00:00:00Z");
}

#[test]
fn bodies_that_are_not_objects_are_refused_without_a_panic() {
    let rules = rules();
    for body in [json!(null), json!([]), json!("x"), json!({"spec": []}), json!({"metadata": 7, "spec": {"user": "u"}})]
    {
        assert!(subject_access_review(&body, &|a| authorize(a, &rules)).is_err(), "{body}");
        assert!(local_subject_access_review(&body, "ns", &|a| authorize(a, &rules)).is_err(), "{body}");
        assert!(self_subject_rules_review(&body, &User::anonymous(), &rules).is_err(), "{body}");
        assert!(token_review(&body, &|_, _| Err(Unauthorized(String::new()))).is_err(), "{body}");
    }
}
