//! The built-in kinds: one [`Graph`] of their types, read from `facts/types.txt`, which `tools/schemagen` makes from
//! Kubernetes' own Go types.
//!
//! The file's grammar, one item a line:
//!
//! ```text
//! kind batch/v1 Job io.k8s.api.batch.v1.Job          a kind and its definition
//! type io.k8s.api.batch.v1.JobSpec map=atomic        a definition; its fields follow
//!   parallelism 1 int32 set                          name, protobuf number, type, presence, attributes
//!   + 2 @io.k8s.api.core.v1.VolumeSource             an embedded struct
//! ```
//!
//! Types are `string`, `string/v1.Protocol` (a named Go type), `[]T`, `{}T` (a map), `@definition` and the scalars of
//! [`Scalar`] by name. Attributes are `required`, `list=map:key,key`, `map=atomic`, `patch=merge:key`, and for OpenAPI
//! `enum=`, `default=`, `items.enum=`, `go=`; their values have no spaces.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::graph::{
    At, Embed, Field, Form, Graph, List, ListPatch, Map, Presence, Scalar, Struct, Topology, Type, TypeId,
};

const FACTS: &str = include_str!("../facts/types.txt");

/// The types of every built-in kind.
pub fn graph() -> &'static Graph {
    &BUILTIN.graph
}

/// The type of a built-in kind; the group of core is empty. Kinds of `meta/v1` (`DeleteOptions`, `Status`) belong to
/// every group and version, as they do upstream.
pub fn kind(group: &str, version: &str, kind: &str) -> Option<At<'static>> {
    let find = |group: &str, version: &str| {
        let i = BUILTIN.kinds.binary_search_by(|k| (k.group, k.version, k.kind).cmp(&(group, version, kind))).ok()?;
        graph().named(BUILTIN.kinds[i].definition)
    };
    find(group, version).or_else(|| find(META, "v1"))
}

/// The `ObjectMeta` that every stored object has, custom ones too.
pub fn object_meta() -> At<'static> {
    graph().named(OBJECT_META).expect("the facts file describes ObjectMeta")
}

/// Every kind the facts cover, sorted by group, version and kind.
pub fn kinds() -> &'static [Kind] {
    &BUILTIN.kinds
}

/// The group under which the facts file lists the kinds that belong to every group.
pub const META: &str = "meta.k8s.io";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub definition: &'static str,
}

struct Builtin {
    graph: Graph,
    kinds: Vec<Kind>,
}

static BUILTIN: LazyLock<Builtin> = LazyLock::new(|| {
    let facts = parse(FACTS);
    Builtin { graph: build(&facts.definitions), kinds: facts.kinds }
});

/// The facts as they stand in the file, for what the graph does not keep (OpenAPI's attributes).
pub(crate) struct Facts {
    pub kinds: Vec<Kind>,
    pub definitions: Vec<Definition>,
}

pub(crate) struct Definition {
    pub name: &'static str,
    pub attributes: Attributes,
    pub fields: Vec<FieldLine>,
    pub embeds: Vec<(u32, &'static str)>,
}

pub(crate) struct FieldLine {
    pub name: &'static str,
    pub number: u32,
    pub ty: &'static str,
    pub presence: Presence,
    pub attributes: Attributes,
}

/// `key=value` words, or bare ones with an empty value.
pub(crate) struct Attributes(&'static str);

impl Attributes {
    pub fn get(&self, key: &str) -> Option<&'static str> {
        self.0.split(' ').find_map(|word| match word.split_once('=') {
            Some((k, value)) if k == key => Some(value),
            None if word == key => Some(""),
            _ => None,
        })
    }

    pub fn json(&self, key: &str) -> Option<Value> {
        self.get(key).map(|text| serde_json::from_str(text).expect("the facts file has valid JSON"))
    }
}

pub(crate) fn facts() -> Facts {
    parse(FACTS)
}

// The file is part of this source tree: a mistake in it is a bug here, found by the first test that reads it.
fn parse(text: &'static str) -> Facts {
    let mut facts = Facts { kinds: Vec::new(), definitions: Vec::new() };
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("kind ") {
            facts.kinds.push(parse_kind(rest));
        } else if let Some(rest) = line.strip_prefix("type ") {
            let (name, attributes) = rest.split_once(' ').unwrap_or((rest, ""));
            let attributes = Attributes(attributes);
            facts.definitions.push(Definition { name, attributes, fields: Vec::new(), embeds: Vec::new() });
        } else if let Some(rest) = line.strip_prefix("  ") {
            parse_field(rest, facts.definitions.last_mut().expect("fields follow a type"));
        }
    }
    facts.kinds.sort();
    facts
}

