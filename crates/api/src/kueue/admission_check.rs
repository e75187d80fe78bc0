//! AdmissionCheck: something outside that must agree before a workload with quota starts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::crd::{Definition, Schema, embedded, kind, object, words};

kind! {
    /// Something outside that must agree before a workload with quota starts.
    AdmissionCheck in "kueue.x-k8s.io" "v1beta2", Cluster "admissionchecks" {
        spec: AdmissionCheckSpec = AdmissionCheckSpec::schema(),
        status: AdmissionCheckStatus = AdmissionCheckStatus::schema(),
    }
}

object! {
    AdmissionCheckSpec {
        /// Who does the check; not always a Kubernetes controller.
        controller_name: String = Schema::string().min_len(1).max_len(253).immutable().required(),
        /// What it is to know, by the name of an object.
        parameters: Option<AdmissionCheckParametersReference> = AdmissionCheckParametersReference::schema(),
    }
}

object! {
    AdmissionCheckParametersReference {
        /// Its group.
        api_group: String = Schema::subdomain().min_len(1).required(),
        /// Its kind.
        kind: String =
            Schema::string().min_len(1).max_len(63).pattern("^(?i)[a-z]([-a-z0-9]*[a-z0-9])?$").required(),
        /// Its name.
        name: String = Schema::label().min_len(1).required(),
    }
}

object! {
    AdmissionCheckStatus {
        /// Active: whether the check can be asked.
        conditions: Vec<Condition> = embedded::conditions(),
    }
}

words! {
    /// What a check says of a workload.
    CheckState {
        /// Not decided yet.
        Pending = "Pending",
        /// It may start.
        Ready = "Ready",
        /// Not now: quota is given back, and it is asked again later.
        Retry = "Retry",
        /// Never: the workload is deactivated.
        Rejected = "Rejected",
    }
}

impl AdmissionCheck {
    pub fn definition() -> Definition {
        AdmissionCheck::declared().short(&["ac"]).with_status()
    }
}
