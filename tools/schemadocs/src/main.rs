//! Prints the descriptions of the served Kubernetes types, from the schemas of k8s-openapi, as
//! `crates/schema/facts/docs.txt`:
//!
//! ```text
//! cargo run --manifest-path tools/schemadocs/Cargo.toml > crates/schema/facts/docs.txt
//! ```
//!
//! A definition's line is its name and description, its fields' lines are indented; line breaks are written `\n`.
//! `apiVersion` and `kind`, the same everywhere, stand once under `TypeMeta`. Lists are not here: the crate has one
//! generic type for all.

use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as crd;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use k8s_openapi::schemars::SchemaGenerator;
use serde_json::Value;

macro_rules! types {
    ($generator:ident: $($ty:ty),* $(,)?) => { $( $generator.subschema_for::<$ty>(); )* };
}

const TYPE_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta";

fn main() {
    let mut generator = SchemaGenerator::default();
    types!(generator:
        core::v1::Namespace, core::v1::Pod, core::v1::Node, core::v1::ConfigMap, core::v1::Secret, core::v1::ServiceAccount,
        core::v1::Service, core::v1::Event, core::v1::PersistentVolumeClaim, core::v1::LimitRange, core::v1::ResourceQuota,
        core::v1::PodTemplate, core::v1::ReplicationController,
        admissionregistration::v1::MutatingWebhookConfiguration, admissionregistration::v1::ValidatingWebhookConfiguration,
        crd::CustomResourceDefinition, apiregistration::APIService, apps::v1::Deployment,
        batch::v1::Job, batch::v1::CronJob, coordination::v1::Lease, events::v1::Event, node::v1::RuntimeClass,
        rbac::v1::ClusterRole, rbac::v1::ClusterRoleBinding, rbac::v1::Role, rbac::v1::RoleBinding, scheduling::v1::PriorityClass,
    );
    types!(generator:
        core::v1::Binding, policy::v1::Eviction, autoscaling::v1::Scale,
        authentication::v1::TokenRequest, authentication::v1::TokenReview, authentication::v1::SelfSubjectReview,
        authorization::v1::LocalSubjectAccessReview, authorization::v1::SelfSubjectAccessReview,
        authorization::v1::SelfSubjectRulesReview, authorization::v1::SubjectAccessReview,
        meta::DeleteOptions, meta::ListMeta, meta::Status, meta::WatchEvent<k8s_openapi::apimachinery::pkg::runtime::RawExtension>,
        meta::APIResourceList, meta::APIGroup, meta::APIGroupList, meta::APIVersions,
    );
    let definitions = generator.take_definitions(false);
    let pod = &definitions["io.k8s.api.core.v1.Pod"]["properties"];
    let common = ["apiVersion", "kind"].map(|field| (field, description(&pod[field])));
    println!("{TYPE_META}");
    for (field, text) in &common {
        println!("  {field} {text}");
    }
    for (name, schema) in &definitions {
        println!("{}", format!("{name} {}", description(schema)).trim_end());
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let text = description(property);
            if !text.is_empty() && !common.contains(&(field.as_str(), text.clone())) {
                println!("  {field} {text}");
            }
        }
    }
}

fn description(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or("").replace('\\', "\\\\").replace('\n', "\\n")
}
