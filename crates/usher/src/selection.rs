//! Which controllers run: the list that `--controllers` takes, with the names and rules of kube-controller-manager.

use std::str::FromStr;

macro_rules! controllers {
    ($($(#[doc = $doc:literal])* $field:ident = $name:literal,)*) => {
        /// The controllers that can be left out.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Selection {
            $($(#[doc = $doc])* pub $field: bool,)*
        }

        const NAMES: &[&str] = &[$($name),*];

        impl Selection {
            fn of(wants: impl Fn(&str) -> bool) -> Selection {
                Selection { $($field: wants($name),)* }
            }
        }
    };
}

controllers! {
    garbage_collector = "garbage-collector-controller",
    namespace = "namespace-controller",
    service_account = "serviceaccount-controller",
    root_ca = "root-ca-certificate-publisher-controller",
    cluster_role_aggregation = "clusterrole-aggregation-controller",
    job = "job-controller",
    /// Makes the pods of RayClusters: KubeRay's part.
    ray_cluster = "raycluster-controller",
    ttl_after_finished = "ttl-after-finished-controller",
    cronjob = "cronjob-controller",
    node_lifecycle = "node-lifecycle-controller",
    /// Binds pods to nodes: kube-scheduler's part.
    placement = "placement",
    /// Jobs wait in queues for quota: Kueue's part.
    queueing = "queueing",
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no controller {name:?}; the names are {}", NAMES.join(", "))]
pub struct SelectionError {
    name: String,
}

impl FromStr for Selection {
    type Err = SelectionError;

    /// `*` means all, `-name` leaves one out; whoever is named first wins.
    fn from_str(list: &str) -> Result<Selection, SelectionError> {
        let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let bare = |word: &str| word.strip_prefix('-').unwrap_or(word).to_owned();
        if let Some(unknown) = words.iter().find(|word| **word != "*" && !NAMES.contains(&bare(word).as_str())) {
            return Err(SelectionError { name: bare(unknown) });
        }
        Ok(Selection::of(|name| {
            let named = words.iter().find(|word| bare(word) == name).map(|word| !word.starts_with('-'));
            named.unwrap_or_else(|| words.contains(&"*"))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_all_and_a_minus_is_all_but_one() {
        let all: Selection = "*".parse().unwrap();
        assert!(all.job && all.placement && all.namespace);
        let but: Selection = "*,-job-controller".parse().unwrap();
        assert!(!but.job && but.placement && but.namespace);
        let only: Selection = "job-controller, namespace-controller".parse().unwrap();
        assert!(only.job && only.namespace && !only.placement && !only.cronjob);
        let none: Selection = "".parse().unwrap();
        assert!(!none.job && !none.namespace);
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_there_are() {
        let error = "*,-jobs".parse::<Selection>().unwrap_err().to_string();
        assert!(
            error.starts_with("there is no controller \"jobs\"; the names are garbage-collector-controller,"),
            "{error}"
        );
    }
}
