//! Feature gates by name. The seeds and the released versions of Kubernetes spell some of them differently; both are taken.

/// All gates, read once at the start and passed to whatever depends on them. All default to on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    /// KEP-2926: a suspended Job that never started may be re-aimed.
    pub mutable_directives: bool,
    /// KEP-5440's related change: also one that ran before.
    pub mutable_directives_when_suspended: bool,
    /// KEP-5440: the resources of a suspended Job may change.
    pub mutable_resources_when_suspended: bool,
    /// What queues can do: concurrent admission (KEP-8691), elastic jobs (KEP-77).
    pub queues: usher_api::kueue::rules::Gates,
    /// KEP-4026: a CronJob's Jobs say when they were meant to run.
    pub scheduled_annotation: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Gates {
            mutable_directives: true,
            mutable_directives_when_suspended: true,
            mutable_resources_when_suspended: true,
            queues: Default::default(),
            scheduled_annotation: true,
        }
    }
}

/// Where a gate is kept.
type Select = fn(&mut Gates) -> &mut bool;

/// The spellings of each gate, the seeds' first.
const NAMES: [(&str, Select); 10] = [
    ("MutableSchedulingDirectivesForJobs", |g| &mut g.mutable_directives),
    ("JobMutableNodeSchedulingDirectives", |g| &mut g.mutable_directives),
    ("MutableSchedulingDirectivesForSuspendedJobs", |g| &mut g.mutable_directives_when_suspended),
    ("MutableJobPodResourcesForSuspendedJobs", |g| &mut g.mutable_resources_when_suspended),
    ("MutablePodResourcesForSuspendedJobs", |g| &mut g.mutable_resources_when_suspended),
    ("ConcurrentAdmission", |g| &mut g.queues.concurrent_admission),
    ("ElasticJobsViaWorkloadSlices", |g| &mut g.queues.elastic_jobs),
    ("JobScheduledAnnotation", |g| &mut g.scheduled_annotation),
    ("JobsScheduledAnnotation", |g| &mut g.scheduled_annotation),
    ("CronJobsScheduledAnnotation", |g| &mut g.scheduled_annotation),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("{0:?} is not of the form Name=true or Name=false")]
    Form(String),
    #[error("there is no feature gate {0:?}; the gates are {list}", list = list())]
    Unknown(String),
    #[error("feature gate {0} is given twice with different values")]
    Contradiction(String),
}

fn list() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

impl Gates {
    /// From `A=false,B=true`.
    pub fn parse(text: &str) -> Result<Gates, GateError> {
        let mut gates = Gates::default();
        let mut given: Vec<(*const bool, bool)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| GateError::Form(part.to_owned()))?;
            let value = match value.trim() {
                "true" => true,
                "false" => false,
                _ => return Err(GateError::Form(part.to_owned())),
            };
            let name = name.trim();
            let (_, gate) =
                NAMES.iter().find(|(n, _)| *n == name).ok_or_else(|| GateError::Unknown(name.to_owned()))?;
            let gate = gate(&mut gates);
            let place: *const bool = gate;
            if given.iter().any(|(p, v)| *p == place && *v != value) {
                return Err(GateError::Contradiction(name.to_owned()));
            }
            given.push((place, value));
            *gate = value;
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_turn_the_same_gate() {
        let seed = Gates::parse("MutableJobPodResourcesForSuspendedJobs=false").unwrap();
        let released = Gates::parse("MutablePodResourcesForSuspendedJobs=false").unwrap();
        assert_eq!(seed, released);
        assert!(!seed.mutable_resources_when_suspended);
        assert_eq!(Gates::parse("").unwrap(), Gates::default());
    }

    #[test]
    fn the_annotation_of_scheduled_jobs_has_three_spellings() {
        for name in ["JobScheduledAnnotation", "JobsScheduledAnnotation", "CronJobsScheduledAnnotation"] {
            let off = Gates::parse(&format!("{name}=false")).unwrap();
            assert_eq!(off, Gates { scheduled_annotation: false, ..Gates::default() }, "{name}");
        }
    }

    #[test]
    fn a_bad_gate_says_what_is_wrong_with_it() {
        assert_eq!(Gates::parse("Nope=true").unwrap_err(), GateError::Unknown("Nope".into()));
        assert_eq!(
            Gates::parse("MutableSchedulingDirectivesForJobs").unwrap_err(),
            GateError::Form("MutableSchedulingDirectivesForJobs".into())
        );
        assert!(matches!(
            Gates::parse("MutableSchedulingDirectivesForJobs=true,JobMutableNodeSchedulingDirectives=false"),
            Err(GateError::Contradiction(_))
        ));
    }
}
