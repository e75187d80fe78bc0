//! A pod's volumes as directories and files of this machine, below the pod's directory: made before the first container from
//! what is fetched here, and written anew when that changes or a token is about to expire.
//!
//! Files appear all at once, as kubelet's do: they are links through `..data`, which is turned from one directory to the next.
//! Sizes of emptyDir volumes are not enforced.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Component, Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume,
};
use kube::{Api, Client};

use crate::decide::Host;
use crate::env;

const DATA: &str = "..data";
const DEFAULT_MODE: i32 = 0o644;
const DEFAULT_TOKEN_SECS: i64 = 3600;

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
    SetUp { volume: String, why: String },
    #[error(
        "volume {volume:?}: its type is not supported on this node; use emptyDir, configMap, secret, downwardAPI, projected or hostPath"
    )]
    Unsupported { volume: String },
}

/// Where a pod's files are.
pub struct PodDir(pub PathBuf);

impl PodDir {
    pub fn volume(&self, name: &str) -> PathBuf {
        self.0.join("volumes").join(name)
    }

    pub fn container(&self, name: &str) -> PathBuf {
        self.0.join("containers").join(name)
    }
}

/// Where a volume's files are: most are the node's, a hostPath is the machine's.
pub fn source(dir: &PodDir, volume: &Volume) -> PathBuf {
    match &volume.host_path {
        Some(host_path) => PathBuf::from(&host_path.path),
        None => dir.volume(&volume.name),
    }
}

pub struct Maker<'a> {
    pub client: &'a Client,
    pub pod: &'a Pod,
    pub dir: &'a PodDir,
    pub host: &'a Host,
    pub now: Timestamp,
    /// Whom files belong to; without it, whoever runs the node.
    pub owner: Option<(u32, u32)>,
}

/// Whether tokens that are there are kept.
#[derive(Clone, Copy, PartialEq)]
enum Tokens {
    New,
    Kept,
}

