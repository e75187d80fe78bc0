//! The type graph: structs, maps, lists and scalars, with the facts about each field that Kubernetes keeps in Go struct
//! tags and markers (protobuf number, `omitempty`, merge keys, list types).
//!
//! A graph is an arena because types recur (`JSONSchemaProps` contains itself). [`At`] is a position in one: an arena and a
//! type in it, cheap to copy, and what every algorithm of this crate takes.

use std::collections::HashMap;

/// An arena of types. The built-in kinds share one; each version of a custom resource has its own.
#[derive(Debug, Default)]
pub struct Graph {
    types: Vec<Type>,
    names: HashMap<String, TypeId>,
    forms: HashMap<TypeId, Form>,
    embeds: HashMap<TypeId, Vec<Embed>>,
    go_names: HashMap<TypeId, String>,
}

/// Index of a type in its [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    Struct(Struct),
    /// A JSON object with free keys and values of one type (Go's `map[string]T`).
    Map(Map),
    List(List),
    Scalar(Scalar),
    /// Any JSON, kept as it is and merged as one value (`RawExtension`, `x-kubernetes-preserve-unknown-fields` leaves).
    Any,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Struct {
    /// The definition's OpenAPI name (`io.k8s.api.batch.v1.JobSpec`); empty for an inline struct of a custom resource.
    pub name: String,
    /// Sorted by name.
    pub fields: Vec<Field>,
    /// Server-side apply treats it as one value (`x-kubernetes-map-type: atomic`, Go's `+structType=atomic`).
    pub atomic: bool,
    /// Fields not listed are kept rather than dropped (custom resources only).
    pub preserve_unknown: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// As in JSON.
    pub name: String,
    /// Protobuf field number; 0 where there is none.
    pub number: u32,
    pub ty: TypeId,
    pub presence: Presence,
    /// Strategic merge's `retainKeys`: a patch of this struct or list item removes the fields it does not name.
    pub retain_keys: bool,
}

/// When Go's encoder writes a field, which decides what a stored object looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// `omitempty` on a plain value: left out when "", 0, false or an empty list or map.
    NonZero,
    /// A pointer with `omitempty`: left out only when absent; an explicit zero is kept.
    Set,
    /// No `omitempty`: always written, as its zero value when absent (`null` for a list or a map).
    Always,
    /// A struct held by value with `omitempty`, which Go ignores for structs: always written, `{}` when empty.
    Struct,
    /// A pointer without `omitempty`: always written, `null` when absent.
    Null,
}

/// What a [`Type::Any`] of a built-in kind is in Go, for the codecs: its JSON is free or nearly so, but its protobuf
/// message is not. To merges and applies it is one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `runtime.RawExtension`, `metav1.FieldsV1`, apiextensions' `JSON`: JSON text in protobuf field 1.
    Raw,
    /// A schema or `true`/`false`.
    SchemaOrBool,
    /// A schema or a list of schemas.
    SchemaOrArray,
    /// A schema or a list of strings.
    SchemaOrStrings,
}

