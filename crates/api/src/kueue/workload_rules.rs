//! The rules of a Workload's schema, each in CEL and in code.
//!
//! A cluster evaluates the CEL. Our own server knows these rules by their text ([`native`]) and runs the code instead, because
//! Workloads are written often and a rule in CEL costs tens of microseconds. Both must agree on every object; where an object is
//! odd, the code says nothing and the CEL decides. A property in the schema crate holds one against the other.

use serde_json::Value;

/// Whether a rule holds for a value and what it was before; `None`: ask the CEL.
pub type Native = fn(&Value, Option<&Value>) -> Option<bool>;

macro_rules! condition {
    ($object:literal, $ty:literal) => {
        concat!(
            "has(",
            $object,
            ".status) && has(",
            $object,
            ".status.conditions) && ",
            $object,
            ".status.conditions.exists(c, c.type == '",
            $ty,
            "' && c.status == 'True')"
        )
    };
}

/// Both have a priority class and the old one holds quota.
macro_rules! classes {
    () => {
        concat!(
            condition!("oldSelf", "QuotaReserved"),
            " && has(oldSelf.spec.priorityClassRef) && has(self.spec.priorityClassRef)"
        )
    };
}

pub const POD_SET_COUNT: &str = concat!(
    condition!("self", "QuotaReserved"),
    " && has(self.status.admission) ? size(self.spec.podSets) == size(self.status.admission.podSetAssignments) : true"
);
pub const PRIORITY_CLASS: &str = concat!(
    "(",
    condition!("oldSelf", "QuotaReserved"),
    ") ? (!has(oldSelf.spec.priorityClassRef) && !has(self.spec.priorityClassRef)) || (has(oldSelf.spec.priorityClassRef) && \
     has(self.spec.priorityClassRef)) : true"
);
pub const PRIORITY_CLASS_GROUP: &str =
    concat!("(", classes!(), ") ? oldSelf.spec.priorityClassRef.group == self.spec.priorityClassRef.group : true");
pub const PRIORITY_CLASS_KIND: &str =
    concat!("(", classes!(), ") ? oldSelf.spec.priorityClassRef.kind == self.spec.priorityClassRef.kind : true");
pub const PRIORITY_CLASS_NAME: &str = concat!(
    "(",
    classes!(),
    " && self.spec.priorityClassRef.group == 'scheduling.k8s.io' && self.spec.priorityClassRef.kind == 'PriorityClass') ? \
     oldSelf.spec.priorityClassRef.name == self.spec.priorityClassRef.name : true"
);
pub const QUEUE_NAME: &str = concat!(
    "((",
    condition!("oldSelf", "QuotaReserved"),
    ") && (",
    condition!("self", "QuotaReserved"),
    ")) ? ((has(oldSelf.spec.queueName) == has(self.spec.queueName)) && (!has(oldSelf.spec.queueName) || \
     oldSelf.spec.queueName == self.spec.queueName)) : true"
);
pub const EXECUTION_TIME: &str = concat!(
    "((",
    condition!("oldSelf", "Admitted"),
    ") && (",
    condition!("self", "Admitted"),
    ")) ? ((has(oldSelf.spec.maximumExecutionTimeSeconds) ? oldSelf.spec.maximumExecutionTimeSeconds : 0) == \
     (has(self.spec.maximumExecutionTimeSeconds) ? self.spec.maximumExecutionTimeSeconds : 0)) : true"
);
/// Of the spec.
pub const PRIORITY: &str = "!has(self.priorityClassRef) || has(self.priority)";
/// Of a pod set.
pub const MIN_COUNT: &str = "has(self.minCount) ? self.minCount <= self.count : true";
/// Of the status.
pub const CLUSTER_NAME: &str =
    "!has(oldSelf.clusterName) || !has(self.clusterName) || oldSelf.clusterName == self.clusterName";
pub const CLUSTER_OR_NOMINATED: &str = "!has(self.clusterName) || (!has(self.nominatedClusterNames) || \
     (has(self.nominatedClusterNames) && size(self.nominatedClusterNames) == 0))";

/// The code for a rule, by its text.
pub fn native(rule: &str) -> Option<Native> {
    let known: [(&str, Native); 11] = [
        (POD_SET_COUNT, pod_set_count),
        (PRIORITY_CLASS, priority_class),
        (PRIORITY_CLASS_GROUP, |new, old| same_class_field(new, old?, "group")),
        (PRIORITY_CLASS_KIND, |new, old| same_class_field(new, old?, "kind")),
        (PRIORITY_CLASS_NAME, priority_class_name),
        (QUEUE_NAME, queue_name),
        (EXECUTION_TIME, execution_time),
        (PRIORITY, |spec, _| Some(field(spec, "priorityClassRef")?.is_none() || field(spec, "priority")?.is_some())),
        (MIN_COUNT, min_count),
        (CLUSTER_NAME, cluster_name),
        (CLUSTER_OR_NOMINATED, cluster_or_nominated),
    ];
    known.into_iter().find(|(text, _)| *text == rule).map(|(_, code)| code)
}

