//! What a schema says, read once: [`Props`] is a `JSONSchemaProps` with its types checked, its patterns compiled and
//! what is below each node summed up, so that walking an object skips the parts that have nothing to do there.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::Value;

use super::formats::Format;
use super::rules::Rule;
use super::{check, default_check, parse, rules};
use crate::field::{Errors, Path, quote};

/// How deep a schema may nest. Upstream has no such number (its decoder stops at 10,000); real schemas stay below 40.
pub(super) const MAX_DEPTH: usize = 64;

/// The compiled schema of one version.
#[derive(Debug)]
pub struct Structural {
    pub(super) root: Props,
    /// As the CustomResourceDefinition has it, for OpenAPI.
    pub(super) source: Value,
}

/// What the surrounding CustomResourceDefinition decides about its schemas.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the schema is in the CustomResourceDefinition, for error messages. Upstream shows
    /// `spec.validation.openAPIV3Schema` when all versions share one schema.
    pub path: Path,
    /// The status subresource restricts what may be said at the root.
    pub status_subresource: bool,
    /// Whether `default` must not contain fields that pruning would drop (not required of old data).
    pub require_pruned_defaults: bool,
    /// Whether rules that could be too expensive are refused (not those of definitions that were accepted before).
    pub limit_costs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            path: Path::new("spec").child("validation").child("openAPIV3Schema"),
            status_subresource: false,
            require_pruned_defaults: true,
            limit_costs: false,
        }
    }
}

impl Structural {
    /// Compiles a version's `openAPIV3Schema`, or says everything that is wrong with it.
    pub fn compile(schema: &Value) -> Result<Structural, Errors> {
        Structural::compile_with(schema, &Options::default())
    }

    pub fn compile_with(schema: &Value, options: &Options) -> Result<Structural, Errors> {
        let mut errors = Errors::new();
        let mut root = parse::props(schema, &options.path, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        check::root(&root, schema, options, &mut errors);
        let unconvertible = check::unconvertible(&root);
        let mut sound = unconvertible.is_none();
        if sound {
            let mut found = check::structural(&root, &options.path);
            if found.is_empty() {
                found = default_check::defaults(&root, options);
            }
            sound = found.is_empty();
            errors.extend(found);
        }
        let schema_errors = check::openapi(&root, &options.path);
        let compile_rules = sound && schema_errors.is_empty();
        errors.extend(schema_errors);
        if let Some(detail) = unconvertible.filter(|_| errors.is_empty()) {
            // Mostly said better by the checks above: only shown when they are silent.
            errors.invalid(&options.path, "", detail);
        }
        if compile_rules {
            rules::compile(&mut root, &options.path, options.limit_costs, &mut errors);
        }
        if errors.is_empty() {
            // Rules may refuse a default, which can only be seen once they are compiled.
            errors.extend(default_check::rules(&root, options));
        }
        if errors.is_empty() { Ok(Structural { root, source: schema.clone() }) } else { Err(errors) }
    }

    /// Accepts everything and keeps everything: what a version without a schema means.
    pub fn any() -> Structural {
        let root = Props { ty: Ty::Object, preserve_unknown: Some(true), ..Props::default() };
        let source = serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        Structural { root, source }
    }

    /// Whether any rule (`x-kubernetes-validations`) is declared.
    pub fn has_rules(&self) -> bool {
        self.root.below.rules
    }
}

impl Structural {
    /// What a client should hear about an accepted schema, each once and sorted. Nothing is compiled for it.
    pub fn warnings(schema: &Value) -> Vec<String> {
        let mut out = BTreeSet::new();
        warn(&parse::props(schema, &Path::default(), &mut Errors::new()), &mut out);
        out.into_iter().collect()
    }
}

fn warn(props: &Props, out: &mut BTreeSet<String>) {
    if !props.format_name.is_empty() && props.format.is_none() {
        out.insert(format!("unrecognized format {}", quote(&props.format_name)));
    }
    if props.list_type.as_deref() == Some("set")
        && let Some(items) = props.items().filter(|i| matches!(i.ty, Ty::Object | Ty::Array))
    {
        out.insert(format!(
            "x-kubernetes-list-type: set for items of type {} is not supported by server-side apply or CEL validation rules",
            quote(items.ty.name())
        ));
    }
    let junctors = props.all_of.iter().chain(&props.any_of).chain(&props.one_of).chain(props.not.as_deref());
    let spine = props.properties.values().chain(props.items()).chain(props.additional());
    junctors.chain(spine).for_each(|child| warn(child, out));
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ty {
    #[default]
    Unset,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// A name that is none of the above; refused by `check`.
    Other,
}

impl Ty {
    pub fn name(self) -> &'static str {
        match self {
            Ty::Unset | Ty::Other => "",
            Ty::Object => "object",
            Ty::Array => "array",
            Ty::String => "string",
            Ty::Integer => "integer",
            Ty::Number => "number",
            Ty::Boolean => "boolean",
        }
    }
}

/// One node of a schema. The same type serves the structural part and what stands below `allOf` and its like: `check`
/// makes sure that the latter says nothing it must not.
#[derive(Debug, Default)]
pub(super) struct Props {
    pub ty: Ty,
    /// As written, for messages about it.
    pub ty_name: String,
    pub described: bool,
    pub titled: bool,
    pub nullable: bool,
    pub default: Option<Value>,
    pub format_name: String,
    pub format: Option<Format>,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: String,
    pub regex: Option<Regex>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub multiple_of: Option<f64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<String>,
    pub allowed: Vec<Value>,
    pub properties: BTreeMap<String, Props>,
    pub additional: Additional,
    pub items: Items,
    pub all_of: Vec<Props>,
    pub any_of: Vec<Props>,
    pub one_of: Vec<Props>,
    pub not: Option<Box<Props>>,
    pub preserve_unknown: Option<bool>,
    pub embedded: bool,
    pub int_or_string: bool,
    pub list_type: Option<String>,
    pub map_keys: Vec<String>,
    pub map_type: Option<String>,
    pub rules: Vec<Rule>,
    /// Keywords of JSON Schema that are decoded but refused (`$ref`, `definitions`, ...).
    pub unsupported: Vec<&'static str>,
    /// Whether nothing besides `type` is said here (to recognise int-or-string's `anyOf`).
    pub only_type: bool,
    /// Whether nothing besides `type`, `properties` and `default` is said here (what `metadata` may say).
    pub only_structure: bool,
    pub below: Below,
}

/// What this node or one below it has, along the structural part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Below {
    pub rules: bool,
    pub defaults: bool,
    /// A list of type `set` or `map`.
    pub keyed_lists: bool,
    pub embedded: bool,
}