fn parse_field(line: &'static str, definition: &mut Definition) {
    let mut words = line.splitn(5, ' ');
    let mut word = || words.next().unwrap_or("");
    let (name, number, ty) = (word(), word().parse().expect("a protobuf number"), word());
    if name == "+" {
        definition.embeds.push((number, ty.trim_start_matches('@')));
    } else {
        let presence = presence(word());
        definition.fields.push(FieldLine { name, number, ty, presence, attributes: Attributes(word()) });
    }
}

fn parse_kind(rest: &'static str) -> Kind {
    let mut words = rest.split(' ');
    let gv = words.next().unwrap_or("");
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    Kind { group, version, kind: words.next().unwrap_or(""), definition: words.next().unwrap_or("") }
}

fn presence(word: &str) -> Presence {
    match word {
        "nonzero" => Presence::NonZero,
        "set" => Presence::Set,
        "always" => Presence::Always,
        "struct" => Presence::Struct,
        "null" => Presence::Null,
        other => panic!("unknown presence {other:?} in the facts file"),
    }
}

fn build(definitions: &[Definition]) -> Graph {
    let mut builder = Builder { graph: Graph::new(), shared: HashMap::new(), defaults: HashMap::new() };
    let mut ids = Vec::with_capacity(definitions.len());
    for definition in definitions {
        let id = builder.graph.add(Type::Any);
        builder.graph.name(definition.name, id);
        builder.defaults.insert(definition.name, definition);
        ids.push(id);
    }
    for (definition, &id) in definitions.iter().zip(&ids) {
        let mut fields: Vec<Field> = definition.fields.iter().map(|line| builder.field(line)).collect();
        let mut embeds = Vec::new();
        for &(number, name) in &definition.embeds {
            embeds.push(Embed { number, ty: builder.graph.named(name).expect("embedded types are listed").id });
            builder.inline(name, &mut fields);
        }
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let atomic = definition.attributes.get("map") == Some("atomic");
        let name = definition.name.to_owned();
        builder.graph.set(id, Type::Struct(Struct { name, fields, atomic, preserve_unknown: false }));
        if !embeds.is_empty() {
            builder.graph.set_embeds(id, embeds);
        }
    }
    builder.graph
}

struct Builder<'f> {
    graph: Graph,
    /// Types that were written the same way before.
    shared: HashMap<String, TypeId>,
    defaults: HashMap<&'static str, &'f Definition>,
}