/// A field that is there or not; `None` if that cannot be said.
fn field<'v>(object: &'v Value, name: &str) -> Option<Option<&'v Value>> {
    match object.as_object()?.get(name) {
        Some(Value::Null) => None,
        found => Some(found),
    }
}

fn is_true(workload: &Value, ty: &str) -> Option<bool> {
    let Some(status) = field(workload, "status")? else { return Some(false) };
    let Some(conditions) = field(status, "conditions")? else { return Some(false) };
    let mut found = false;
    for condition in conditions.as_array()? {
        let text = |name: &str| condition.get(name).and_then(Value::as_str);
        found |= text("type")? == ty && text("status")? == "True";
    }
    Some(found)
}

fn spec_field<'v>(workload: &'v Value, name: &str) -> Option<Option<&'v Value>> {
    field(field(workload, "spec")??, name)
}

fn pod_set_count(new: &Value, _: Option<&Value>) -> Option<bool> {
    if !is_true(new, "QuotaReserved")? {
        return Some(true);
    }
    let Some(admission) = field(field(new, "status")??, "admission")? else { return Some(true) };
    let sets = spec_field(new, "podSets")??.as_array()?;
    Some(sets.len() == field(admission, "podSetAssignments")??.as_array()?.len())
}

fn priority_class(new: &Value, old: Option<&Value>) -> Option<bool> {
    let old = old?;
    if !is_true(old, "QuotaReserved")? {
        return Some(true);
    }
    let has = |workload| Some(spec_field(workload, "priorityClassRef")?.is_some());
    Some(has(old)? == has(new)?)
}

/// The class of both, if the old one holds quota and both have one.
fn classes<'v>(new: &'v Value, old: &'v Value) -> Option<Option<(&'v Value, &'v Value)>> {
    if !is_true(old, "QuotaReserved")? {
        return Some(None);
    }
    let class = |workload| spec_field(workload, "priorityClassRef");
    Some(class(new)?.zip(class(old)?))
}

fn text<'v>(class: &'v Value, name: &str) -> Option<&'v str> {
    class.get(name)?.as_str()
}

fn same_class_field(new: &Value, old: &Value, name: &str) -> Option<bool> {
    let Some((new, old)) = classes(new, old)? else { return Some(true) };
    Some(text(new, name)? == text(old, name)?)
}

fn priority_class_name(new: &Value, old: Option<&Value>) -> Option<bool> {
    let Some((new, old)) = classes(new, old?)? else { return Some(true) };
    let of_pods = text(new, "group")? == "scheduling.k8s.io" && text(new, "kind")? == "PriorityClass";
    Some(!of_pods || text(new, "name")? == text(old, "name")?)
}

fn queue_name(new: &Value, old: Option<&Value>) -> Option<bool> {
    let old = old?;
    if !is_true(old, "QuotaReserved")? || !is_true(new, "QuotaReserved")? {
        return Some(true);
    }
    Some(spec_field(old, "queueName")? == spec_field(new, "queueName")?)
}

fn execution_time(new: &Value, old: Option<&Value>) -> Option<bool> {
    let old = old?;
    if !is_true(old, "Admitted")? || !is_true(new, "Admitted")? {
        return Some(true);
    }
    let secs = |workload| match spec_field(workload, "maximumExecutionTimeSeconds")? {
        None => Some(0),
        Some(secs) => secs.as_i64(),
    };
    Some(secs(old)? == secs(new)?)
}

fn min_count(pod_set: &Value, _: Option<&Value>) -> Option<bool> {
    let Some(min) = field(pod_set, "minCount")? else { return Some(true) };
    Some(min.as_i64()? <= field(pod_set, "count")??.as_i64()?)
}

fn cluster_name(new: &Value, old: Option<&Value>) -> Option<bool> {
    match (field(new, "clusterName")?, field(old?, "clusterName")?) {
        (Some(new), Some(old)) => Some(new == old),
        _ => Some(true),
    }
}

fn cluster_or_nominated(status: &Value, _: Option<&Value>) -> Option<bool> {
    let nominated = match field(status, "nominatedClusterNames")? {
        None => 0,
        Some(list) => list.as_array()?.len(),
    };
    Some(field(status, "clusterName")?.is_none() || nominated == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_known_by_their_text() {
        assert!(native(QUEUE_NAME).is_some());
        assert!(native(&format!(" {QUEUE_NAME}")).is_none());
    }
}
