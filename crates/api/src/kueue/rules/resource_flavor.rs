//! ResourceFlavors.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;

use super::labels;
use crate::field::{Error, Errors, Kind, Path};
use crate::kueue::ResourceFlavor;
use crate::names;

pub fn validate(flavor: &ResourceFlavor, errors: &mut Errors) {
    let spec = Path::new("spec");
    labels::labels(&flavor.spec.node_labels, &spec.child("nodeLabels"), errors);
    taints(&flavor.spec.node_taints, &spec.child("nodeTaints"), errors);
    labels::tolerations(&flavor.spec.tolerations, &spec.child("tolerations"), errors);
}

fn taints(taints: &[Taint], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        labels::key_of(&taint.key, &path.child("key"), errors);
        let value = taint.value.as_deref().unwrap_or_default();
        let problems = names::label_value(value);
        if !problems.is_empty() {
            errors.invalid(&path.child("value"), value, problems.join(";"));
        }
        if !seen.insert((&taint.effect, &taint.key)) {
            errors.0.push(Error {
                kind: Kind::Duplicate,
                path,
                value: serde_json::to_value(taint).ok(),
                detail: "taints must be unique by key and effect pair".to_owned(),
            });
        }
    }
}