#[derive(Debug, Default)]
pub(super) enum Additional {
    #[default]
    Absent,
    Allowed(bool),
    Schema(Box<Props>),
}

#[derive(Debug, Default)]
pub(super) enum Items {
    #[default]
    Absent,
    Schema(Box<Props>),
    /// An array of schemas, which is refused.
    Several,
}

impl Props {
    pub fn items(&self) -> Option<&Props> {
        match &self.items {
            Items::Schema(props) => Some(props),
            _ => None,
        }
    }

    pub fn additional(&self) -> Option<&Props> {
        match &self.additional {
            Additional::Schema(props) => Some(props),
            _ => None,
        }
    }

    pub fn has_additional(&self) -> bool {
        !matches!(self.additional, Additional::Absent)
    }

    /// The schema of the value under `key`, and whether it is a declared field (else a key of a map).
    pub fn child(&self, key: &str) -> Option<(&Props, bool)> {
        match self.properties.get(key) {
            Some(props) => Some((props, true)),
            None => self.additional().map(|props| (props, false)),
        }
    }

    pub fn preserves_unknown(&self) -> bool {
        self.preserve_unknown == Some(true)
    }

    pub fn is_list_map(&self) -> bool {
        self.list_type.as_deref() == Some("map")
    }

    /// The node's own entry in [`Below`] and that of its children, once those are known.
    pub fn summarise(&mut self) {
        let mut below = Below {
            rules: !self.rules.is_empty(),
            defaults: self.default.is_some(),
            keyed_lists: matches!(self.list_type.as_deref(), Some("map" | "set")),
            embedded: self.embedded,
        };
        let children = self.properties.values().chain(self.items()).chain(self.additional());
        for child in children {
            below.rules |= child.below.rules;
            below.defaults |= child.below.defaults;
            below.keyed_lists |= child.below.keyed_lists;
            below.embedded |= child.below.embedded;
        }
        self.below = below;
    }
}

/// The fields of an embedded resource (and of every object's root) that schemas need not declare.
pub(super) fn is_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

/// A path under construction while an object is walked: nothing is allocated until an error needs it.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    Root,
    /// A declared field.
    Field(&'a At<'a>, &'a str),
    /// A key of a map.
    Key(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl<'a> At<'a> {
    pub fn field(&'a self, name: &'a str) -> At<'a> {
        At::Field(self, name)
    }

    pub fn key(&'a self, key: &'a str) -> At<'a> {
        At::Key(self, key)
    }

    pub fn index(&'a self, i: usize) -> At<'a> {
        At::Index(self, i)
    }

    /// As Go's `field.Path` prints it: `spec.labels[app]`.
    pub fn path(&self, base: &Path) -> Path {
        match self {
            At::Root => base.clone(),
            At::Field(up, name) => up.path(base).child(name),
            At::Key(up, key) => up.path(base).key(key),
            At::Index(up, i) => up.path(base).index(*i),
        }
    }

    /// As the OpenAPI validator prints it: keys of maps look like fields, and one at the root keeps its dot.
    pub fn dotted(&self) -> String {
        match self {
            At::Root => String::new(),
            At::Field(up, name) => match up.dotted() {
                up if up.is_empty() => (*name).to_owned(),
                up => format!("{up}.{name}"),
            },
            At::Key(up, key) => format!("{}.{key}", up.dotted()),
            At::Index(up, i) => format!("{}[{i}]", up.dotted()),
        }
    }
}
