//! Events, in two groups with one meaning: `events` of the core group is what is stored, `events.k8s.io` is another way to
//! write and read it.

mod conversion;
mod validate;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::Value;
use usher_schema::field::Errors;

pub use conversion::{NewEvent, from_core, to_core};

use super::common::text;
use super::json_field::text_at;
use crate::registry::kind::{Column, Cx, Kind, Resource, Twin};
use crate::registry::table;
use validate::{validate_legacy, validate_new, validate_new_update};

/// Events of the core group.
pub struct Events;

impl Kind for Events {
    type Object = Event;

    fn warns(&self) -> bool {
        false
    }

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "Event", "events").short(&["ev"])
    }

    fn default(&self, event: &mut Event) {
        event.source.get_or_insert_default();
        event.reporting_component.get_or_insert_default();
        event.reporting_instance.get_or_insert_default();
    }

    fn validate(&self, _cx: &Cx, event: &Event, errors: &mut Errors) {
        validate_legacy(event, "reportingComponent", errors);
    }

    fn columns(&self) -> Vec<Column> {
        columns()
    }

    fn cells(&self, event: &Event, meta: &Value, now: Timestamp) -> Vec<Value> {
        cells(event, meta, now)
    }

    fn selectable(&self) -> &'static [&'static str] {
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]
    }

    fn select(&self, object: &Value, field: &str) -> String {
        match (field, field.strip_prefix("involvedObject.")) {
            (_, Some(part)) => text_at(object, &format!("/involvedObject/{part}")),
            ("source", _) => {
                let component = text_at(object, "/source/component");
                if component.is_empty() { text_at(object, "/reportingComponent") } else { component }
            }
            _ => text_at(object, &format!("/{field}")),
        }
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

/// Events of `events.k8s.io`: stored as [`Events`], shown with newer names, written by stricter rules.
pub struct NewEvents;

impl Kind for NewEvents {
    type Object = NewEvent;

    fn warns(&self) -> bool {
        false
    }

    fn resource(&self) -> Resource {
        Resource::namespaced("events.k8s.io", "v1", "Event", "events").short(&["ev"])
    }

    fn validate(&self, _cx: &Cx, event: &NewEvent, errors: &mut Errors) {
        validate_legacy(&event.0, "reportingController", errors);
        validate_new(&event.0, errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &NewEvent, old: &NewEvent, errors: &mut Errors) {
        validate_legacy(&new.0, "reportingController", errors);
        validate_new_update(&new.0, &old.0, errors);
    }

    fn columns(&self) -> Vec<Column> {
        columns()
    }

    fn cells(&self, event: &NewEvent, meta: &Value, now: Timestamp) -> Vec<Value> {
        cells(&event.0, meta, now)
    }

    fn selectable(&self) -> &'static [&'static str] {
        &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ]
    }

    fn select(&self, object: &Value, field: &str) -> String {
        text_at(object, &format!("/{}", field.replace('.', "/")))
    }

    fn stored_as(&self) -> Option<Twin> {
        Some(Twin { collection: "core/events", freeze: to_core, thaw: from_core })
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

fn columns() -> Vec<Column> {
    vec![
        Column::new("Last Seen", "string", 0, "When it was last observed."),
        Column::new("Type", "string", 0, "Normal or Warning."),
        Column::new("Reason", "string", 0, "Why it happened, in one word."),
        Column::new("Object", "string", 0, "What it is about."),
        Column::new("Subobject", "string", 1, "Which part of the object it is about."),
        Column::new("Source", "string", 1, "Who reported it."),
        Column::new("Message", "string", 0, "What happened."),
        Column::new("First Seen", "string", 1, "When it was first observed."),
        Column::new("Count", "string", 1, "How often it was observed."),
        Column { priority: 1, ..table::name_column() },
    ]
}

fn cells(event: &Event, meta: &Value, now: Timestamp) -> Vec<Value> {
    let time = event.event_time.as_ref().map(|time| time.0);
    let first = event.first_timestamp.as_ref().map(|time| time.0).or(time);
    let last = event.last_timestamp.as_ref().map(|time| time.0).or(first);
    let (last, count) = match &event.series {
        Some(series) => (series.last_observed_time.as_ref().map(|time| time.0), series.count.unwrap_or_default()),
        // Single events of the new group have no count.
        None => (last, event.count.filter(|count| *count != 0).unwrap_or(1)),
    };
    let object = &event.involved_object;
    let (kind, name) = (text(&object.kind).to_lowercase(), text(&object.name));
    let target = if name.is_empty() { kind } else { format!("{kind}/{name}") };
    vec![
        table::since(last, now).into(),
        text(&event.type_).into(),
        text(&event.reason).into(),
        target.into(),
        text(&object.field_path).into(),
        source(event).into(),
        text(&event.message).trim().into(),
        table::since(first, now).into(),
        count.into(),
        table::name_cell(meta),
    ]
}

/// Component and host, by their old names or else by their new ones.
fn source(event: &Event) -> String {
    let (component, host) =
        event.source.as_ref().map_or(("", ""), |source| (text(&source.component), text(&source.host)));
    let component = if component.is_empty() { text(&event.reporting_component) } else { component };
    let host = if host.is_empty() { text(&event.reporting_instance) } else { host };
    if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") }
}

#[cfg(test)]
mod tests;