impl Maker<'_> {
    /// Makes all volumes; says when the first token among them has to be renewed.
    pub async fn make(&self) -> Result<Option<Timestamp>, Problem> {
        let mut renew_at = None;
        for volume in self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let renew = self.one(volume, Tokens::New).await?;
            renew_at = [renew_at, renew].into_iter().flatten().min();
        }
        Ok(renew_at)
    }

    /// Writes projected volumes anew, for their tokens.
    pub async fn renew(&self) -> Result<Option<Timestamp>, Problem> {
        let mut renew_at = None;
        let volumes = self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        for volume in volumes.filter(|v| v.projected.is_some()) {
            let renew = self.one(volume, Tokens::New).await?;
            renew_at = [renew_at, renew].into_iter().flatten().min();
        }
        Ok(renew_at)
    }

    /// Brings up to date what is made from objects that may have changed.
    pub async fn refresh(&self) -> Result<(), Problem> {
        let volumes = self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        for volume in volumes.filter(|v| v.host_path.is_none() && v.empty_dir.is_none()) {
            self.one(volume, Tokens::Kept).await?;
        }
        Ok(())
    }

    async fn one(&self, volume: &Volume, tokens: Tokens) -> Result<Option<Timestamp>, Problem> {
        let failed = |why: String| Problem::SetUp { volume: volume.name.clone(), why };
        let io_failed = |error: io::Error| failed(error.to_string());
        if let Some(host_path) = &volume.host_path {
            check_host_path(host_path).map_err(failed)?;
            return Ok(None);
        }
        let dir = self.dir.volume(&volume.name);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(io_failed)?;
        if volume.empty_dir.is_some() {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).map_err(io_failed)?;
            return Ok(None);
        }
        let mut files = Files::default();
        let mut renew_at = None;
        if let Some(source) = &volume.config_map {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            let map = self.config_map(&source.name, source.optional == Some(true)).await.map_err(failed)?;
            files
                .add_keys(map_data(map), source.items.as_deref(), mode, source.optional == Some(true))
                .map_err(failed)?;
        } else if let Some(source) = &volume.secret {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            let name = source.secret_name.as_deref().unwrap_or_default();
            let secret = self.secret(name, source.optional == Some(true)).await.map_err(failed)?;
            let data = secret.and_then(|s| s.data).unwrap_or_default();
            files.add_keys(data, source.items.as_deref(), mode, source.optional == Some(true)).map_err(failed)?;
        } else if let Some(source) = &volume.downward_api {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            self.downward(&mut files, source.items.as_deref().unwrap_or_default(), mode).map_err(failed)?;
        } else if let Some(source) = &volume.projected {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            for part in source.sources.iter().flatten() {
                if let Some(part) = &part.config_map {
                    let optional = part.optional == Some(true);
                    let map = self.config_map(&part.name, optional).await.map_err(failed)?;
                    files.add_keys(map_data(map), part.items.as_deref(), mode, optional).map_err(failed)?;
                } else if let Some(part) = &part.secret {
                    let optional = part.optional == Some(true);
                    let data = self.secret(&part.name, optional).await.map_err(failed)?.and_then(|s| s.data);
                    files.add_keys(data.unwrap_or_default(), part.items.as_deref(), mode, optional).map_err(failed)?;
                } else if let Some(part) = &part.downward_api {
                    self.downward(&mut files, part.items.as_deref().unwrap_or_default(), mode).map_err(failed)?;
                } else if let Some(part) = &part.service_account_token {
                    if let (Tokens::Kept, Ok(token)) = (tokens, fs::read(dir.join(DATA).join(&part.path))) {
                        files.add(&part.path, token, mode).map_err(failed)?;
                        continue;
                    }
                    let (token, renew) = self.token(part).await.map_err(failed)?;
                    files.add(&part.path, token.into_bytes(), mode).map_err(failed)?;
                    renew_at = [renew_at, Some(renew)].into_iter().flatten().min();
                } else {
                    return Err(Problem::Unsupported { volume: volume.name.clone() });
                }
            }
        } else {
            return Err(Problem::Unsupported { volume: volume.name.clone() });
        }
        files.write(&dir, self.owner).map_err(io_failed)?;
        Ok(renew_at)
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    async fn config_map(&self, name: &str, optional: bool) -> Result<Option<ConfigMap>, String> {
        let found = Api::<ConfigMap>::namespaced(self.client.clone(), self.namespace()).get_opt(name).await;
        match found.map_err(|e| e.to_string())? {
            None if !optional => Err(format!("configmap {name:?} not found")),
            found => Ok(found),
        }
    }

    async fn secret(&self, name: &str, optional: bool) -> Result<Option<Secret>, String> {
        let found = Api::<Secret>::namespaced(self.client.clone(), self.namespace()).get_opt(name).await;
        match found.map_err(|e| e.to_string())? {
            None if !optional => Err(format!("secret {name:?} not found")),
            found => Ok(found),
        }
    }

    fn downward(&self, files: &mut Files, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<(), String> {
        for item in items {
            let text = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => env::field_value(self.pod, field, self.host),
                (None, Some(resource)) => env::resource_value(self.pod, None, resource, self.host),
                (None, None) => continue,
            };
            files.add(&item.path, text.map_err(|e| e.to_string())?.into_bytes(), item.mode.unwrap_or(mode))?;
        }
        Ok(())
    }

    /// A token bound to this pod, and when to renew it: after four fifths of its life.
    async fn token(&self, wanted: &ServiceAccountTokenProjection) -> Result<(String, Timestamp), String> {
        let account = self.pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()).unwrap_or("default");
        let secs = wanted.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECS);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(wanted.audience.iter().cloned().collect()),
                expiration_seconds: Some(secs),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: self.pod.metadata.name.clone(),
                    uid: self.pod.metadata.uid.clone(),
                }),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), self.namespace());
        let answer = api
            .create_token_request(account, &Default::default(), &request)
            .await
            .map_err(|e| format!("failed to fetch token: {e}"))?;
        let status = answer.status.ok_or("failed to fetch token: the answer has none")?;
        let token = status.token.ok_or("failed to fetch token: the answer has none")?;
        let life =
            status.expiration_timestamp.map_or(secs, |at| at.0.duration_since(self.now).as_secs()).clamp(1, secs);
        Ok((token, self.now + SignedDuration::from_secs(life * 4 / 5)))
    }
}

fn map_data(map: Option<ConfigMap>) -> BTreeMap<String, ByteString> {
    let Some(map) = map else { return BTreeMap::new() };
    let text = map.data.into_iter().flatten().map(|(key, value)| (key, ByteString(value.into_bytes())));
    text.chain(map.binary_data.into_iter().flatten()).collect()
}

