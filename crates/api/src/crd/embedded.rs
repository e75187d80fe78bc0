//! Schemas of the Kubernetes types that our kinds contain.

use super::Schema;

/// What a condition is, as upstream's CRDs have it.
pub fn conditions() -> Schema {
    let reason = Schema::string().min_len(1).max_len(1024).pattern("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$");
    let condition = Schema::object()
        .field("lastTransitionTime", "When the status last changed.", Schema::time().required())
        .field("message", "What it means, for people.", Schema::string().max_len(32768).required())
        .field("observedGeneration", "The generation it was worked out from.", Schema::int64().min(0))
        .field("reason", "Why, as one word.", reason.required())
        .field("status", "", Schema::word(&["True", "False", "Unknown"]).required())
        .field("type", "", qualified_name().required());
    Schema::list(condition).max_items(16).keyed(&["type"])
}

/// A name with an optional DNS prefix: `example.com/name`.
pub fn qualified_name() -> Schema {
    Schema::string().max_len(316).pattern(
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    )
}

pub fn label_selector() -> Schema {
    let expression = Schema::object()
        .field("key", "", Schema::string().required())
        .field("operator", "In, NotIn, Exists or DoesNotExist.", Schema::string().required())
        .field("values", "", Schema::list(Schema::string()).atomic());
    Schema::object()
        .field("matchExpressions", "", Schema::list(expression).atomic())
        .field("matchLabels", "", Schema::map(Schema::string()))
        .atomic_map()
}

pub fn taints() -> Schema {
    let taint = Schema::object()
        .field("effect", "NoSchedule, PreferNoSchedule or NoExecute.", Schema::string().required())
        .field("key", "", Schema::string().required())
        .field("timeAdded", "", Schema::time())
        .field("value", "", Schema::string());
    Schema::list(taint).max_items(8).atomic().rule(
        "self.all(x, x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",
        "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
    )
}

pub fn tolerations() -> Schema {
    let toleration = Schema::object()
        .field("effect", "", Schema::string())
        .field("key", "", Schema::string())
        .field("operator", "Equal (default) or Exists.", Schema::string())
        .field("tolerationSeconds", "", Schema::int64())
        .field("value", "", Schema::string());
    Schema::list(toleration)
        .max_items(8)
        .atomic()
        .rule(
            "self.all(x, !has(x.key) ? x.operator == 'Exists' : true)",
            "operator must be Exists when 'key' is empty, which means 'match all values and all keys'",
        )
        .rule(
            "self.all(x, has(x.tolerationSeconds) ? x.effect == 'NoExecute' : true)",
            "effect must be 'NoExecute' when 'tolerationSeconds' is set",
        )
        .rule(
            "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])",
            "supported toleration values: 'Equal'(default), 'Exists'",
        )
        .rule(
            "self.all(x, has(x.operator) && x.operator == 'Exists' ? !has(x.value) : true)",
            "a value must be empty when 'operator' is 'Exists'",
        )
        .rule(
            "self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",
            "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
        )
}

/// A resource list: amounts by resource name.
pub fn resources() -> Schema {
    Schema::map(Schema::quantity())
}
