//! The JSON merge patch (RFC 7386) that turns one document into another.

use serde_json::{Map, Value};

/// What to send so that `from` becomes `to`; `None` if it is that already.
pub fn diff(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before) => patch.extend(diff(before, value).map(|change| (key.clone(), change))),
            None => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_differs_is_sent_and_what_is_gone_becomes_null() {
        let from = json!({"a": 1, "labels": {"x": "1", "y": "2"}, "list": [1, 2], "same": {"deep": [1]}});
        let to = json!({"a": 2, "labels": {"y": "2", "z": "3"}, "list": [1], "same": {"deep": [1]}});
        assert_eq!(diff(&from, &to), Some(json!({"a": 2, "labels": {"x": null, "z": "3"}, "list": [1]})));
        assert_eq!(diff(&from, &from), None);
    }
}