/// A Go struct embedded in another: its fields are the outer one's in JSON, a message of its own in protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed {
    /// Protobuf field number in the outer struct; 0 where there is none (`TypeMeta`).
    pub number: u32,
    pub ty: TypeId,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    pub values: TypeId,
    /// Server-side apply treats it as one value (a label selector's `matchLabels` under an atomic struct is not this).
    pub atomic: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct List {
    pub items: TypeId,
    /// How server-side apply tells items apart (`x-kubernetes-list-type`).
    pub topology: Topology,
    /// How a strategic merge patch combines items (`patchStrategy`, `patchMergeKey`).
    pub patch: ListPatch,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Topology {
    /// One value, replaced whole.
    #[default]
    Atomic,
    /// Scalars, each present at most once.
    Set,
    /// Structs told apart by these fields, in this order. `defaults` gives a key field's value when an item lacks it
    /// (`protocol: TCP` of a container port).
    Map { keys: Vec<String>, defaults: Vec<(String, serde_json::Value)> },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListPatch {
    #[default]
    Replace,
    /// Scalars: union. Structs: merged by this key (empty for scalars).
    Merge { key: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    String,
    Bool,
    Int32,
    Int64,
    /// JSON number with a fraction.
    Double,
    /// base64 in JSON.
    Bytes,
    Quantity,
    IntOrString,
    /// `metav1.Time`: RFC 3339, whole seconds, UTC.
    Time,
    /// `metav1.MicroTime`: RFC 3339 with six digits of fraction, UTC.
    MicroTime,
    /// `metav1.Duration`: a Go duration string.
    Duration,
}

/// A position in a graph: what every algorithm here walks.
#[derive(Clone, Copy, Debug)]
pub struct At<'g> {
    pub graph: &'g Graph,
    pub id: TypeId,
}

impl Graph {
    pub fn new() -> Graph {
        Graph::default()
    }

    pub fn add(&mut self, ty: Type) -> TypeId {
        let id = TypeId(u32::try_from(self.types.len()).expect("fewer than 2^32 types"));
        self.types.push(ty);
        id
    }

    /// Names a type so that it can be found with [`Graph::named`].
    pub fn name(&mut self, name: &str, id: TypeId) {
        self.names.insert(name.to_owned(), id);
    }

    /// Replaces a type added before: how recursive types are closed.
    pub fn set(&mut self, id: TypeId, ty: Type) {
        self.types[id.0 as usize] = ty;
    }

    pub fn set_form(&mut self, id: TypeId, form: Form) {
        self.forms.insert(id, form);
    }

    /// Of a [`Type::Any`].
    pub fn form(&self, id: TypeId) -> Option<Form> {
        self.forms.get(&id).copied()
    }

    pub fn set_embeds(&mut self, id: TypeId, embeds: Vec<Embed>) {
        self.embeds.insert(id, embeds);
    }

    /// Of a struct. The fields of what is embedded are also among the struct's own, with number 0.
    pub fn embeds(&self, id: TypeId) -> &[Embed] {
        self.embeds.get(&id).map_or(&[], Vec::as_slice)
    }

    pub fn set_go_name(&mut self, id: TypeId, name: &str) {
        self.go_names.insert(id, name.to_owned());
    }

    /// The Go name of a scalar, list or map type that has one (`v1.Protocol`): it appears in decoding errors.
    pub fn go_name(&self, id: TypeId) -> Option<&str> {
        self.go_names.get(&id).map(String::as_str)
    }

    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    /// Copies a type of another graph, and all it leads to, into this one.
    pub fn import(&mut self, from: At<'_>) -> TypeId {
        self.import_seen(from, &mut HashMap::new())
    }

    fn import_seen(&mut self, from: At<'_>, seen: &mut HashMap<TypeId, TypeId>) -> TypeId {
        if let Some(&id) = seen.get(&from.id) {
            return id;
        }
        let id = self.add(Type::Any);
        seen.insert(from.id, id);
        let mut ty = from.ty().clone();
        match &mut ty {
            Type::Struct(s) => {
                for field in &mut s.fields {
                    field.ty = self.import_seen(from.to(field.ty), seen);
                }
            }
            Type::Map(m) => m.values = self.import_seen(from.to(m.values), seen),
            Type::List(l) => l.items = self.import_seen(from.to(l.items), seen),
            Type::Scalar(_) | Type::Any => {}
        }
        self.set(id, ty);
        id
    }

    pub fn named(&self, name: &str) -> Option<At<'_>> {
        self.names.get(name).map(|&id| At { graph: self, id })
    }

    pub fn names(&self) -> impl Iterator<Item = (&str, TypeId)> {
        self.names.iter().map(|(name, &id)| (name.as_str(), id))
    }

    pub fn at(&self, id: TypeId) -> At<'_> {
        At { graph: self, id }
    }
}

impl<'g> At<'g> {
    pub fn ty(self) -> &'g Type {
        self.graph.get(self.id)
    }

    pub fn to(self, id: TypeId) -> At<'g> {
        At { graph: self.graph, id }
    }

    /// The named field of a struct.
    pub fn field(self, name: &str) -> Option<&'g Field> {
        match self.ty() {
            Type::Struct(s) => s.field(name),
            _ => None,
        }
    }

    /// Where the value under this key of a struct or map goes on.
    pub fn child(self, key: &str) -> Option<At<'g>> {
        match self.ty() {
            Type::Struct(s) => s.field(key).map(|f| self.to(f.ty)),
            Type::Map(m) => Some(self.to(m.values)),
            _ => None,
        }
    }

    /// The item type of a list.
    pub fn items(self) -> Option<At<'g>> {
        match self.ty() {
            Type::List(l) => Some(self.to(l.items)),
            _ => None,
        }
    }
}

impl Struct {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|i| &self.fields[i])
    }
}

impl Topology {
    pub fn keyed(keys: &[&str]) -> Topology {
        Topology::Map { keys: keys.iter().map(|k| (*k).to_owned()).collect(), defaults: Vec::new() }
    }
}
