//! What each source of a volume needs.
//!
//! The sources this system can serve are checked in full; of the storage vendors' ones only that what they cannot do without is there.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, PodCertificateProjection, ProjectedVolumeSource,
    ServiceAccountTokenProjection, Volume,
};
use usher_api::quantity::Quantity;
use usher_schema::field::Errors;

use super::containers::PULL_POLICIES;
use super::env::{VOLUME_FIELDS, validate_field_ref, validate_resource_field_ref};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, json, list, one_of, required_one_of, text};
use crate::registry::kinds::persistent_volume_claim::validate_claim_spec;
use crate::registry::kinds::selector;
use crate::registry::{meta, names};

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const EMPTY_DIR_MODE: &str = "must be a number between 0 and 01777 (octal), both inclusive";
const DUPLICATE_PATHS: &str = "conflicting duplicate paths";
const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

/// Checks the source named `field`, which is set.
pub fn validate(volume: &Volume, field: &'static str, pod_name: &str, at: &At, errors: &mut Errors) {
    let here = at.child(field);
    match field {
        "emptyDir" => validate_empty_dir(volume, &here, errors),
        "hostPath" => validate_host_path(volume, &here, errors),
        "secret" => {
            let Some(source) = &volume.secret else { return };
            let name = text(&source.secret_name);
            required(name, &here.child("secretName"), errors);
            validate_files(source.default_mode, source.default_user, &source.items, &here, errors);
        }
        "configMap" => {
            let Some(source) = &volume.config_map else { return };
            required(&source.name, &here.child("name"), errors);
            validate_files(source.default_mode, source.default_user, &source.items, &here, errors);
        }
        "downwardAPI" => {
            let Some(source) = &volume.downward_api else { return };
            file_mode(source.default_mode, &here.child("defaultMode"), errors);
            user(source.default_user, &here.child("defaultUser"), errors);
            for file in list(&source.items) {
                validate_downward_file(file, &here, errors);
            }
        }
        "projected" => {
            let Some(source) = &volume.projected else { return };
            validate_projected(source, &here, errors);
        }
        "persistentVolumeClaim" => {
            let name = volume.persistent_volume_claim.as_ref().map_or("", |source| source.claim_name.as_str());
            required(name, &here.child("claimName"), errors);
        }
        "ephemeral" => validate_ephemeral(volume, pod_name, at, errors),
        "csi" => validate_csi(volume, &here, errors),
        "image" => {
            let Some(source) = &volume.image else { return };
            required(text(&source.reference), &here.child("reference"), errors);
            required_one_of(text(&source.pull_policy), &PULL_POLICIES, &here.child("pullPolicy"), errors);
        }
        _ => validate_vendor(volume, &here, errors),
    }
}

fn required(value: &str, at: &At, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(&at.path(), "");
    }
}

fn validate_empty_dir(volume: &Volume, at: &At, errors: &mut Errors) {
    let Some(source) = &volume.empty_dir else { return };
    if let Some(limit) = &source.size_limit
        && Quantity::parse(&limit.0).map_or(true, Quantity::is_negative)
    {
        errors.forbidden(&at.child("sizeLimit").path(), "SizeLimit field must be a valid resource quantity");
    }
    if let Some(mode) = source.mode.filter(|mode| !(0..=0o1777).contains(mode)) {
        errors.invalid(&at.child("mode").path(), mode, EMPTY_DIR_MODE);
    }
}

fn validate_host_path(volume: &Volume, at: &At, errors: &mut Errors) {
    let Some(source) = &volume.host_path else { return };
    if source.path.is_empty() {
        return errors.required(&at.child("path").path(), "");
    }
    no_backsteps(&source.path, &at.child("path"), errors);
    if let Some(kind) = &source.type_ {
        let types =
            ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
        one_of(kind, &types, &at.child("type"), errors);
    }
}

fn validate_files(mode: Option<i32>, owner: Option<i64>, items: &Option<Vec<KeyToPath>>, at: &At, errors: &mut Errors) {
    file_mode(mode, &at.child("defaultMode"), errors);
    user(owner, &at.child("defaultUser"), errors);
    for (i, item) in list(items).iter().enumerate() {
        validate_key_to_path(item, &at.child("items").index(i), errors);
    }
}

