//! Security contexts of pods and containers.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext, Sysctl,
};
use usher_schema::field::Errors;

use super::volume_sources::descending_path;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{is_true, json, list, one_of};
use crate::registry::names;

const SYSCTL_MAX: usize = 253;
const SYSCTL_FMT: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const LOCALHOST_MAX: usize = 4095;
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

pub fn validate_pod(context: &PodSecurityContext, spec: &PodSpec, at: &At, errors: &mut Errors) {
    unix_id(context.fs_group, &at.child("fsGroup"), errors);
    unix_id(context.run_as_user, &at.child("runAsUser"), errors);
    unix_id(context.run_as_group, &at.child("runAsGroup"), errors);
    for (i, group) in list(&context.supplemental_groups).iter().enumerate() {
        unix_id(Some(*group), &at.child("supplementalGroups").index(i), errors);
    }
    validate_sysctls(list(&context.sysctls), spec, &at.child("sysctls"), errors);
    let optional = [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
    ];
    for (field, value, supported) in optional {
        if let Some(value) = value {
            one_of(value, &supported, &at.child(field), errors);
        }
    }
    validate_seccomp(context.seccomp_profile.as_ref(), &at.child("seccompProfile"), errors);
    validate_app_armor(context.app_armor_profile.as_ref(), &at.child("appArmorProfile"), errors);
}

pub fn validate_container(context: &SecurityContext, host_users: bool, at: &At, errors: &mut Errors) {
    unix_id(context.run_as_user, &at.child("runAsUser"), errors);
    unix_id(context.run_as_group, &at.child("runAsGroup"), errors);
    if let Some(mount) = &context.proc_mount {
        one_of(mount, &["Default", "Unmasked"], &at.child("procMount"), errors);
        if host_users && mount == "Unmasked" {
            let detail = "`hostUsers` must be false to use `Unmasked`";
            errors.invalid(&at.child("procMount").path(), mount.as_str(), detail);
        }
    }
    validate_seccomp(context.seccomp_profile.as_ref(), &at.child("seccompProfile"), errors);
    if context.allow_privilege_escalation == Some(false) {
        if is_true(context.privileged) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid(&at.path(), json(context), detail);
        }
        let added = context.capabilities.as_ref().map_or(&[][..], |capabilities| list(&capabilities.add));
        for _ in added.iter().filter(|capability| *capability == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid(&at.path(), json(context), detail);
        }
    }
    validate_app_armor(context.app_armor_profile.as_ref(), &at.child("appArmorProfile"), errors);
}

fn unix_id(id: Option<i64>, at: &At, errors: &mut Errors) {
    if let Some(id) = id {
        for problem in names::unix_id(id) {
            errors.invalid(&at.path(), id, problem);
        }
    }
}

