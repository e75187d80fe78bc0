//! A CustomResourceDefinition, put together.

use k8s_openapi::{ListableResource, Resource};
use serde_json::{Map, Value, json};

use super::Schema;

/// Everything a definition says besides the schema.
#[derive(Clone, Debug)]
pub struct Definition {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    list_kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    schema: Schema,
    short_names: Vec<&'static str>,
    columns: Vec<Value>,
    selectable: Vec<&'static str>,
    status: bool,
}

impl Definition {
    /// The definition of a kind with this schema of its root.
    pub fn of<K: Resource + ListableResource>(namespaced: bool, schema: Schema) -> Definition {
        Definition {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            list_kind: K::LIST_KIND,
            plural: K::URL_PATH_SEGMENT,
            namespaced,
            schema,
            short_names: Vec::new(),
            columns: Vec::new(),
            selectable: Vec::new(),
            status: false,
        }
    }

    #[must_use]
    pub fn short(mut self, names: &[&'static str]) -> Definition {
        self.short_names.extend(names);
        self
    }

    /// A printed column; `wide` ones are shown by `-o wide` only.
    #[must_use]
    pub fn column(mut self, name: &str, ty: &str, path: &str, wide: bool, about: &str) -> Definition {
        let mut column = json!({"name": name, "type": ty, "jsonPath": path, "description": about});
        if wide {
            column["priority"] = 1.into();
        }
        self.columns.push(column);
        self
    }

    /// A field that `kubectl get --field-selector` may ask for.
    #[must_use]
    pub fn selectable(mut self, path: &'static str) -> Definition {
        self.selectable.push(path);
        self
    }

    /// Its status is written through a subresource of its own.
    #[must_use]
    pub fn with_status(mut self) -> Definition {
        self.status = true;
        self
    }

    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// The object, as a client would create it.
    pub fn build(self) -> Value {
        let name = self.name();
        let schema = self.schema.field("apiVersion", "", Schema::string()).field("kind", "", Schema::string()).field(
            "metadata",
            "",
            Schema::object(),
        );
        let mut version = Map::new();
        version.insert("name".to_owned(), self.version.into());
        version.insert("served".to_owned(), true.into());
        version.insert("storage".to_owned(), true.into());
        version.insert("schema".to_owned(), json!({"openAPIV3Schema": schema.into_value()}));
        if !self.columns.is_empty() {
            version.insert("additionalPrinterColumns".to_owned(), self.columns.into());
        }
        if !self.selectable.is_empty() {
            let fields: Vec<Value> = self.selectable.iter().map(|path| json!({"jsonPath": path})).collect();
            version.insert("selectableFields".to_owned(), fields.into());
        }
        if self.status {
            version.insert("subresources".to_owned(), json!({"status": {}}));
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": self.group,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "names": {
                    "kind": self.kind,
                    "listKind": self.list_kind,
                    "plural": self.plural,
                    "singular": self.kind.to_lowercase(),
                    "shortNames": self.short_names,
                },
                "versions": [version],
            },
        })
    }
}