fn check_host_path(wanted: &HostPathVolumeSource) -> Result<(), String> {
    let path = Path::new(&wanted.path);
    let is = |ok: bool, what: &str| {
        if ok { Ok(()) } else { Err(format!("hostPath type check failed: {} is not a {what}", wanted.path)) }
    };
    match wanted.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" if !path.exists() => fs::create_dir_all(path).map_err(|e| e.to_string()),
        "FileOrCreate" if !path.exists() => fs::File::create(path).map(drop).map_err(|e| e.to_string()),
        "Directory" | "DirectoryOrCreate" => is(path.is_dir(), "directory"),
        "File" | "FileOrCreate" => is(path.is_file(), "file"),
        _ if !path.exists() => Err(format!("hostPath {} does not exist", wanted.path)),
        _ => Ok(()),
    }
}

/// The files of one volume, by path within it.
#[derive(Default)]
struct Files(BTreeMap<PathBuf, (Vec<u8>, u32)>);

impl Files {
    fn add(&mut self, path: &str, content: Vec<u8>, mode: i32) -> Result<(), String> {
        let path = Path::new(path);
        if path.as_os_str().is_empty() || !path.components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(format!("invalid path: {}", path.display()));
        }
        self.0.insert(path.to_owned(), (content, (mode & 0o777) as u32));
        Ok(())
    }

    /// All keys, or those that are listed, where they are wanted.
    fn add_keys(
        &mut self,
        data: BTreeMap<String, ByteString>,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: bool,
    ) -> Result<(), String> {
        let Some(items) = items.filter(|i| !i.is_empty()) else {
            return data.into_iter().try_for_each(|(key, value)| self.add(&key, value.0, mode));
        };
        for item in items {
            match data.get(&item.key) {
                Some(value) => self.add(&item.path, value.0.clone(), item.mode.unwrap_or(mode))?,
                None if optional => {}
                None => return Err(format!("references non-existent config key: {}", item.key)),
            }
        }
        Ok(())
    }

    /// All at once: readers may be there already, and see the old files or the new ones.
    fn write(self, dir: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
        let current = fs::read_link(dir.join(DATA)).ok();
        if current.as_ref().is_some_and(|current| self.is_in(&dir.join(current))) {
            return Ok(());
        }
        let mut number = 1 + current.as_deref().and_then(number_of).unwrap_or(0);
        // Left half made by a node that was killed.
        while dir.join(format!("..{number}")).exists() {
            number += 1;
        }
        let (name, tops) = (format!("..{number}"), self.tops());
        let new = dir.join(&name);
        make_dir(&new)?;
        for (path, (content, mode)) in self.0 {
            let path = new.join(path);
            path.parent().map(make_dir).transpose()?;
            let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)?;
            file.write_all(&content)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            if let Some((uid, gid)) = owner {
                fchown(&file, Some(uid), Some(gid))?;
            }
        }
        let next = dir.join("..data_tmp");
        let _ = fs::remove_file(&next);
        symlink(&name, &next)?;
        fs::rename(&next, dir.join(DATA))?;
        for top in &tops {
            if fs::symlink_metadata(dir.join(top)).is_err() {
                symlink(Path::new(DATA).join(top), dir.join(top))?;
            }
        }
        for entry in fs::read_dir(dir)?.flatten() {
            let found = entry.file_name();
            let is_ours = found == DATA || found == *name || tops.contains(Path::new(&found));
            let path = entry.path();
            match entry.file_type()?.is_dir() {
                _ if is_ours => {}
                true => fs::remove_dir_all(&path)?,
                false => fs::remove_file(&path)?,
            }
        }
        Ok(())
    }

    /// What is to be seen in the volume's directory itself.
    fn tops(&self) -> BTreeSet<PathBuf> {
        self.0.keys().filter_map(|path| Some(PathBuf::from(path.components().next()?.as_os_str()))).collect()
    }

    /// Whether these very files are below `dir`, and no others.
    fn is_in(&self, dir: &Path) -> bool {
        fn count(dir: &Path) -> usize {
            let each = |entry: fs::DirEntry| match entry.path() {
                path if path.is_dir() => count(&path),
                _ => 1,
            };
            fs::read_dir(dir).into_iter().flatten().flatten().map(each).sum()
        }
        let same =
            |(path, (content, _)): (&PathBuf, &(Vec<u8>, u32))| fs::read(dir.join(path)).is_ok_and(|c| c == *content);
        self.0.iter().all(same) && count(dir) == self.0.len()
    }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

fn number_of(dir: &Path) -> Option<u64> {
    dir.to_str()?.strip_prefix("..")?.parse().ok()
}

