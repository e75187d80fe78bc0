//! A small Job-like type for the tests of this crate's merging modules: every kind of list, map and struct that the rules
//! tell apart, under names that are familiar.

use serde_json::{Value, json};

use crate::graph::{At, Field, Graph, List, ListPatch, Map, Presence, Scalar, Struct, Topology, Type, TypeId};

pub(crate) struct Sample {
    graph: Graph,
}

impl Sample {
    /// The Go type: structs are always there.
    pub fn job(&self) -> At<'_> {
        self.graph.named("Job").expect("named below")
    }

    /// A custom resource: nothing is there unless set, and `spec.free` keeps unknown fields.
    pub fn custom(&self) -> At<'_> {
        self.graph.named("Custom").expect("named below")
    }
}

struct Builder(Graph);

type Fields<'a> = &'a [(&'a str, TypeId, Presence)];

impl Builder {
    fn scalar(&mut self, scalar: Scalar) -> TypeId {
        self.0.add(Type::Scalar(scalar))
    }

    fn structure(&mut self, name: &str, fields: Fields<'_>) -> TypeId {
        self.shaped(name, fields, false, false)
    }

    fn shaped(&mut self, name: &str, fields: Fields<'_>, atomic: bool, preserve_unknown: bool) -> TypeId {
        let field = |&(name, ty, presence): &(&str, TypeId, Presence)| Field {
            name: name.to_owned(),
            number: 0,
            ty,
            presence,
            retain_keys: false,
        };
        let mut fields: Vec<Field> = fields.iter().map(field).collect();
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let id = self.0.add(Type::Struct(Struct { name: format!("test.{name}"), fields, atomic, preserve_unknown }));
        self.0.name(name, id);
        id
    }

    fn map(&mut self, values: TypeId, atomic: bool) -> TypeId {
        self.0.add(Type::Map(Map { values, atomic }))
    }

    fn list(&mut self, items: TypeId, topology: Topology, patch: ListPatch) -> TypeId {
        self.0.add(Type::List(List { items, topology, patch }))
    }

    fn keyed(&mut self, items: TypeId, keys: &[&str]) -> TypeId {
        let patch = ListPatch::Merge { key: keys[0].to_owned() };
        self.list(items, Topology::keyed(keys), patch)
    }
}

pub(crate) fn sample() -> Sample {
    use Presence::{Always, NonZero, Set as Given, Struct as Held};
    let mut b = Builder(Graph::new());
    let string = b.scalar(Scalar::String);
    let int = b.scalar(Scalar::Int32);
    let boolean = b.scalar(Scalar::Bool);
    let quantity = b.scalar(Scalar::Quantity);
    let time = b.scalar(Scalar::Time);
    let any = b.0.add(Type::Any);

    let labels = b.map(string, false);
    let finalizers = b.list(string, Topology::Set, ListPatch::Merge { key: String::new() });
    let strings = b.list(string, Topology::Atomic, ListPatch::Replace);
    let lists = b.list(strings, Topology::Atomic, ListPatch::Replace);
    let entry = b.structure("ManagedFieldsEntry", &[("manager", string, NonZero), ("fieldsV1", any, Given)]);
    let entries = b.list(entry, Topology::Atomic, ListPatch::Replace);
    let meta = b.structure(
        "ObjectMeta",
        &[
            ("name", string, NonZero),
            ("namespace", string, NonZero),
            ("uid", string, NonZero),
            ("resourceVersion", string, NonZero),
            ("generation", int, NonZero),
            ("creationTimestamp", time, Given),
            ("labels", labels, NonZero),
            ("annotations", labels, NonZero),
            ("finalizers", finalizers, NonZero),
            ("managedFields", entries, NonZero),
        ],
    );

    let env = b.structure("EnvVar", &[("name", string, Always), ("value", string, NonZero)]);
    let envs = b.keyed(env, &["name"]);
    let port = b.structure(
        "ContainerPort",
        &[("containerPort", int, Always), ("protocol", string, NonZero), ("name", string, NonZero)],
    );
    let ports = b.list(
        port,
        Topology::Map {
            keys: vec!["containerPort".to_owned(), "protocol".to_owned()],
            defaults: vec![("protocol".to_owned(), json!("TCP"))],
        },
        ListPatch::Merge { key: "containerPort".to_owned() },
    );
    let amounts = b.map(quantity, false);
    let resources =
        b.structure("ResourceRequirements", &[("limits", amounts, NonZero), ("requests", amounts, NonZero)]);
    let container = b.structure(
        "Container",
        &[
            ("name", string, Always),
            ("image", string, NonZero),
            ("command", strings, NonZero),
            ("env", envs, NonZero),
            ("ports", ports, NonZero),
            ("resources", resources, Held),
            ("tty", boolean, NonZero),
        ],
    );
    let containers = b.keyed(container, &["name"]);
    let toleration = b.structure("Toleration", &[("key", string, NonZero), ("operator", string, NonZero)]);
    let tolerations = b.list(toleration, Topology::Atomic, ListPatch::Replace);
    let selector_map = b.map(string, true);
    let empty_dir = b.structure("EmptyDirVolumeSource", &[("medium", string, NonZero)]);
    let config_map = b.structure("ConfigMapVolumeSource", &[("name", string, NonZero)]);
    let volume = b.structure(
        "Volume",
        &[("name", string, Always), ("emptyDir", empty_dir, Given), ("configMap", config_map, Given)],
    );
    let volumes = b.keyed(volume, &["name"]);
    let pod_spec = b.structure(
        "PodSpec",
        &[
            ("containers", containers, Always),
            ("nodeSelector", selector_map, NonZero),
            ("tolerations", tolerations, NonZero),
            ("volumes", volumes, NonZero),
            ("restartPolicy", string, NonZero),
        ],
    );
    let template = b.structure("PodTemplateSpec", &[("metadata", meta, Held), ("spec", pod_spec, Held)]);
    let selector = b.shaped("LabelSelector", &[("matchLabels", labels, NonZero)], true, false);
    let weird = b.map(labels, false);
    let free = b.shaped("", &[("known", int, Given)], false, true);
    let spec = b.structure(
        "JobSpec",
        &[
            ("parallelism", int, Given),
            ("completions", int, Given),
            ("suspend", boolean, Given),
            ("selector", selector, Given),
            ("template", template, Always),
            ("weird", weird, NonZero),
            ("raw", any, Given),
            ("free", free, Given),
            ("matrix", lists, NonZero),
        ],
    );
    let condition = b.structure("JobCondition", &[("type", string, Always), ("status", string, Always)]);
    let conditions = b.keyed(condition, &["type"]);
    let status = b.structure("JobStatus", &[("active", int, NonZero), ("conditions", conditions, NonZero)]);
    let kind = [("apiVersion", string, NonZero), ("kind", string, NonZero)];
    b.structure("Job", &[kind[0], kind[1], ("metadata", meta, Held), ("spec", spec, Held), ("status", status, Held)]);

    let custom_spec =
        b.shaped("", &[("free", free, Given), ("replicas", int, Given), ("raw", any, Given)], false, false);
    let custom_status = b.structure("", &[("phase", string, Given)]);
    b.structure(
        "Custom",
        &[kind[0], kind[1], ("metadata", meta, Given), ("spec", custom_spec, Given), ("status", custom_status, Given)],
    );
    Sample { graph: b.0 }
}

/// A Job with one container, the parts given merged over it field by field.
pub(crate) fn job(parts: Value) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "a", "namespace": "default"},
    });
    overlay(&mut job, parts);
    job
}

fn overlay(onto: &mut Value, parts: Value) {
    match (onto, parts) {
        (Value::Object(onto), Value::Object(parts)) => {
            for (key, value) in parts {
                overlay(onto.entry(key).or_insert(Value::Null), value);
            }
        }
        (onto, parts) => *onto = parts,
    }
}
