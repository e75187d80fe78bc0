//! PodTemplates: a template stored under a name. Nobody here makes pods from them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplate;
use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::text;
use super::pod_template::defaults::default_template;
use super::pod_template::validate::validate_template;
use super::pod_template::warnings;
use super::selector;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;

const TEMPLATE: At = At::Root("template");

pub struct PodTemplates;

impl Kind for PodTemplates {
    type Object = PodTemplate;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "PodTemplate", "podtemplates").with_generation()
    }

    fn default(&self, object: &mut PodTemplate) {
        default_template(object.template.get_or_insert_default());
    }

    fn validate(&self, _cx: &Cx, object: &PodTemplate, errors: &mut Errors) {
        if let Some(template) = &object.template {
            validate_template(template, &TEMPLATE, errors);
        }
    }

    fn warnings(&self, new: &PodTemplate, old: Option<&PodTemplate>) -> Vec<String> {
        let Some(template) = new.template.as_ref().filter(|_| old.is_none_or(|old| old.template != new.template))
        else {
            return Vec::new();
        };
        let (Some(spec), meta) = (&template.spec, template.metadata.clone().unwrap_or_default()) else {
            return Vec::new();
        };
        warnings::warnings(spec, &meta, &Path::new("template"))
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Containers", "string", 0, "Names of the template's containers."),
            Column::new("Images", "string", 0, "Images of the template's containers."),
            Column::new("Pod Labels", "string", 0, "Labels that the template gives its pods."),
        ]
    }

    fn cells(&self, object: &PodTemplate, meta: &Value, _now: Timestamp) -> Vec<Value> {
        let template = object.template.as_ref();
        let containers = template.and_then(|it| it.spec.as_ref()).map_or(&[][..], |spec| &spec.containers);
        let names: Vec<&str> = containers.iter().map(|container| container.name.as_str()).collect();
        let images: Vec<&str> = containers.iter().map(|container| text(&container.image)).collect();
        let labels = template.and_then(|it| it.metadata.as_ref()).and_then(|meta| meta.labels.as_ref());
        let labels: Vec<String> =
            labels.into_iter().flat_map(selector::pairs).map(|(key, value)| format!("{key}={value}")).collect();
        let labels = if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") };
        vec![table::name_cell(meta), names.join(",").into(), images.join(",").into(), labels.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kinds::testing::{cells, create_errors};
    use serde_json::json;

    fn template(restart: &str) -> Value {
        json!({"metadata": {"name": "t", "creationTimestamp": "2026-01-01T00:00:00Z"}, "template": {
            "metadata": {"labels": {"app": "x", "tier": "y"}},
            "spec": {"restartPolicy": restart, "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}}})
    }

    #[test]
    fn a_template_is_validated_as_a_pods_is() {
        assert_eq!(create_errors(&PodTemplates, template("Always")), Vec::<String>::new());
        let errors = create_errors(&PodTemplates, template("Sometimes"));
        assert!(
            errors.len() == 1 && errors[0].starts_with("template.spec.restartPolicy: Unsupported value"),
            "{errors:?}"
        );
    }

    #[test]
    fn columns_show_containers_images_and_labels() {
        assert_eq!(cells(&PodTemplates, template("Always")), ["t", "a,b", "i,j", "app=x,tier=y"]);
    }
}
