//! The rules for events: lenient ones for the core group, strict ones on top of them for `events.k8s.io`.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use serde::Serialize;
use serde_json::{Value, json};
use usher_schema::field::{Errors, Path};

use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, json as shown, text};
use crate::registry::names;

const SHORT_MAX: usize = 128;
const MESSAGE_MAX: usize = 1024;

/// `controller` is what the request's version calls the reporting controller.
pub fn validate_legacy(event: &Event, controller: &'static str, errors: &mut Errors) {
    let namespace = text(&event.metadata.namespace);
    let about = text(&event.involved_object.namespace);
    let agrees = match (event.event_time.is_some(), about.is_empty()) {
        (false, true) => matches!(namespace, "" | "default"),
        (false, false) => namespace == about,
        (true, true) => matches!(namespace, "default" | "kube-system"),
        (true, false) => true,
    };
    if !agrees {
        errors.invalid(&Path::new("involvedObject.namespace"), about, "does not match event.namespace");
    }
    if event.event_time.is_none() {
        return;
    }
    let name = text(&event.reporting_component);
    if name.is_empty() {
        errors.required(&Path::new(controller), "");
    }
    each_invalid(names::qualified(name), name, &At::Root(controller), errors);
    for (field, value) in
        [("reportingInstance", &event.reporting_instance), ("action", &event.action), ("reason", &event.reason)]
    {
        if text(value).is_empty() {
            errors.required(&Path::new(field), "");
        }
        at_most(value, field, SHORT_MAX, errors);
    }
    at_most(&event.message, "message", MESSAGE_MAX, errors);
}

fn at_most(value: &Option<String>, field: &str, max: usize, errors: &mut Errors) {
    if text(value).len() > max {
        errors.invalid(&Path::new(field), "", format!("can have at most {max} characters"));
    }
}

pub fn validate_new(event: &Event, errors: &mut Errors) {
    validate_series(event, errors);
    if event.event_time.is_none() {
        errors.required(&Path::new("eventTime"), "");
    }
    let kind = text(&event.type_);
    if kind != "Normal" && kind != "Warning" {
        errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
    }
    let (component, host) = source(event);
    for (field, is_set) in [
        ("firstTimestamp", event.first_timestamp.is_some()),
        ("lastTimestamp", event.last_timestamp.is_some()),
        ("count", event.count.unwrap_or_default() != 0),
        ("source", !component.is_empty() || !host.is_empty()),
    ] {
        if is_set {
            errors.invalid(&Path::new(field), "", "needs to be unset");
        }
    }
}

fn validate_series(event: &Event, errors: &mut Errors) {
    let Some(series) = &event.series else { return };
    if series.count.unwrap_or_default() < 2 {
        errors.invalid(&Path::new("series.count"), "", "should be at least 2");
    }
    if series.last_observed_time.is_none() {
        errors.required(&Path::new("series.lastObservedTime"), "");
    }
}

/// Only the series of an event goes on.
pub fn validate_new_update(new: &Event, old: &Event, errors: &mut Errors) {
    if new.series != old.series {
        validate_series(new, errors);
    }
    let mut same = Same { errors };
    same.shown("involvedObject", &new.involved_object, &old.involved_object, go_reference);
    same.text("reason", &new.reason, &old.reason);
    same.text("message", &new.message, &old.message);
    if source(new) != source(old) {
        let (component, host) = source(new);
        same.errors.immutable(&Path::new("source"), json!({"Component": component, "Host": host}));
    }
    same.shown("firstTimestamp", &new.first_timestamp, &old.first_timestamp, shown);
    same.shown("lastTimestamp", &new.last_timestamp, &old.last_timestamp, shown);
    same.shown("count", &new.count.unwrap_or_default(), &old.count.unwrap_or_default(), shown);
    same.text("reason", &new.reason, &old.reason);
    same.text("type", &new.type_, &old.type_);
    let micros = |event: &Event| event.event_time.as_ref().map(|time| time.0.as_microsecond());
    if micros(new) != micros(old) {
        same.errors.immutable(&Path::new("eventTime"), shown(&new.event_time));
    }
    same.text("action", &new.action, &old.action);
    let related = |event: &Event| event.related.clone();
    same.shown("related", &related(new), &related(old), |related| related.as_ref().map_or(Value::Null, go_reference));
    same.text("reportingController", &new.reporting_component, &old.reporting_component);
    same.text("reportingInstance", &new.reporting_instance, &old.reporting_instance);
}

struct Same<'a> {
    errors: &'a mut Errors,
}

impl Same<'_> {
    fn text(&mut self, field: &str, new: &Option<String>, old: &Option<String>) {
        if text(new) != text(old) {
            self.errors.immutable(&Path::new(field), text(new));
        }
    }

    fn shown<T: PartialEq + Serialize>(&mut self, field: &str, new: &T, old: &T, show: impl Fn(&T) -> Value) {
        if new != old {
            self.errors.immutable(&Path::new(field), show(new));
        }
    }
}

fn source(event: &Event) -> (&str, &str) {
    let of = |source: &EventSource| -> bool { source.component.is_some() || source.host.is_some() };
    match event.source.as_ref().filter(|source| of(source)) {
        Some(source) => (text(&source.component), text(&source.host)),
        None => ("", ""),
    }
}

/// As Go prints its internal type.
fn go_reference(reference: &ObjectReference) -> Value {
    json!({
        "Kind": text(&reference.kind),
        "Namespace": text(&reference.namespace),
        "Name": text(&reference.name),
        "UID": text(&reference.uid),
        "APIVersion": text(&reference.api_version),
        "ResourceVersion": text(&reference.resource_version),
        "FieldPath": text(&reference.field_path),
    })
}
