//! What Workloads are called. Names are a function of their owner, so that making one twice finds the first.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::GROUP;
use crate::names::DNS1123_SUBDOMAIN_MAX;

/// Characters of the hash, and its dash.
const HASH: usize = 5;
const PREFIX_MAX: usize = DNS1123_SUBDOMAIN_MAX - 1 - HASH;

/// The object a Workload is made for.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub kind: &'a str,
    pub group: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// `job-sample-ef3a1`: kind and name of the owner, and a hash that tells owners of the same name apart. `extra` is hashed
/// too, for owners that have more than one.
pub fn for_owner(owner: &Owner<'_>, extra: &str) -> String {
    let prefix = format!("{}-{}", owner.kind.to_lowercase(), owner.name);
    format!("{}-{}", cut(&prefix, PREFIX_MAX), hash(owner, extra))
}

/// `<workload>-variant-<flavor or variant>`. Only where that is too long, both are cut and a hash is added. Upstream always
/// hashes; Variants are found by owner and label, so nothing depends on it.
pub fn variant(parent_name: &str, parent_uid: &str, variant: &str) -> String {
    numbered(parent_name, parent_uid, "-variant-", variant)
}

/// `<workload>-slice-<what>`: an added replica of an elastic job. `what` must be unique among the slices of one parent.
pub fn slice(parent_name: &str, parent_uid: &str, what: &str) -> String {
    numbered(parent_name, parent_uid, "-slice-", what)
}

fn numbered(parent_name: &str, parent_uid: &str, middle: &str, what: &str) -> String {
    let whole = format!("{parent_name}{middle}{what}");
    if whole.len() <= DNS1123_SUBDOMAIN_MAX {
        return whole;
    }
    let room = PREFIX_MAX - middle.len();
    let tail = cut(what, (room / 2).max(room.saturating_sub(parent_name.len())));
    let head = cut(parent_name, room - tail.len());
    let parent = Owner { kind: "Workload", group: GROUP, name: parent_name, uid: parent_uid };
    format!("{head}{middle}{tail}-{}", hash(&parent, what))
}

/// The first characters, without what a name may not have before a dash.
fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if end == text.len() { text } else { text[..end].trim_end_matches(['.', '-']) }
}

fn hash(owner: &Owner<'_>, extra: &str) -> String {
    let mut parts = vec![owner.kind, owner.group, owner.name, owner.uid];
    if !extra.is_empty() {
        parts.push(extra);
    }
    let sum = digest(&SHA1_FOR_LEGACY_USE_ONLY, parts.join("\n").as_bytes());
    let mut hex: String = sum.as_ref().iter().take(HASH.div_ceil(2)).map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(HASH);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Owner<'_> = Owner { kind: "Job", group: "batch", name: "name", uid: "uid" };

    #[test]
    fn a_job_gets_the_name_that_kueue_gives_it() {
        assert_eq!(for_owner(&JOB, ""), "job-name-ef3a1");
        assert_eq!(for_owner(&JOB, "1"), "job-name-2514c");
    }

    #[test]
    fn hashes_are_upstreams() {
        let parent = Owner { kind: "Job", group: "batch", name: "job-my-job-12345", uid: "uid-123" };
        assert_eq!(hash(&parent, "spot"), "6320b");
        assert_eq!(hash(&parent, &"a".repeat(300)), "2e907");
        let parent = Owner { kind: "Workload", group: GROUP, ..parent };
        assert_eq!(hash(&parent, "spot"), "3bae0");
        let bare = Owner { kind: "", group: "", name: "wl-12345", uid: "" };
        assert_eq!(hash(&bare, "spot"), "a2342");
        assert_eq!(hash(&bare, "on-demand"), "480a3");
    }

    #[test]
    fn a_long_owner_is_cut() {
        let long = "x".repeat(300);
        let name = for_owner(&Owner { name: &long, ..JOB }, "");
        assert_eq!(name.len(), 253);
        assert!(name.starts_with("job-xxx"));
    }

    #[test]
    fn a_variant_is_called_after_its_parent_and_its_flavor() {
        assert_eq!(variant("job-my-job-12345", "uid-123", "spot"), "job-my-job-12345-variant-spot");
    }

    #[test]
    fn a_variant_name_that_is_too_long_stays_one_of_its_own() {
        let (parent, flavor) = ("p".repeat(253), "f".repeat(253));
        let name = variant(&parent, "uid", &flavor);
        assert_eq!(name.len(), 253);
        assert!(name.contains("p-variant-f"), "{name}");
        assert_ne!(name, variant(&parent, "uid", &"f".repeat(252)));
        assert_ne!(name, variant(&parent, "other", &flavor));
        // Nothing that a name may not have comes of the cut.
        let dotted = format!("{}.{}", "p".repeat(118), "p".repeat(134));
        let name = variant(&dotted, "uid", &flavor);
        assert!(crate::names::dns1123_subdomain(&name, false).is_empty(), "{name}");
    }
}