fn validate_sysctls(sysctls: &[Sysctl], spec: &PodSpec, at: &At, errors: &mut Errors) {
    for (i, sysctl) in sysctls.iter().enumerate() {
        let at = at.index(i);
        let (at, name) = (at.child("name"), sysctl.name.as_str());
        if name.is_empty() {
            errors.required(&at.path(), "");
        } else if !is_sysctl(name) {
            let detail = format!("must have at most {SYSCTL_MAX} characters and match regex {SYSCTL_FMT}");
            errors.invalid(&at.path(), name, detail);
        } else if sysctls[..i].iter().any(|other| other.name == name) {
            errors.duplicate(&at.path(), name);
        }
        let dotted = name.replace('/', ".");
        let of_network = dotted.starts_with("net.");
        let of_ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."].iter().any(|p| dotted.starts_with(p));
        if is_true(spec.host_network) && of_network {
            errors.invalid(&at.path(), name, "may not be specified when 'hostNetwork' is true");
        } else if is_true(spec.host_ipc) && of_ipc {
            errors.invalid(&at.path(), name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let alnum = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inner = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_');
    let segment = |s: &[u8]| alnum(s.first()) && alnum(s.last()) && s.iter().all(inner);
    name.len() <= SYSCTL_MAX && name.as_bytes().split(|c| matches!(c, b'.' | b'/')).all(segment)
}

fn validate_seccomp(profile: Option<&SeccompProfile>, at: &At, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    if profile.type_.is_empty() {
        errors.required(&at.child("type").path(), "type is required when seccompProfile is set");
    } else {
        one_of(&profile.type_, &PROFILE_TYPES, &at.child("type"), errors);
    }
    let at = at.child("localhostProfile");
    match (&profile.localhost_profile, profile.type_ == "Localhost") {
        (None, true) => errors.required(&at.path(), "must be set when seccomp type is Localhost"),
        (Some(path), true) => descending_path(path, &at, errors),
        (Some(_), false) => {
            errors.invalid(&at.path(), json(profile), "can only be set when seccomp type is Localhost");
        }
        (None, false) => {}
    }
}

fn validate_app_armor(profile: Option<&AppArmorProfile>, at: &At, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    let localhost = at.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => errors.required(&localhost.path(), "must be set when AppArmor type is Localhost"),
        ("Localhost", Some(path)) => {
            if path.trim() != path {
                errors.invalid(&localhost.path(), path.as_str(), "must not be padded with whitespace");
            } else if path.is_empty() {
                errors.required(&localhost.path(), "must be set when AppArmor type is Localhost");
            }
            if path.len() > LOCALHOST_MAX {
                errors.too_long(&localhost.path(), LOCALHOST_MAX);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(path)) => {
            errors.invalid(&localhost.path(), path.as_str(), "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(&at.child("type").path(), "type is required when appArmorProfile is set"),
        (other, _) => errors.not_supported(&at.child("type").path(), other, &PROFILE_TYPES),
    }
}

/// What an operating system rules out.
pub fn validate_os(spec: &PodSpec, at: &At, errors: &mut Errors) {
    let Some(os) = &spec.os else { return };
    if os.name.is_empty() {
        return errors.required(&at.child("os").child("name").path(), "");
    }
    match os.name.as_str() {
        "linux" => {
            let detail = "windows options cannot be set for a linux pod";
            if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
                errors.forbidden(&at.child("securityContext").child("windowsOptions").path(), detail);
            }
            visit(spec, at, &mut |container, at| {
                if container.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
                    errors.forbidden(&at.child("securityContext").child("windowsOptions").path(), detail);
                }
            });
        }
        "windows" => validate_windows(spec, at, errors),
        other => errors.not_supported(&at.child("os").path(), other, &["linux", "windows"]),
    }
}

fn validate_windows(spec: &PodSpec, at: &At, errors: &mut Errors) {
    const DETAIL: &str = "cannot be set for a windows pod";
    if let Some(context) = &spec.security_context {
        let at = at.child("securityContext");
        for (field, set) in [
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("fsGroup", context.fs_group.is_some()),
            ("fsGroupChangePolicy", context.fs_group_change_policy.is_some()),
            ("sysctls", !list(&context.sysctls).is_empty()),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
            ("supplementalGroups", context.supplemental_groups.is_some()),
        ] {
            if set {
                errors.forbidden(&at.child(field).path(), DETAIL);
            }
        }
    }
    for (field, set) in [
        ("hostPID", is_true(spec.host_pid)),
        ("hostIPC", is_true(spec.host_ipc)),
        ("shareProcessNamespace", spec.share_process_namespace.is_some()),
    ] {
        if set {
            errors.forbidden(&at.child(field).path(), DETAIL);
        }
    }
    visit(spec, at, &mut |container, at| {
        let Some(context) = &container.security_context else { return };
        let at = at.child("securityContext");
        for (field, set) in [
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("capabilities", context.capabilities.is_some()),
            ("readOnlyRootFilesystem", context.read_only_root_filesystem.is_some()),
            ("privileged", context.privileged.is_some()),
            ("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some()),
            ("procMount", context.proc_mount.is_some()),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
        ] {
            if set {
                errors.forbidden(&at.child(field).path(), DETAIL);
            }
        }
    });
}

/// Every init container, then every container, with its place.
pub fn visit(spec: &PodSpec, at: &At, seen: &mut dyn FnMut(&Container, &At)) {
    for (i, container) in list(&spec.init_containers).iter().enumerate() {
        seen(container, &at.child("initContainers").index(i));
    }
    for (i, container) in spec.containers.iter().enumerate() {
        seen(container, &at.child("containers").index(i));
    }
}
