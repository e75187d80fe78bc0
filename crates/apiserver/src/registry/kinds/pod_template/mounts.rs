//! Volume mounts and block devices of a container.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use usher_schema::field::Errors;

use super::volume_sources::descending_path;
use super::volumes::Volumes;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{is_true, list, one_of, text};

pub fn validate_mounts(container: &Container, volumes: &Volumes, at: &At, errors: &mut Errors) {
    let devices = list(&container.volume_devices);
    let mut paths: HashSet<&str> = HashSet::new();
    for (i, mount) in list(&container.volume_mounts).iter().enumerate() {
        let item = at.index(i);
        if mount.name.is_empty() {
            errors.required(&item.child("name").path(), "");
        }
        if !volumes.contains_key(mount.name.as_str()) {
            errors.not_found(&item.child("name").path(), mount.name.as_str());
        }
        let path = mount.mount_path.as_str();
        if path.is_empty() {
            errors.required(&item.child("mountPath").path(), "");
        }
        if !paths.insert(path) {
            errors.invalid(&item.child("mountPath").path(), path, "must be unique");
        }
        if devices.iter().any(|device| device.name == mount.name) {
            let detail = "must not already exist in volumeDevices";
            errors.invalid(&item.child("name").path(), mount.name.as_str(), detail);
        }
        if devices.iter().any(|device| device.device_path == path) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.invalid(&item.child("mountPath").path(), path, detail);
        }
        validate_sub_path(mount, at, &item, errors);
        validate_propagation(mount, container, &at.child("mountPropagation"), errors);
        validate_recursive(mount, &at.child("recursiveReadOnly"), errors);
    }
}

/// Upstream reports these at the list, not at the mount.
fn validate_sub_path(mount: &VolumeMount, at: &At, item: &At, errors: &mut Errors) {
    let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
    if !sub_path.is_empty() {
        descending_path(sub_path, &at.child("subPath"), errors);
    }
    if !expression.is_empty() {
        if !sub_path.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(&item.child("subPathExpr").path(), expression, detail);
        }
        descending_path(expression, &at.child("subPathExpr"), errors);
    }
}

fn validate_propagation(mount: &VolumeMount, container: &Container, at: &At, errors: &mut Errors) {
    let Some(propagation) = &mount.mount_propagation else { return };
    one_of(propagation, &["Bidirectional", "HostToContainer", "None"], at, errors);
    let privileged = container.security_context.as_ref().is_some_and(|context| is_true(context.privileged));
    if propagation == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.forbidden(&at.path(), detail);
    }
}

fn validate_recursive(mount: &VolumeMount, at: &At, errors: &mut Errors) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !is_true(mount.read_only) {
                errors.forbidden(&at.path(), "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|propagation| propagation != "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(&at.path(), detail);
            }
        }
        Some(other) => errors.not_supported(&at.path(), other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

pub fn validate_devices(container: &Container, volumes: &Volumes, at: &At, errors: &mut Errors) {
    let mounts = list(&container.volume_mounts);
    let (mut names, mut paths): (HashSet<&str>, HashSet<&str>) = Default::default();
    for (i, device) in list(&container.volume_devices).iter().enumerate() {
        let at = at.index(i);
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        if name.is_empty() {
            errors.required(&at.child("name").path(), "");
        } else if !names.insert(name) {
            errors.invalid(&at.child("name").path(), name, "must be unique");
        }
        match volumes.get(name) {
            None => errors.not_found(&at.child("name").path(), name),
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(&at.child("name").path(), name, detail);
            }
            Some(_) => {}
        }
        if path.is_empty() {
            errors.required(&at.child("devicePath").path(), "");
        }
        if paths.contains(path) {
            errors.invalid(&at.child("devicePath").path(), path, "must be unique");
        }
        if path.split('/').any(|part| part == "..") {
            errors.invalid(&at.child("devicePath").path(), path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path);
        }
        if mounts.iter().any(|mount| mount.name == name) {
            errors.invalid(&at.child("name").path(), name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| mount.mount_path == path) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.invalid(&at.child("devicePath").path(), path, detail);
        }
    }
}
