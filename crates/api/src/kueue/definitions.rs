//! The CustomResourceDefinitions of this group.

use serde_json::Value;

use super::{
    AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Topology, Workload, WorkloadPriorityClass,
};

/// Counts up with every change of a definition: a server that finds a lower one stored puts its own there, and leaves a
/// higher one alone, because a newer binary wrote it.
pub const REVISION: u32 = 1;

/// Where a stored definition has its revision. One without it is somebody else's.
pub const REVISION_ANNOTATION: &str = "usher/definition-revision";

/// All definitions, as a client would create them.
pub fn definitions() -> Vec<Value> {
    let all = [
        AdmissionCheck::definition(),
        ClusterQueue::definition(),
        Cohort::definition(),
        LocalQueue::definition(),
        ResourceFlavor::definition(),
        Topology::definition(),
        WorkloadPriorityClass::definition(),
        Workload::definition(),
    ];
    all.map(|definition| {
        let mut object = definition.build();
        object["metadata"]["annotations"] = serde_json::json!({REVISION_ANNOTATION: REVISION.to_string()});
        object
    })
    .into()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Set to write the files anew.
    const UPDATE: &str = "USHER_UPDATE_CRDS";

    fn files() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crds")
    }

    /// What is for clusters of others lies on its own: `kubectl apply -f crds` must not replace KubeRay's definition.
    fn place(definition: &Value) -> PathBuf {
        let group = definition["spec"]["group"].as_str().unwrap();
        let place = if group == crate::kueue::GROUP { files() } else { files().join("ray") };
        place.join(format!("{}.yaml", name(definition)))
    }

    fn name(definition: &Value) -> &str {
        definition["metadata"]["name"].as_str().unwrap()
    }

    #[test]
    fn the_committed_files_are_what_the_code_generates() {
        let mut expected = Vec::new();
        for definition in definitions().into_iter().chain(crate::ray::definitions()) {
            let path = place(&definition);
            let text = format!(
                "# Generated from crates/api by `{UPDATE}=1 cargo test -p usher-api definitions`.\n{}",
                serde_saphyr::to_string(&definition).unwrap()
            );
            if std::env::var_os(UPDATE).is_some() {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(committed, text, "{} is old: write it anew with {UPDATE}=1", path.display());
            assert_eq!(serde_saphyr::from_str::<Value>(&committed).unwrap(), definition, "YAML of {}", path.display());
            expected.push(path);
        }
        let within = |place: PathBuf| std::fs::read_dir(place).unwrap().map(|f| f.unwrap().path());
        let mut found: Vec<_> = within(files()).chain(within(files().join("ray"))).filter(|f| f.is_file()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    /// A changed definition of the same revision would never reach a store that has the old one.
    #[test]
    fn a_changed_definition_has_a_new_revision() {
        let text = serde_json::to_string(&definitions()).unwrap();
        let sum = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let sum: String = sum.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((REVISION, sum.as_str()), (1, "4db6934b83c8e6e3"), "count REVISION up, and put both here");
    }

    #[test]
    fn every_rule_says_something() {
        fn rules(value: &Value, out: &mut Vec<Value>) {
            match value {
                Value::Object(fields) => fields.iter().for_each(|(name, field)| match field {
                    Value::Array(list) if name == "x-kubernetes-validations" => out.extend(list.iter().cloned()),
                    other => rules(other, out),
                }),
                Value::Array(items) => items.iter().for_each(|item| rules(item, out)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        definitions().iter().for_each(|definition| rules(definition, &mut found));
        // 41 of upstream's v1beta2 for these kinds, and one of ours.
        assert_eq!(found.len(), 42);
        assert!(found.iter().all(|rule| !rule["message"].as_str().unwrap().is_empty()));
    }
}
