//! Volumes: names, and exactly one source each.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_schema::field::Errors;

use super::volume_sources;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, text};
use crate::registry::names;

/// The volumes that mounts may refer to.
pub type Volumes<'a> = HashMap<&'a str, &'a Volume>;

/// Checks the volumes and returns the good ones by name.
pub fn validate<'a>(volumes: &'a [Volume], meta: Option<&ObjectMeta>, at: &At, errors: &mut Errors) -> Volumes<'a> {
    let mut good = Volumes::new();
    let pod_name = meta.map_or("", |meta| text(&meta.name));
    let created_claims: HashSet<String> = volumes
        .iter()
        .filter(|volume| volume.ephemeral.is_some() && !pod_name.is_empty())
        .map(|volume| format!("{pod_name}-{}", volume.name))
        .collect();
    for (i, volume) in volumes.iter().enumerate() {
        let at = at.index(i);
        let before = errors.len();
        validate_source(volume, pod_name, &at, errors);
        if volume.name.is_empty() {
            errors.required(&at.child("name").path(), "");
        } else {
            each_invalid(names::dns1123_label(&volume.name, false), &volume.name, &at.child("name"), errors);
        }
        if good.contains_key(volume.name.as_str()) {
            errors.duplicate(&at.child("name").path(), volume.name.as_str());
        }
        if errors.len() == before {
            good.insert(&volume.name, volume);
        }
        if let Some(claim) = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str())
            && created_claims.contains(claim)
        {
            let at = at.child("persistentVolumeClaim");
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&at.child("claimName").path(), claim, detail);
        }
    }
    good
}

fn validate_source(volume: &Volume, pod_name: &str, at: &At, errors: &mut Errors) {
    let mut set = sources(volume);
    let Some(first) = set.next() else { return errors.required(&at.path(), "must specify a volume type") };
    volume_sources::validate(volume, first, pod_name, at, errors);
    for extra in set {
        errors.forbidden(&at.child(extra).path(), "may not specify more than 1 volume type");
    }
}

/// The sources a volume names, in the order upstream looks at them.
pub fn sources(volume: &Volume) -> impl Iterator<Item = &'static str> + use<> {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, set)| set.then_some(name))
}
