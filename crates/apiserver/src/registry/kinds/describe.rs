//! How kinds describe themselves to discovery, without repeating the verbs.

use crate::registry::kind::{Resource, Subresource};

const ALL_VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

impl Resource {
    /// A namespaced resource with every verb. The singular is the kind in lower case.
    pub fn namespaced(group: &str, version: &str, kind: &str, plural: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            singular: kind.to_ascii_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: ALL_VERBS.to_vec(),
            subresources: Vec::new(),
            has_status: false,
            has_generation: false,
        }
    }

    pub fn cluster(group: &str, version: &str, kind: &str, plural: &str) -> Resource {
        Resource { namespaced: false, ..Resource::namespaced(group, version, kind, plural) }
    }

    #[must_use]
    pub fn short(mut self, names: &[&str]) -> Resource {
        self.short_names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// In the category `all`, which `kubectl get all` asks for.
    #[must_use]
    pub fn in_all(mut self) -> Resource {
        self.categories.push("all".to_owned());
        self
    }

    #[must_use]
    pub fn in_category(mut self, category: &str) -> Resource {
        self.categories.push(category.to_owned());
        self
    }

    /// Has a status, written through its own subresource.
    #[must_use]
    pub fn with_status(mut self) -> Resource {
        self.has_status = true;
        self.sub("status", &STATUS_VERBS, None)
    }

    #[must_use]
    pub fn with_generation(mut self) -> Resource {
        self.has_generation = true;
        self
    }

    #[must_use]
    pub fn without(mut self, verb: &str) -> Resource {
        self.verbs.retain(|v| *v != verb);
        self
    }

    /// A subresource; `body` is its group, version and kind where they are not the resource's.
    #[must_use]
    pub fn sub(mut self, name: &str, verbs: &[&'static str], body: Option<(&str, &str, &str)>) -> Resource {
        self.subresources.push(Subresource {
            name: name.to_owned(),
            body: body.map(|(g, v, k)| (g.to_owned(), v.to_owned(), k.to_owned())),
            verbs: verbs.to_vec(),
        });
        self
    }
}