fn validate_key_to_path(item: &KeyToPath, at: &At, errors: &mut Errors) {
    required(&item.key, &at.child("key"), errors);
    required(&item.path, &at.child("path"), errors);
    local_path(&item.path, &at.child("path"), errors);
    file_mode(item.mode, &at.child("mode"), errors);
    user(item.user, &at.child("user"), errors);
}

fn file_mode(mode: Option<i32>, at: &At, errors: &mut Errors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(&at.path(), mode, FILE_MODE);
    }
}

fn user(user: Option<i64>, at: &At, errors: &mut Errors) {
    if let Some(user) = user {
        for problem in names::unix_id(user) {
            errors.invalid(&at.path(), user, problem);
        }
    }
}

fn validate_downward_file(file: &DownwardAPIVolumeFile, at: &At, errors: &mut Errors) {
    required(&file.path, &at.child("path"), errors);
    local_path(&file.path, &at.child("path"), errors);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            validate_field_ref(field, &VOLUME_FIELDS, &at.child("fieldRef"), errors);
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(&at.path(), "resource", detail);
            }
        }
        (None, Some(field)) => validate_resource_field_ref(field, true, &at.child("resourceFieldRef"), errors),
        (None, None) => errors.required(&at.path(), "one of fieldRef and resourceFieldRef is required"),
    }
    file_mode(file.mode, &at.child("mode"), errors);
    user(file.user, &at.child("user"), errors);
}

fn validate_projected(projected: &ProjectedVolumeSource, at: &At, errors: &mut Errors) {
    file_mode(projected.default_mode, &at.child("defaultMode"), errors);
    user(projected.default_user, &at.child("defaultUser"), errors);
    let mut paths: HashSet<String> = HashSet::new();
    let mut claim_path = |path: &str, shown: &str, errors: &mut Errors| {
        if !path.is_empty() && !paths.insert(path.to_owned()) {
            errors.invalid(&at.path(), shown, DUPLICATE_PATHS);
        }
    };
    for (i, source) in list(&projected.sources).iter().enumerate() {
        let item = at.child("sources");
        let item = item.index(i);
        let mut count = 0;
        let secret = source.secret.as_ref().map(|s| ("secret", s.name.as_str(), &s.items));
        let config_map = source.config_map.as_ref().map(|s| ("configMap", s.name.as_str(), &s.items));
        for (field, name, items) in secret.into_iter().chain(config_map) {
            count += 1;
            let here = item.child(field);
            required(name, &here.child("name"), errors);
            for (j, key) in list(items).iter().enumerate() {
                validate_key_to_path(key, &here.child("items").index(j), errors);
                claim_path(&key.path, name, errors);
            }
        }
        if let Some(downward) = &source.downward_api {
            count += 1;
            for file in list(&downward.items) {
                validate_downward_file(file, &item.child("downwardAPI"), errors);
                claim_path(&file.path, &file.path, errors);
            }
        }
        if let Some(token) = &source.service_account_token {
            count += 1;
            validate_token(token, at, &item.child("serviceAccountToken"), errors);
        }
        if let Some(bundle) = &source.cluster_trust_bundle {
            count += 1;
            validate_trust_bundle(bundle, &item.child("clusterTrustBundle"), errors);
            claim_path(&bundle.path, &bundle.path, errors);
        }
        if let Some(certificate) = &source.pod_certificate {
            count += 1;
            validate_certificate(certificate, &item.child("podCertificate"), errors);
            for path in certificate_paths(certificate) {
                claim_path(path.1, path.1, errors);
            }
        }
        if count > 1 {
            errors.forbidden(&item.path(), "may not specify more than 1 volume type per source");
        }
    }
}

/// Upstream reports the path of a token one level too high.
fn validate_token(token: &ServiceAccountTokenProjection, projected: &At, at: &At, errors: &mut Errors) {
    let expiration = at.child("expirationSeconds");
    match token.expiration_seconds {
        None => errors.required(&expiration.path(), ""),
        Some(secs) if secs < 600 => {
            errors.invalid(&expiration.path(), secs, "may not specify a duration less than 10 minutes");
        }
        Some(secs) if secs > 1 << 32 => {
            errors.invalid(&expiration.path(), secs, "may not specify a duration larger than 2^32 seconds");
        }
        Some(_) => {}
    }
    if token.path.is_empty() {
        errors.required(&projected.child("path").path(), "");
    } else {
        local_path(&token.path, &projected.child("path"), errors);
    }
    user(token.user, &at.child("user"), errors);
}

