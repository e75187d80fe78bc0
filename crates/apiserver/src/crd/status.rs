//! The conditions of a CustomResourceDefinition: are its names its own, and is it served?

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::definition::{strings, text};

/// Whether a condition of the definition is true.
pub fn is_true(crd: &Value, condition: &str) -> bool {
    find(crd, condition).is_some_and(|c| c["status"] == "True")
}

fn find<'v>(crd: &'v Value, condition: &str) -> Option<&'v Value> {
    let list = crd.pointer("/status/conditions")?.as_array()?;
    list.iter().find(|c| c["type"] == condition)
}

/// Computes accepted names and conditions against all definitions (this one may be among them). Says whether anything
/// changed. Names freed by another definition are found by calling this again.
pub fn update<'a>(crd: &mut Value, all: impl Iterator<Item = &'a Value>, now: Timestamp) -> bool {
    let before = crd.get("status").cloned();
    let taken = Taken::of(text(crd, "/spec/group"), all);
    let naming = accept_names(crd, &taken);
    let accepted = naming.is_ok();
    match naming {
        Ok(()) => set(crd, "NamesAccepted", true, "NoConflicts", "no conflicts found", now),
        Err(Conflict { reason, message }) => set(crd, "NamesAccepted", false, reason, &message, now),
    }
    if !is_true(crd, "Established") {
        if accepted {
            // Upstream says "Installing" until its handlers have noticed; here they notice at once.
            set(crd, "Established", true, "InitialNamesAccepted", "the initial names have been accepted", now);
        } else {
            set(crd, "Established", false, "NotAccepted", "not all names are accepted", now);
        }
    }
    crd.get("status") != before.as_ref()
}

/// A definition that is being deleted says so, and stops serving.
pub fn terminate(crd: &mut Value, reason: &str, message: &str, now: Timestamp) {
    set(crd, "Terminating", true, reason, message, now);
}

/// The names that definitions of the group hold.
struct Taken {
    resources: HashSet<String>,
    kinds: HashSet<String>,
}

impl Taken {
    fn of<'a>(group: &str, all: impl Iterator<Item = &'a Value>) -> Taken {
        let (mut resources, mut kinds) = (HashSet::new(), HashSet::new());
        for crd in all.filter(|crd| text(crd, "/spec/group") == group) {
            for name in ["plural", "singular"] {
                resources.insert(text(crd, &format!("/status/acceptedNames/{name}")).to_owned());
            }
            resources.extend(strings(crd, "/status/acceptedNames/shortNames"));
            for name in ["kind", "listKind"] {
                kinds.insert(text(crd, &format!("/status/acceptedNames/{name}")).to_owned());
            }
        }
        Taken { resources, kinds }
    }
}

struct Conflict {
    reason: &'static str,
    message: String,
}

/// Takes over every name that is free; the last conflict is the one reported.
fn accept_names(crd: &mut Value, taken: &Taken) -> Result<(), Conflict> {
    let wanted = crd.pointer("/spec/names").cloned().unwrap_or_default();
    let mut names = crd.pointer("/status/acceptedNames").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    let mut outcome = Ok(());
    let in_use = |name: &str| format!("\"{name}\" is already in use");
    let mut take = |name: &'static str, reason, taken: &HashSet<String>, names: &mut Value| {
        let (want, have) = (text(&wanted, &format!("/{name}")), text(names, &format!("/{name}")).to_owned());
        if want != have && taken.contains(want) {
            outcome = Err(Conflict { reason, message: in_use(want) });
        } else {
            names[name] = want.into();
        }
    };
    take("plural", "PluralConflict", &taken.resources, &mut names);
    take("singular", "SingularConflict", &taken.resources, &mut names);
    let (want, have) = (strings(&wanted, "/shortNames"), strings(&names, "/shortNames"));
    let clashes: Vec<String> =
        want.iter().filter(|s| !have.contains(s) && taken.resources.contains(*s)).map(|s| in_use(s)).collect();
    let short_conflict = match clashes.as_slice() {
        [] => {
            copy_list(&mut names, "shortNames", want);
            None
        }
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    };
    let mut outcome = match short_conflict {
        Some(message) => Err(Conflict { reason: "ShortNamesConflict", message }),
        None => outcome,
    };
    for (name, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let (want, have) = (text(&wanted, &format!("/{name}")), text(&names, &format!("/{name}")).to_owned());
        if want != have && taken.kinds.contains(want) {
            outcome = Err(Conflict { reason, message: in_use(want) });
        } else {
            names[name] = want.into();
        }
    }
    copy_list(&mut names, "categories", strings(&wanted, "/categories"));
    status_of(crd)["acceptedNames"] = names;
    outcome
}

fn copy_list(names: &mut Value, name: &str, list: Vec<String>) {
    match (names.as_object_mut(), list.is_empty()) {
        (Some(names), true) => {
            names.remove(name);
        }
        (Some(names), false) => {
            names.insert(name.to_owned(), list.into());
        }
        _ => {}
    }
}

fn status_of(crd: &mut Value) -> &mut Value {
    if !crd.get("status").is_some_and(Value::is_object) {
        crd["status"] = json!({});
    }
    &mut crd["status"]
}

fn set(crd: &mut Value, condition: &str, is_true: bool, reason: &str, message: &str, now: Timestamp) {
    let status = if is_true { "True" } else { "False" };
    let since = find(crd, condition)
        .filter(|c| c["status"] == status)
        .and_then(|c| c["lastTransitionTime"].as_str().map(str::to_owned))
        .unwrap_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let new =
        json!({"type": condition, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
    let conditions = &mut status_of(crd)["conditions"];
    match conditions {
        Value::Array(list) => match list.iter_mut().find(|c| c["type"] == condition) {
            Some(old) => *old = new,
            None => list.push(new),
        },
        other => *other = json!([new]),
    }
}
