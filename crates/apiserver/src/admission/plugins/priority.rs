//! Priority: a pod's priority and preemption policy come from its class, or from the class that is the default.

use serde_json::Value;

use super::values::{spec_mut, stored_object, stored_objects, text};
use crate::admission::{Operation, Review};
use crate::object::{self, Object};
use crate::server::Server;
use crate::status::Result;

const CLASSES: &str = "scheduling.k8s.io/priorityclasses";

pub fn admit(server: &Server, review: &Review<'_>, pod: &mut Object) -> Result<()> {
    let name = text(pod, "/spec/priorityClassName").to_owned();
    let class = if name.is_empty() {
        global_default(server)
    } else {
        let found = stored_object(server, CLASSES, "", &name);
        Some(found.ok_or_else(|| review.forbidden(pod, &format!("no PriorityClass with name {name} was found")))?)
    };
    let priority = class.as_ref().map_or(0, value_of);
    let policy = match &class {
        Some(class) => class.get("preemptionPolicy").and_then(Value::as_str).map(str::to_owned),
        None => Some("PreemptLowerPriority".to_owned()),
    };
    let given = pod.pointer("/spec/priority").and_then(Value::as_i64);
    if let Some(given) = given.filter(|given| *given != priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(review.forbidden(pod, &why));
    }
    let given = text(pod, "/spec/preemptionPolicy");
    if let Some(policy) = policy.as_deref().filter(|policy| !given.is_empty() && *policy != given) {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        );
        return Err(review.forbidden(pod, &why));
    }
    let spec = spec_mut(pod);
    if let Some(class) = class {
        spec.insert("priorityClassName".to_owned(), object::name(&class).into());
    }
    spec.insert("priority".to_owned(), priority.into());
    if let Some(policy) = policy {
        spec.insert("preemptionPolicy".to_owned(), policy.into());
    }
    Ok(())
}

/// An update that leaves out what a plugin set means no harm.
pub fn keep(pod: &mut Object, old: &Object) {
    for field in ["priority", "preemptionPolicy"] {
        let Some(kept) = old.get("spec").and_then(|spec| spec.get(field)).filter(|v| !v.is_null()) else { continue };
        let spec = spec_mut(pod);
        if spec.get(field).is_none_or(Value::is_null) {
            spec.insert(field.to_owned(), kept.clone());
        }
    }
}

pub fn only_one_default(server: &Server, review: &Review<'_>, class: &Object) -> Result<()> {
    if class.get("globalDefault").and_then(Value::as_bool) != Some(true) {
        return Ok(());
    }
    match global_default(server) {
        Some(other) if review.operation == Operation::Create || object::name(&other) != object::name(class) => {
            let name = object::name(&other);
            let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
            Err(review.forbidden(class, &why))
        }
        _ => Ok(()),
    }
}

/// Two defaults can only come from a race: the lower one counts.
fn global_default(server: &Server) -> Option<Object> {
    stored_objects(server, CLASSES, "")
        .into_iter()
        .filter(|class| class.get("globalDefault").and_then(Value::as_bool) == Some(true))
        .min_by_key(value_of)
}

fn value_of(class: &Object) -> i64 {
    class.get("value").and_then(Value::as_i64).unwrap_or(0)
}