impl Builder<'_> {
    fn field(&mut self, line: &FieldLine) -> Field {
        let patch = line.attributes.get("patch").unwrap_or("");
        let retain_keys = patch.split(':').next().unwrap_or("").split(',').any(|s| s == "retainKeys");
        Field {
            name: line.name.to_owned(),
            number: line.number,
            ty: self.ty(line.ty, Some(&line.attributes)),
            presence: line.presence,
            retain_keys,
        }
    }

    /// Adds the fields of an embedded struct, whose protobuf numbers are not the outer struct's.
    fn inline(&mut self, name: &str, fields: &mut Vec<Field>) {
        let definition = self.defaults[name];
        for line in &definition.fields {
            let field = self.field(line);
            fields.push(Field { number: 0, ..field });
        }
        for (_, name) in &definition.embeds {
            self.inline(name, fields);
        }
    }

    /// `attributes` describe the outermost list or map of a field.
    fn ty(&mut self, text: &'static str, attributes: Option<&Attributes>) -> TypeId {
        if let Some(name) = text.strip_prefix('@') {
            return self.graph.named(name).unwrap_or_else(|| panic!("{name} is not in the facts file")).id;
        }
        let attribute = |key: &str| attributes.and_then(|a| a.get(key)).unwrap_or("");
        let go = attribute("go");
        let key = format!("{text} {} {} {} {go}", attribute("list"), attribute("map"), attribute("patch"));
        if let Some(&id) = self.shared.get(&key) {
            return id;
        }
        let id = if let Some(items) = text.strip_prefix("[]") {
            let topology = self.topology(attribute("list"), items);
            let patch = list_patch(attribute("patch"));
            let items = self.ty(items, None);
            self.graph.add(Type::List(List { items, topology, patch }))
        } else if let Some(values) = text.strip_prefix("{}") {
            let values = self.ty(values, None);
            self.graph.add(Type::Map(Map { values, atomic: attribute("map") == "atomic" }))
        } else {
            self.leaf(text)
        };
        if !go.is_empty() {
            self.graph.set_go_name(id, go);
        }
        self.shared.insert(key, id);
        id
    }

    fn leaf(&mut self, text: &str) -> TypeId {
        let (base, go) = text.split_once('/').unwrap_or((text, ""));
        let id = match (scalar(base), form(base)) {
            (Some(scalar), _) => self.graph.add(Type::Scalar(scalar)),
            (_, Some(form)) => {
                let id = self.graph.add(Type::Any);
                self.graph.set_form(id, form);
                id
            }
            _ => panic!("unknown type {text:?} in the facts file"),
        };
        if !go.is_empty() {
            self.graph.set_go_name(id, go);
        }
        id
    }

    fn topology(&self, list: &str, items: &str) -> Topology {
        match list.split_once(':').unwrap_or((list, "")) {
            ("set", _) => Topology::Set,
            ("map", keys) => {
                let item = self.defaults.get(items.trim_start_matches('@'));
                let default = |key: &str| {
                    let line = item?.fields.iter().find(|f| f.name == key)?;
                    Some((key.to_owned(), line.attributes.json("default")?))
                };
                Topology::Map {
                    keys: keys.split(',').map(str::to_owned).collect(),
                    defaults: keys.split(',').filter_map(default).collect(),
                }
            }
            _ => Topology::Atomic,
        }
    }
}

fn list_patch(patch: &str) -> ListPatch {
    let (strategies, key) = patch.split_once(':').unwrap_or((patch, ""));
    if strategies.split(',').any(|s| s == "merge") {
        ListPatch::Merge { key: key.to_owned() }
    } else {
        ListPatch::Replace
    }
}

fn scalar(name: &str) -> Option<Scalar> {
    Some(match name {
        "string" => Scalar::String,
        "bool" => Scalar::Bool,
        "int32" => Scalar::Int32,
        "int64" => Scalar::Int64,
        "double" => Scalar::Double,
        "bytes" => Scalar::Bytes,
        "quantity" => Scalar::Quantity,
        "intorstring" => Scalar::IntOrString,
        "time" => Scalar::Time,
        "microtime" => Scalar::MicroTime,
        "duration" => Scalar::Duration,
        _ => return None,
    })
}

