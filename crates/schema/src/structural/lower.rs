//! A schema as types of the [graph](crate::graph), for server-side apply and merges.

use super::schema::{Props, Structural, Ty};
use crate::graph::{Field, Graph, List, ListPatch, Map, Presence, Scalar, Struct, Topology, Type, TypeId};

impl Structural {
    /// Adds the type of the whole object to `graph`. `object_meta` is the type of `metadata`, at the root and in embedded
    /// resources.
    pub fn lower(&self, graph: &mut Graph, object_meta: TypeId) -> TypeId {
        let mut lowering = Lowering { graph, object_meta };
        let ty = lowering.structure(&self.root, true);
        lowering.graph.add(ty)
    }
}

struct Lowering<'g> {
    graph: &'g mut Graph,
    object_meta: TypeId,
}

impl Lowering<'_> {
    fn add(&mut self, props: &Props) -> TypeId {
        let ty = self.ty(props);
        self.graph.add(ty)
    }

    fn ty(&mut self, props: &Props) -> Type {
        if props.int_or_string {
            return Type::Scalar(Scalar::IntOrString);
        }
        match props.ty {
            Ty::Unset | Ty::Other => Type::Any,
            Ty::String => Type::Scalar(Scalar::String),
            Ty::Boolean => Type::Scalar(Scalar::Bool),
            Ty::Integer => Type::Scalar(Scalar::Int64),
            Ty::Number => Type::Scalar(Scalar::Double),
            Ty::Array => self.list(props),
            Ty::Object if props.has_additional() && props.properties.is_empty() => {
                let values = match props.additional() {
                    Some(values) => self.add(values),
                    None => self.graph.add(Type::Any),
                };
                Type::Map(Map { values, atomic: is_atomic(props) })
            }
            Ty::Object => self.structure(props, props.embedded),
        }
    }

    fn structure(&mut self, props: &Props, resource: bool) -> Type {
        let mut fields: Vec<Field> = Vec::with_capacity(props.properties.len() + 3);
        for (name, child) in &props.properties {
            if !(resource && name == "metadata") {
                fields.push(field(name, self.add(child)));
            }
        }
        if resource {
            fields.push(field("metadata", self.object_meta));
            for name in ["apiVersion", "kind"] {
                if !props.properties.contains_key(name) {
                    fields.push(field(name, self.graph.add(Type::Scalar(Scalar::String))));
                }
            }
            fields.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let preserve_unknown = props.preserves_unknown();
        Type::Struct(Struct { name: String::new(), fields, atomic: is_atomic(props), preserve_unknown })
    }

    fn list(&mut self, props: &Props) -> Type {
        let items = match props.items() {
            Some(items) => self.add(items),
            None => self.graph.add(Type::Any),
        };
        let topology = match props.list_type.as_deref() {
            Some("set") => Topology::Set,
            Some("map") => {
                let fields = props.items().map(|items| &items.properties);
                let default = |key: &String| {
                    let value = fields.and_then(|f| f.get(key)).and_then(|p| p.default.clone())?;
                    Some((key.clone(), value))
                };
                Topology::Map {
                    keys: props.map_keys.clone(),
                    defaults: props.map_keys.iter().filter_map(default).collect(),
                }
            }
            _ => Topology::Atomic,
        };
        Type::List(List { items, topology, patch: ListPatch::Replace })
    }
}

fn is_atomic(props: &Props) -> bool {
    props.map_type.as_deref() == Some("atomic")
}

fn field(name: &str, ty: TypeId) -> Field {
    Field { name: name.to_owned(), number: 0, ty, presence: Presence::Set, retain_keys: false }
}
