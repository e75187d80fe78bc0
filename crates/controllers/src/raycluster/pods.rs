//! The pods of a RayCluster, made from the templates of its groups, with KubeRay's names and labels.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use usher_api::ray::keys::{HEAD_GROUP, label};
use usher_api::ray::{API_VERSION, RayCluster};

/// `-worker-` and five characters fit behind it.
const MAX_PREFIX: usize = 50;

/// What a pod is to be in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Head,
    /// The position of its group in the spec, the number of its replica, and which pod of that.
    Worker {
        group: usize,
        replica: u32,
        host: u32,
    },
}

pub fn labelled<'p>(pod: &'p Pod, key: &str) -> &'p str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// `None` if the spec has no such group any longer.
pub fn build(cluster: &RayCluster, place: &Place) -> Option<Pod> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let (template, group, kind, prefix) = match place {
        Place::Head => (&cluster.spec.head_group_spec.template, HEAD_GROUP, "head", name.to_owned()),
        Place::Worker { group, .. } => {
            let group = cluster.spec.worker_group_specs.get(*group)?;
            (&group.template, group.group_name.as_str(), "worker", format!("{name}-{}", group.group_name))
        }
    };
    let mut pod = from_template(cluster, template);
    pod.metadata.generate_name = Some(format!("{}-{kind}-", cut(&prefix)).to_lowercase());
    let labels = pod.metadata.labels.get_or_insert_default();
    for (key, value) in [(label::IS_RAY_NODE, "yes".to_owned()), (label::IDENTIFIER, format!("{}-{kind}", cut(name)))] {
        labels.entry(key.to_owned()).or_insert(value);
    }
    let mut put = |key: &str, value: &str| drop(labels.insert(key.to_owned(), value.to_owned()));
    put(label::CLUSTER, name);
    put(label::NODE_TYPE, kind);
    put(label::GROUP, group);
    if let Place::Worker { group, replica, host } = place {
        put(label::REPLICA_INDEX, &replica.to_string());
        if cluster.spec.worker_group_specs.get(*group)?.hosts() > 1 {
            put(label::HOST_INDEX, &host.to_string());
        }
    }
    Some(pod)
}

fn from_template(cluster: &RayCluster, template: &PodTemplateSpec) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "RayCluster".to_owned(),
        name: cluster.metadata.name.clone().unwrap_or_default(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    Pod {
        metadata: ObjectMeta {
            namespace: cluster.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

fn cut(prefix: &str) -> &str {
    let end = (0..=MAX_PREFIX.min(prefix.len())).rev().find(|at| prefix.is_char_boundary(*at)).unwrap_or(0);
    &prefix[..end]
}