fn validate_trust_bundle(bundle: &ClusterTrustBundleProjection, at: &At, errors: &mut Errors) {
    match (&bundle.name, &bundle.signer_name) {
        (Some(_), Some(_)) => {
            errors.invalid(&at.path(), json(bundle), "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors.required(&at.child("name").path(), "must be a valid object name");
            }
            if bundle.label_selector.is_some() {
                let detail = "labelSelector must be unset if name is specified";
                errors.invalid(&at.child("labelSelector").path(), json(&bundle.label_selector), detail);
            }
        }
        (None, Some(signer)) => {
            validate_signer(signer, &at.child("signerName"), errors);
            if let Some(labels) = &bundle.label_selector {
                selector::validate(labels, &at.child("labelSelector"), errors);
            }
        }
        (None, None) => errors.required(&at.path(), "either name or signerName must be specified"),
    }
    required(&bundle.path, &at.child("path"), errors);
    user(bundle.user, &at.child("user"), errors);
    local_path(&bundle.path, &at.child("path"), errors);
}

fn validate_signer(signer: &str, at: &At, errors: &mut Errors) {
    match signer.split_once('/') {
        _ if signer.is_empty() => errors.required(&at.path(), ""),
        Some((domain, path)) if !path.is_empty() && domain.contains('.') => {
            each_invalid(names::dns1123_subdomain(domain, false), signer, at, errors);
        }
        _ => errors.invalid(
            &at.path(),
            signer,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        ),
    }
}

fn certificate_paths(certificate: &PodCertificateProjection) -> [(&'static str, &str); 3] {
    [
        ("credentialBundlePath", text(&certificate.credential_bundle_path)),
        ("keyPath", text(&certificate.key_path)),
        ("certificateChainPath", text(&certificate.certificate_chain_path)),
    ]
}

fn validate_certificate(certificate: &PodCertificateProjection, at: &At, errors: &mut Errors) {
    validate_signer(&certificate.signer_name, &at.child("signerName"), errors);
    user(certificate.user, &at.child("user"), errors);
    one_of(&certificate.key_type, &KEY_TYPES, &at.child("keyType"), errors);
    if let Some(secs) = certificate.max_expiration_seconds.filter(|secs| *secs < 3600) {
        let detail = "if provided, maxExpirationSeconds must be >= 3600";
        errors.invalid(&at.child("maxExpirationSeconds").path(), secs, detail);
    }
    let mut paths = certificate_paths(certificate).into_iter().filter(|(_, path)| !path.is_empty()).peekable();
    if paths.peek().is_none() {
        let detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(&at.path(), detail);
    }
    for (field, path) in paths {
        local_path(path, &at.child(field), errors);
    }
}

fn validate_ephemeral(volume: &Volume, pod_name: &str, at: &At, errors: &mut Errors) {
    let Some(source) = &volume.ephemeral else { return };
    let here = at.child("ephemeral");
    let here = here.child("volumeClaimTemplate");
    match &source.volume_claim_template {
        None => errors.required(&here.path(), ""),
        Some(template) => {
            if let Some(metadata) = &template.metadata {
                let here = here.child("metadata");
                let annotations = metadata.annotations.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()));
                meta::validate_annotations(annotations, &here.child("annotations"), errors);
                let labels = metadata.labels.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()));
                meta::validate_labels(labels, &here.child("labels"), errors);
                for (field, set) in [
                    ("name", !text(&metadata.name).is_empty()),
                    ("generateName", !text(&metadata.generate_name).is_empty()),
                    ("namespace", !text(&metadata.namespace).is_empty()),
                    ("finalizers", !list(&metadata.finalizers).is_empty()),
                    ("ownerReferences", !list(&metadata.owner_references).is_empty()),
                ] {
                    if set {
                        errors.forbidden(&here.child(field).path(), "cannot be set");
                    }
                }
            }
            validate_claim_spec(&template.spec, &here.child("spec"), errors);
        }
    }
    if !pod_name.is_empty() && !volume.name.is_empty() {
        let claim = format!("{pod_name}-{}", volume.name);
        for problem in names::dns1123_subdomain(&claim, false) {
            errors.invalid(&at.child("name").path(), volume.name.as_str(), format!("PVC name \"{claim}\": {problem}"));
        }
    }
}

