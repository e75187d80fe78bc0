//! Single fields read from an object's JSON: what field selectors and the plainest tables need.

use serde_json::Value;

use crate::registry::kind::Column;
use crate::registry::table;

/// The text at a JSON pointer; numbers and booleans in their JSON form, anything else empty.
pub fn text_at(object: &Value, pointer: &str) -> String {
    match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other @ (Value::Bool(_) | Value::Number(_))) => other.to_string(),
        _ => String::new(),
    }
}

/// The columns of kinds for which upstream has none of its own: the name and a point in time (not an age).
pub fn created_at_columns() -> Vec<Column> {
    vec![table::name_column(), Column::new("Created At", "date", 0, "When the object was created.")]
}

pub fn created_at_cells(meta: &Value) -> Vec<Value> {
    let created = meta.get("creationTimestamp").and_then(Value::as_str).unwrap_or("0001-01-01T00:00:00Z");
    vec![table::name_cell(meta), created.into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_read_as_text() {
        let object = json!({"spec": {"on": true, "name": "x"}});
        assert_eq!(text_at(&object, "/spec/on"), "true");
        assert_eq!(text_at(&object, "/spec/name"), "x");
        assert_eq!(text_at(&object, "/spec/none"), "");
        assert_eq!(text_at(&object, "/spec"), "");
    }
}
