//! The definitions of this group, for servers that bring Ray's kinds along.

use serde_json::{Value, json};

use super::RayCluster;
use crate::kueue::REVISION_ANNOTATION;

/// Counts up with every change, as that of the kinds of queues does.
const REVISION: u32 = 1;

pub fn definitions() -> Vec<Value> {
    let mut object = RayCluster::definition().build();
    object["metadata"]["annotations"] = json!({REVISION_ANNOTATION: REVISION.to_string()});
    object["spec"]["names"]["categories"] = json!(["all"]);
    vec![object]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A changed definition of the same revision would never reach a store that has the old one.
    #[test]
    fn a_changed_definition_has_a_new_revision() {
        let text = serde_json::to_string(&definitions()).unwrap();
        let sum = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let sum: String = sum.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((REVISION, sum.as_str()), (1, "9b3768ff09078516"), "count REVISION up, and put both here");
    }
}