fn validate_csi(volume: &Volume, at: &At, errors: &mut Errors) {
    let Some(source) = &volume.csi else { return };
    if source.driver.is_empty() {
        errors.required(&at.child("driver").path(), "");
    } else {
        if source.driver.len() > 63 {
            errors.too_long(&at.child("driver").path(), 63);
        }
        let lower = source.driver.to_lowercase();
        each_invalid(names::dns1123_subdomain(&lower, false), &source.driver, &at.child("driver"), errors);
    }
    if let Some(secret) = &source.node_publish_secret_ref {
        if secret.name.is_empty() {
            errors.required(&at.child("nodePublishSecretRef").child("name").path(), "");
        } else {
            each_invalid(names::dns1123_subdomain(&secret.name, false), &secret.name, &at.child("name"), errors);
        }
    }
}

/// Vendors' sources: what cannot be missing is there.
fn validate_vendor(volume: &Volume, at: &At, errors: &mut Errors) {
    let mut need = |field: &'static str, missing: bool| {
        if missing {
            errors.required(&at.child(field).path(), "");
        }
    };
    if let Some(source) = &volume.git_repo {
        need("repository", source.repository.is_empty());
    } else if let Some(source) = &volume.gce_persistent_disk {
        need("pdName", source.pd_name.is_empty());
    } else if let Some(source) = &volume.aws_elastic_block_store {
        need("volumeID", source.volume_id.is_empty());
    } else if let Some(source) = &volume.nfs {
        need("server", source.server.is_empty());
        need("path", source.path.is_empty());
        if !source.path.starts_with('/') {
            errors.invalid(&at.child("path").path(), source.path.as_str(), "must be an absolute path");
        }
    } else if let Some(source) = &volume.iscsi {
        need("targetPortal", source.target_portal.is_empty());
        need("iqn", source.iqn.is_empty());
    } else if let Some(source) = &volume.glusterfs {
        need("endpoints", source.endpoints.is_empty());
        need("path", source.path.is_empty());
    } else if let Some(source) = &volume.rbd {
        need("monitors", source.monitors.is_empty());
        need("image", source.image.is_empty());
    } else if let Some(source) = &volume.cinder {
        need("volumeID", source.volume_id.is_empty());
    } else if let Some(source) = &volume.cephfs {
        need("monitors", source.monitors.is_empty());
    } else if let Some(source) = &volume.quobyte {
        need("registry", source.registry.is_empty());
        need("volume", source.volume.is_empty());
    } else if let Some(source) = &volume.flex_volume {
        need("driver", source.driver.is_empty());
    } else if let Some(source) = &volume.azure_file {
        need("secretName", source.secret_name.is_empty());
        need("shareName", source.share_name.is_empty());
    } else if let Some(source) = &volume.vsphere_volume {
        need("volumePath", source.volume_path.is_empty());
    } else if let Some(source) = &volume.photon_persistent_disk {
        need("pdID", source.pd_id.is_empty());
    } else if let Some(source) = &volume.portworx_volume {
        need("volumeID", source.volume_id.is_empty());
    } else if let Some(source) = &volume.azure_disk {
        need("diskName", source.disk_name.is_empty());
        need("diskURI", source.disk_uri.is_empty());
    } else if let Some(source) = &volume.storageos {
        need("volumeName", text(&source.volume_name).is_empty());
    } else if let Some(source) = &volume.scale_io {
        need("gateway", source.gateway.is_empty());
        need("system", source.system.is_empty());
        need("volumeName", text(&source.volume_name).is_empty());
    } else if let Some(source) = &volume.fc
        && list(&source.target_wwns).is_empty()
        && list(&source.wwids).is_empty()
    {
        errors.required(&at.child("targetWWNs").path(), "must specify either targetWWNs or wwids, but not both");
    }
}

/// No `..` on the way.
pub fn no_backsteps(path: &str, at: &At, errors: &mut Errors) {
    if path.split('/').any(|part| part == "..") {
        errors.invalid(&at.path(), path, "must not contain '..'");
    }
}

/// Relative, and no `..` on the way.
pub fn descending_path(path: &str, at: &At, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.invalid(&at.path(), path, "must be a relative path");
    }
    no_backsteps(path, at, errors);
}

/// As [`descending_path`], and not one of the names the node agent keeps for itself.
fn local_path(path: &str, at: &At, errors: &mut Errors) {
    descending_path(path, at, errors);
    if path.starts_with("..") && !path.starts_with("../") {
        errors.invalid(&at.path(), path, "must not start with '..'");
    }
}
