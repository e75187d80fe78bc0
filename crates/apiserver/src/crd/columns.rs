//! The columns of `kubectl get` for a custom resource.

use jiff::Timestamp;
use serde_json::Value;

use super::jsonpath::JsonPath;
use crate::registry::kind::Column;
use crate::registry::table;

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// A version's columns: the name, then those it declares, or the age where it declares none.
#[derive(Clone, Debug)]
pub struct Columns {
    /// As a Table describes them; the first is the name.
    pub headers: Vec<Column>,
    /// One for each header but the first.
    paths: Vec<JsonPath>,
}

impl Columns {
    /// Reads `additionalPrinterColumns`. As upstream does, a path that cannot be parsed ends the columns there.
    pub fn declared(columns: &[Value]) -> Columns {
        let mut out = Columns { headers: vec![Column::new("Name", "string", 0, NAME)], paths: Vec::new() };
        if columns.is_empty() {
            out.push(Column::new("Age", "date", 0, AGE), ".metadata.creationTimestamp");
        }
        for column in columns {
            let text = |name: &str| column.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let path = text("jsonPath");
            let description = match text("description") {
                d if d.is_empty() => format!("Custom resource definition column (in JSONPath format): {path}"),
                d => d,
            };
            let priority = column.get("priority").and_then(Value::as_i64).and_then(|p| i32::try_from(p).ok());
            let header = Column {
                name: text("name"),
                kind: text("type"),
                format: text("format"),
                description,
                priority: priority.unwrap_or(0),
            };
            if !out.push(header, &path) {
                break;
            }
        }
        out
    }

    /// The columns of the scale subresource.
    pub fn of_scale() -> Columns {
        let mut out = Columns { headers: vec![Column::new("Name", "string", 0, NAME)], paths: Vec::new() };
        out.push(Column::new("Desired", "integer", 0, "Number of desired replicas"), ".spec.replicas");
        out.push(Column::new("Available", "integer", 0, "Number of actual replicas"), ".status.replicas");
        out.push(Column::new("Age", "date", 0, AGE), ".metadata.creationTimestamp");
        out
    }

    fn push(&mut self, header: Column, path: &str) -> bool {
        let Ok(path) = JsonPath::parse(path) else { return false };
        self.headers.push(header);
        self.paths.push(path);
        true
    }

    /// An object's row.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object.pointer("/metadata/name").cloned().unwrap_or_else(|| "".into());
        let rest = self.headers[1..].iter().zip(&self.paths).map(|(header, path)| match path.first(object) {
            None => Value::Null,
            Some(value) if header.kind == "string" => printed(&value).into(),
            Some(value) => cell(&header.kind, &value, now),
        });
        std::iter::once(name).chain(rest).collect()
    }
}

fn cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("integer", Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
            (Some(int), _) => int.into(),
            (None, Some(float)) => (float as i64).into(),
            _ => Value::Null,
        },
        ("number", Value::Number(n)) => n.as_f64().map_or(Value::Null, Value::from),
        ("boolean", Value::Bool(b)) => (*b).into(),
        ("date", Value::String(s)) => age(s, now).into(),
        _ => Value::Null,
    }
}

/// As Go's templates print a value.
fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Number(n) => match n.as_i64() {
            Some(int) => int.to_string(),
            None => n.as_f64().map_or_else(|| n.to_string(), go_float),
        },
        other => other.to_string(),
    }
}

/// Go's `%v` of a float64.
fn go_float(f: f64) -> String {
    let exponent = if f == 0.0 { 0 } else { f.abs().log10().floor() as i32 };
    if (-4..21).contains(&exponent) {
        return format!("{f}");
    }
    let text = format!("{f:e}");
    match text.split_once("e-") {
        Some((mantissa, exponent)) => format!("{mantissa}e-{exponent:0>2}"),
        None => text.replacen('e', "e+", 1),
    }
}

fn age(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(then) => table::since(Some(then), now),
        Err(_) if time.is_empty() => "<unknown>".to_owned(),
        Err(_) => "<invalid>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2024-01-02T00:00:00Z".parse().expect("a constant")
    }

    #[test]
    fn cells_follow_their_types() {
        let declared = [
            json!({"name": "S", "type": "string", "jsonPath": ".spec.s"}),
            json!({"name": "I", "type": "integer", "jsonPath": ".spec.i", "priority": 1, "description": "an int"}),
            json!({"name": "B", "type": "boolean", "jsonPath": ".spec.b"}),
            json!({"name": "D", "type": "date", "jsonPath": ".spec.d"}),
            json!({"name": "N", "type": "number", "jsonPath": ".spec.n"}),
            json!({"name": "M", "type": "string", "jsonPath": ".spec.missing"}),
            json!({"name": "O", "type": "string", "jsonPath": ".spec.o"}),
            json!({"name": "X", "type": "integer", "jsonPath": ".spec.s"}),
        ];
        let columns = Columns::declared(&declared);
        let names: Vec<&str> = columns.headers.iter().map(|h| h.name.as_str()).collect();
        assert_eq!(names, ["Name", "S", "I", "B", "D", "N", "M", "O", "X"]);
        assert_eq!(columns.headers[0].format, "name");
        assert_eq!((columns.headers[2].priority, columns.headers[2].description.as_str()), (1, "an int"));
        assert_eq!(columns.headers[1].description, "Custom resource definition column (in JSONPath format): .spec.s");
        let object = json!({"metadata": {"name": "n"}, "spec": {
            "s": "text", "i": 3.7, "b": true, "d": "2024-01-01T00:00:00Z", "n": 2, "o": {"a": [1]}}});
        assert_eq!(
            columns.cells(&object, now()),
            [
                json!("n"),
                json!("text"),
                json!(3),
                json!(true),
                json!("24h"),
                json!(2.0),
                json!(null),
                json!("{\"a\":[1]}"),
                json!(null)
            ]
        );
    }

    #[test]
    fn without_columns_there_is_the_age() {
        let columns = Columns::declared(&[]);
        let object = json!({"metadata": {"name": "n", "creationTimestamp": "2024-01-01T23:58:30Z"}});
        assert_eq!(columns.cells(&object, now()), [json!("n"), json!("90s")]);
        assert_eq!(columns.headers[1].name, "Age");
    }

    #[test]
    fn a_broken_path_ends_the_columns() {
        let columns = Columns::declared(&[json!({"name": "X", "type": "string", "jsonPath": ".a[b]"})]);
        assert_eq!(columns.headers.len(), 1);
    }
}