fn form(name: &str) -> Option<Form> {
    Some(match name {
        "raw" | "fields" | "json" => Form::Raw,
        "schemaorbool" => Form::SchemaOrBool,
        "schemaorarray" => Form::SchemaOrArray,
        "schemaorstrings" => Form::SchemaOrStrings,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn field(definition: &str, name: &str) -> &'static Field {
        graph().named(definition).unwrap().field(name).unwrap_or_else(|| panic!("{definition} has no {name}"))
    }

    #[track_caller]
    fn list(definition: &str, name: &str) -> &'static List {
        match graph().get(field(definition, name).ty) {
            Type::List(list) => list,
            other => panic!("{name} is {other:?}"),
        }
    }

    const JOB_SPEC: &str = "io.k8s.api.batch.v1.JobSpec";
    const POD_SPEC: &str = "io.k8s.api.core.v1.PodSpec";
    const CONTAINER: &str = "io.k8s.api.core.v1.Container";
    const VOLUME: &str = "io.k8s.api.core.v1.Volume";

    #[test]
    fn fields_have_their_protobuf_numbers_and_presence() {
        let parallelism = field(JOB_SPEC, "parallelism");
        assert_eq!((parallelism.number, parallelism.presence), (1, Presence::Set));
        assert_eq!(graph().get(parallelism.ty), &Type::Scalar(Scalar::Int32));
        let template = field(JOB_SPEC, "template");
        assert_eq!((template.number, template.presence), (6, Presence::Always));
        assert_eq!(field(CONTAINER, "resources").presence, Presence::Struct);
        assert_eq!(field(OBJECT_META, "creationTimestamp").presence, Presence::NonZero);
        assert_eq!(
            field("io.k8s.api.authentication.v1.TokenRequestSpec", "expirationSeconds").presence,
            Presence::Null
        );
    }

    #[test]
    fn lists_know_their_keys() {
        let containers = list(POD_SPEC, "containers");
        assert_eq!(containers.patch, ListPatch::Merge { key: "name".into() });
        let keys = |list: &List| match &list.topology {
            Topology::Map { keys, .. } => keys.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(keys(containers), ["name"]);
        let ports = list(CONTAINER, "ports");
        assert_eq!(keys(ports), ["containerPort", "protocol"]);
        assert_eq!(ports.patch, ListPatch::Merge { key: "containerPort".into() });
        assert!(
            matches!(&ports.topology, Topology::Map { defaults, .. } if defaults.contains(&("protocol".into(), json!("TCP"))))
        );
        assert_eq!(list(POD_SPEC, "tolerations").topology, Topology::Atomic);
        assert_eq!(list(OBJECT_META, "finalizers").topology, Topology::Set);
        assert_eq!(list(OBJECT_META, "finalizers").patch, ListPatch::Merge { key: String::new() });
        assert!(field(POD_SPEC, "volumes").retain_keys);
    }

    #[test]
    fn structs_and_maps_know_whether_they_are_atomic() {
        let atomic = |name| matches!(graph().named(name).unwrap().ty(), Type::Struct(Struct { atomic: true, .. }));
        assert!(atomic("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"));
        assert!(!atomic(POD_SPEC));
        assert!(matches!(graph().get(field(POD_SPEC, "nodeSelector").ty), Type::Map(Map { atomic: true, .. })));
        assert!(matches!(graph().get(field(OBJECT_META, "labels").ty), Type::Map(Map { atomic: false, .. })));
    }

    #[test]
    fn embedded_structs_are_flat_in_json_and_nested_in_protobuf() {
        let volume = graph().named(VOLUME).unwrap();
        assert_eq!(field(VOLUME, "emptyDir").number, 0);
        let [embed] = graph().embeds(volume.id) else { panic!("one embedded struct") };
        assert_eq!(embed.number, 2);
        assert_eq!(graph().at(embed.ty).field("emptyDir").unwrap().number, 2);
        assert_eq!(kind("batch", "v1", "Job").unwrap().field("kind").unwrap().number, 0);
    }

    #[test]
    fn kinds_are_found_by_group_version_and_name() {
        assert!(kind("", "v1", "Pod").is_some());
        assert!(kind("batch", "v1", "CronJobList").is_some());
        assert!(kind("batch", "v1", "DeleteOptions").is_some(), "options belong to every group");
        assert!(kind("batch", "v1beta1", "Job").is_none());
        assert!(kind("apps", "v1", "Job").is_none());
    }

    #[test]
    fn every_struct_has_sorted_fields_and_distinct_protobuf_numbers() {
        for (name, id) in graph().names() {
            let Type::Struct(s) = graph().get(id) else { panic!("{name} is not a struct") };
            assert!(s.fields.windows(2).all(|w| w[0].name < w[1].name), "{name}");
            let mut numbers: Vec<u32> = s.fields.iter().map(|f| f.number).filter(|&n| n != 0).collect();
            numbers.extend(graph().embeds(id).iter().map(|e| e.number).filter(|&n| n != 0));
            numbers.sort_unstable();
            assert!(numbers.windows(2).all(|w| w[0] < w[1]), "{name}");
        }
    }
}
