//! Cells of `kubectl get`: names, ages and how long something took, in kubectl's notation.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::kind::Column;

const SECS_PER_HOUR: i64 = 3600;

pub fn name_column() -> Column {
    Column::new("Name", "string", 0, "Name of the object, unique within its namespace (if it has one).")
}

pub fn age_column() -> Column {
    Column::new("Age", "string", 0, "Time since the object was created.")
}

pub fn name_and_age() -> Vec<Column> {
    vec![name_column(), age_column()]
}

pub fn name_and_age_cells(meta: &Value, now: Timestamp) -> Vec<Value> {
    vec![name_cell(meta), age_cell(meta, now)]
}

/// The object's name.
pub fn name_cell(meta: &Value) -> Value {
    meta.get("name").and_then(Value::as_str).unwrap_or_default().into()
}

/// Time since `metadata.creationTimestamp`.
pub fn age_cell(meta: &Value, now: Timestamp) -> Value {
    let created = meta.get("creationTimestamp").and_then(Value::as_str).and_then(|t| t.parse().ok());
    since(created, now).into()
}

/// `5m`, or `<unknown>` when the time is not set.
pub fn since(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(|| "<unknown>".to_owned(), |time| human_duration(now.duration_since(time)))
}

/// As [`since`], for a time in an object.
pub fn time_since(time: Option<&Time>, now: Timestamp) -> String {
    since(time.map(|t| t.0), now)
}

/// Two or three significant figures: `119s`, `3m20s`, `7h59m`, `2d4h`, `400d`, `3y12d`.
pub fn human_duration(d: SignedDuration) -> String {
    let secs = d.as_secs();
    if secs < -1 {
        return "<invalid>".to_owned();
    }
    let secs = secs.max(0);
    let (minutes, hours) = (secs / 60, secs / SECS_PER_HOUR);
    let pair = |major: i64, unit: char, minor: i64, minor_unit: char| {
        if minor == 0 { format!("{major}{unit}") } else { format!("{major}{unit}{minor}{minor_unit}") }
    };
    match () {
        () if secs < 120 => format!("{secs}s"),
        () if minutes < 10 => pair(minutes, 'm', secs % 60, 's'),
        () if minutes < 60 * 3 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 24 * 8 => pair(hours / 24, 'd', hours % 24, 'h'),
        () if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        () if hours < 24 * 365 * 8 => pair(hours / 24 / 365, 'y', hours / 24 % 365, 'd'),
        () => format!("{}y", hours / 24 / 365),
    }
}

/// One significant unit: `59s`, `7m`, `3h`, `12d`, `2y`.
pub fn short_human_duration(d: SignedDuration) -> String {
    let secs = d.as_secs();
    let hours = secs / SECS_PER_HOUR;
    match secs {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..=59 => format!("{secs}s"),
        60..=3599 => format!("{}m", secs / 60),
        _ if hours < 24 => format!("{hours}h"),
        _ if hours < 24 * 365 => format!("{}d", hours / 24),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// `<none>` for nothing, else the items separated by commas.
pub fn joined_or_none<S: AsRef<str>>(items: &[S]) -> String {
    if items.is_empty() {
        return "<none>".to_owned();
    }
    items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_prints_them() {
        let (m, h, d) = (60, 3600, 86400);
        for (secs, long, short) in [
            (-5, "<invalid>", "<invalid>"),
            (-1, "0s", "0s"),
            (0, "0s", "0s"),
            (119, "119s", "1m"),
            (2 * m, "2m", "2m"),
            (3 * m + 20, "3m20s", "3m"),
            (10 * m + 59, "10m", "10m"),
            (179 * m, "179m", "2h"),
            (3 * h, "3h", "3h"),
            (7 * h + 59 * m, "7h59m", "7h"),
            (47 * h, "47h", "1d"),
            (2 * d, "2d", "2d"),
            (2 * d + 4 * h, "2d4h", "2d"),
            (9 * d + 4 * h, "9d", "9d"),
            (729 * d, "729d", "1y"),
            (730 * d, "2y", "2y"),
            (740 * d, "2y10d", "2y"),
            (4000 * d, "10y", "10y"),
        ] {
            let duration = SignedDuration::from_secs(secs);
            assert_eq!((human_duration(duration).as_str(), short_human_duration(duration).as_str()), (long, short));
        }
    }

    #[test]
    fn an_object_without_a_creation_time_has_an_unknown_age() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(age_cell(&Value::Null, now), "<unknown>");
        let meta = serde_json::json!({"name": "a", "creationTimestamp": "2025-12-31T23:58:00Z"});
        assert_eq!(name_and_age_cells(&meta, now), [Value::from("a"), Value::from("2m")]);
    }
}
