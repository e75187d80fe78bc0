//! A structural schema under construction.

use serde_json::{Map, Value, json};

/// One node of an `openAPIV3Schema`, and whether its parent requires it.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    node: Map<String, Value>,
    required: bool,
}

/// What upstream's CRDs say about quantities.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

impl Schema {
    fn of(ty: &str) -> Schema {
        Schema::default().with("type", ty)
    }

    pub fn string() -> Schema {
        Schema::of("string")
    }

    /// A string that is one of these.
    pub fn word(words: &[&str]) -> Schema {
        Schema::string().with("enum", words.to_vec())
    }

    /// A name of an object: at most 253 characters.
    pub fn subdomain() -> Schema {
        Schema::string().max_len(253).pattern(SUBDOMAIN)
    }

    /// A name of at most 63 characters without dots.
    pub fn label() -> Schema {
        Schema::string().max_len(63).pattern(LABEL)
    }

    pub fn boolean() -> Schema {
        Schema::of("boolean")
    }

    pub fn int32() -> Schema {
        Schema::of("integer").with("format", "int32")
    }

    pub fn int64() -> Schema {
        Schema::of("integer").with("format", "int64")
    }

    pub fn time() -> Schema {
        Schema::string().with("format", "date-time")
    }

    pub fn quantity() -> Schema {
        Schema::default()
            .with("anyOf", json!([{"type": "integer"}, {"type": "string"}]))
            .with("x-kubernetes-int-or-string", true)
            .pattern(QUANTITY)
    }

    /// An object whose fields are added with [`Schema::field`].
    pub fn object() -> Schema {
        Schema::of("object")
    }

    /// An object that keeps whatever it is given.
    pub fn anything() -> Schema {
        Schema::object().with("x-kubernetes-preserve-unknown-fields", true)
    }

    pub fn list(items: Schema) -> Schema {
        Schema::of("array").with("items", items.node)
    }

    pub fn map(values: Schema) -> Schema {
        Schema::object().with("additionalProperties", values.node)
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Schema {
        self.node.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a field; its doc comment is its description.
    #[must_use]
    pub fn field(mut self, name: &str, about: &str, schema: Schema) -> Schema {
        if schema.required {
            let list = self.node.entry("required").or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(name.into());
                list.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
        }
        let properties = self.node.entry("properties").or_insert_with(|| json!({}));
        properties[name] = Value::Object(schema.about(about).node);
        self
    }

    #[must_use]
    pub fn about(self, text: &str) -> Schema {
        let text = text.trim();
        if text.is_empty() { self } else { self.with("description", text) }
    }

    /// The parent must have it.
    #[must_use]
    pub fn required(mut self) -> Schema {
        self.required = true;
        self
    }

    #[must_use]
    pub fn default_to(self, value: impl Into<Value>) -> Schema {
        self.with("default", value)
    }

    #[must_use]
    pub fn pattern(self, pattern: &str) -> Schema {
        self.with("pattern", pattern)
    }

    #[must_use]
    pub fn min_len(self, length: usize) -> Schema {
        self.with("minLength", length)
    }

    #[must_use]
    pub fn max_len(self, length: usize) -> Schema {
        self.with("maxLength", length)
    }

    #[must_use]
    pub fn min(self, minimum: i64) -> Schema {
        self.with("minimum", minimum)
    }

    #[must_use]
    pub fn min_items(self, count: usize) -> Schema {
        self.with("minItems", count)
    }

    #[must_use]
    pub fn max_items(self, count: usize) -> Schema {
        self.with("maxItems", count)
    }

    #[must_use]
    pub fn max_properties(self, count: usize) -> Schema {
        self.with("maxProperties", count)
    }

    /// A list that is owned and replaced as a whole.
    #[must_use]
    pub fn atomic(self) -> Schema {
        self.with("x-kubernetes-list-type", "atomic")
    }

    /// A map that is owned and replaced as a whole.
    #[must_use]
    pub fn atomic_map(self) -> Schema {
        self.with("x-kubernetes-map-type", "atomic")
    }

    /// A list in which each value is there once.
    #[must_use]
    pub fn set(self) -> Schema {
        self.with("x-kubernetes-list-type", "set")
    }

    /// A list whose items are told apart by these fields.
    #[must_use]
    pub fn keyed(self, keys: &[&str]) -> Schema {
        self.with("x-kubernetes-list-type", "map").with("x-kubernetes-list-map-keys", keys.to_vec())
    }

    /// A rule in CEL, and what is said when it does not hold.
    #[must_use]
    pub fn rule(mut self, rule: &str, message: &str) -> Schema {
        let rules = self.node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(json!({"rule": rule, "message": message}));
        }
        self
    }

    /// Set once, as upstream says it.
    #[must_use]
    pub fn immutable(self) -> Schema {
        self.rule("self == oldSelf", "field is immutable")
    }

    pub fn into_value(self) -> Value {
        Value::Object(self.node)
    }
}
