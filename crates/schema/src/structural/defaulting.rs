//! Filling in what a schema says by `default`.

use serde_json::Value;

use super::schema::{Props, Structural};

impl Structural {
    /// Adds defaults where a field is missing, or null without being nullable. Defaults of a field's own fields are added
    /// only where that field exists (perhaps by its own default).
    pub fn default(&self, value: &mut Value) {
        default(value, &self.root);
    }
}

pub(super) fn default(value: &mut Value, props: &Props) {
    if !props.below.defaults {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, field) in props.properties.iter().filter(|(_, f)| f.below.defaults) {
                match map.get_mut(name) {
                    Some(value) => {
                        replace_null(value, field);
                        default(value, field);
                    }
                    None => {
                        if let Some(mut value) = field.default.clone() {
                            default(&mut value, field);
                            map.insert(name.clone(), value);
                        }
                    }
                }
            }
            if let Some(values) = props.additional().filter(|p| p.below.defaults) {
                for (_, value) in map.iter_mut().filter(|(key, _)| !props.properties.contains_key(*key)) {
                    replace_null(value, values);
                    default(value, values);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = props.items() {
                for item in list {
                    replace_null(item, items);
                    default(item, items);
                }
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, props: &Props) {
    if let Some(fill) = props.default.as_ref().filter(|_| value.is_null() && !props.nullable) {
        *value = fill.clone();
    }
}
