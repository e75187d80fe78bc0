//! What Usher's own objects on a cluster are called. Manifests, code and docs/cluster.md say the same names.

/// Where Usher lives, unless told otherwise.
pub const NAMESPACE: &str = "usher-system";
/// Deployment, ServiceAccount, roles, budget.
pub const USHER: &str = "usher";
pub const WEBHOOK_SERVICE: &str = "usher-webhook-service";
pub const VISIBILITY_SERVICE: &str = "usher-visibility-server";
pub const METRICS_SERVICE: &str = "usher-metrics-service";
/// Holds the serving certificate and the authority that signed it.
pub const CERTIFICATE_SECRET: &str = "usher-webhook-server-cert";
pub const LEASE: &str = "usher-controller";
pub const MUTATING_CONFIGURATION: &str = "usher-mutating-webhook-configuration";
pub const VALIDATING_CONFIGURATION: &str = "usher-validating-webhook-configuration";

pub const WEBHOOK_PORT: u16 = 9443;
pub const VISIBILITY_PORT: u16 = 8082;
pub const PROBE_PORT: u16 = 8081;

/// On namespaces that have a LocalQueue `default`: Jobs there are queued without naming a queue. Kept by the leader.
pub const HAS_DEFAULT_QUEUE: &str = "kueue.x-k8s.io/has-default-queue";
/// On the pod that leads: the visibility API is answered there.
pub const LEADER_LABEL: &str = "usher/leader";
/// The label that all objects of an installation share.
pub const APP_LABEL: &str = "app.kubernetes.io/name";

/// Namespaces whose Jobs are nobody's to queue unless they say so.
pub const SYSTEM_NAMESPACE: &str = "kube-system";

/// Who writes, as managed fields show it.
pub const FIELD_MANAGER: &str = "usher";

pub const VISIBILITY_GROUP: &str = "visibility.kueue.x-k8s.io";
pub const VISIBILITY_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The user that Usher is on the cluster.
pub fn service_account_user(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{USHER}")
}

/// The names the serving certificate must be valid for.
pub fn serving_names(namespace: &str) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    for service in [WEBHOOK_SERVICE, VISIBILITY_SERVICE] {
        names.extend([format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")]);
    }
    names
}