/// The objects that a pod's volumes and variables are made from: kind and name.
pub fn sources(pod: &Pod) -> BTreeSet<(Source, String)> {
    let mut all = BTreeSet::new();
    let spec = pod.spec.as_ref();
    let inits = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten());
    for container in spec.into_iter().flat_map(|s| &s.containers).chain(inits) {
        let needs = env::Needs::of_container(container);
        all.extend(needs.config_maps.into_iter().map(|name| (Source::ConfigMap, name)));
        all.extend(needs.secrets.into_iter().map(|name| (Source::Secret, name)));
    }
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        all.extend(volume.config_map.iter().map(|s| (Source::ConfigMap, s.name.clone())));
        all.extend(volume.secret.iter().filter_map(|s| Some((Source::Secret, s.secret_name.clone()?))));
        for part in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            all.extend(part.config_map.iter().map(|s| (Source::ConfigMap, s.name.clone())));
            all.extend(part.secret.iter().map(|s| (Source::Secret, s.name.clone())));
        }
    }
    all
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    ConfigMap,
    Secret,
}

/// Whether a volume is made from the pod itself.
pub fn tell_of_the_pod(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|volume| {
        let parts = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        volume.downward_api.is_some() || parts.into_iter().any(|part| part.downward_api.is_some())
    })
}

/// `base` and a path below it that a pod's author wrote: it must not lead out.
pub fn below(base: &Path, sub_path: &str) -> Result<PathBuf, String> {
    let path = Path::new(sub_path);
    if !path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(format!("subPath {sub_path:?} must stay within its volume"));
    }
    let joined = base.join(path);
    // A link in the volume, which a container may have made, must not lead out either.
    let deepest = joined.ancestors().find(|p| p.exists()).unwrap_or(base);
    let (real, base_real) = (fs::canonicalize(deepest), fs::canonicalize(base));
    match (real, base_real) {
        (Ok(real), Ok(base_real)) if real.starts_with(&base_real) => Ok(joined),
        _ => Err(format!("subPath {sub_path:?} leads out of its volume")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(keys: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        keys.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect()
    }

    #[test]
    fn listed_keys_go_where_they_are_wanted_with_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        let item = KeyToPath { key: "a".into(), path: "deep/er".into(), mode: Some(0o400), ..KeyToPath::default() };
        let mut files = Files::default();
        files.add_keys(data(&[("a", "1"), ("b", "2")]), Some(&[item]), 0o644, false).unwrap();
        files.write(dir.path(), None).unwrap();
        let path = dir.path().join("deep/er");
        assert_eq!(fs::read_to_string(&path).unwrap(), "1");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
        assert!(!dir.path().join("b").exists());
    }

    #[test]
    fn files_are_replaced_all_at_once_and_those_that_are_no_more_go() {
        let dir = tempfile::tempdir().unwrap();
        let write = |keys: &[(&str, &str)]| {
            let mut files = Files::default();
            files.add_keys(data(keys), None, 0o644, false).unwrap();
            files.write(dir.path(), None).unwrap();
        };
        let seen = || -> Vec<String> {
            let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        write(&[("a", "1"), ("b", "2")]);
        let open = fs::canonicalize(dir.path().join("a")).unwrap();
        assert_eq!(seen(), ["..1", "..data", "a", "b"]);
        write(&[("a", "1"), ("b", "2")]);
        assert_eq!(fs::canonicalize(dir.path().join("a")).unwrap(), open, "nothing has changed");
        write(&[("a", "3"), ("c", "4")]);
        assert_eq!(seen(), ["..2", "..data", "a", "c"]);
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "3");
    }

    #[test]
    fn a_key_that_is_missing_is_an_error_unless_optional() {
        let items = [KeyToPath { key: "a".into(), path: "a".into(), ..KeyToPath::default() }];
        let mut files = Files::default();
        assert!(files.add_keys(data(&[]), Some(&items), 0o644, true).is_ok());
        let error = files.add_keys(data(&[]), Some(&items), 0o644, false).unwrap_err();
        assert_eq!(error, "references non-existent config key: a");
    }

    #[test]
    fn no_path_leads_out_of_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        for bad in ["../x", "/etc", "out", "out/passwd", "a/../../b"] {
            assert!(below(dir.path(), bad).is_err(), "{bad}");
        }
        assert_eq!(below(dir.path(), "new/dir").unwrap(), dir.path().join("new/dir"));
        assert!(Files::default().add("../x", vec![], 0o644).is_err());
    }
}
