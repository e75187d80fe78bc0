//! What a Parent shows of its Variants, and why it waits.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use usher_api::kueue::conditions::{self, QuotaReservedReason, WorkloadCondition};
use usher_api::kueue::workload_status::VariantStatus;

use super::decide::{Family, Step};
use super::make;
use crate::queueing::transition::Transition;

/// Conditions of Variants that their Parent shows.
const SHOWN: [WorkloadCondition; 3] =
    [WorkloadCondition::QuotaReserved, WorkloadCondition::Admitted, WorkloadCondition::Evicted];

impl Family<'_> {
    pub(super) fn shown(&self) -> Vec<VariantStatus> {
        let members = self.members.iter().map(|member| {
            let object = member.object;
            let shown = SHOWN.iter().filter_map(|ty| conditions::find(&object.status.conditions, ty.as_str()).cloned());
            VariantStatus {
                name: object.metadata.name.clone().unwrap_or_default(),
                resource_flavors: object.allowed_flavors().into_iter().flatten().map(str::to_owned).collect(),
                active: object.is_active(),
                conditions: shown.collect(),
            }
        });
        members.collect()
    }

    pub(super) fn report(&self) -> Option<Step> {
        let mut to = Transition::of(self.parent, self.now);
        to.status.variants = self.shown();
        if let Some(created) = &self.parent.metadata.creation_timestamp {
            let noted = to.status.concurrent_admission.get_or_insert_default();
            noted.reset_time.get_or_insert(Time(created.0));
        }
        if !self.parent.is(WorkloadCondition::QuotaReserved)
            && let Some((reason, message)) = self.wait()
        {
            to = to.waiting(&reason, &message);
        }
        (to.status != self.parent.status).then(|| Step::Status {
            of: self.parent.clone(),
            to: Box::new(to.status),
            told: None,
        })
    }

    /// What the Variants wait for, best first; the reason is that of the best one that tries.
    fn wait(&self) -> Option<(String, String)> {
        let mut reason = None;
        let mut each = Vec::new();
        let mut is_delayed = false;
        for member in &self.members {
            let object = member.object;
            if !object.is_active() {
                if let Some(at) = self.delayed_until(member) {
                    is_delayed = true;
                    each.push(format!("{}: does not try before {}", make::variant_name(object), wire_time(at)));
                }
                continue;
            }
            let quota = conditions::find(&object.status.conditions, WorkloadCondition::QuotaReserved.as_str());
            let Some(quota) = quota else { continue };
            let (why, what) = match quota.status.as_str() {
                "True" => (QuotaReservedReason::PendingEvaluation.as_str(), "has quota; its checks are not all ready"),
                _ => (quota.reason.as_str(), quota.message.as_str()),
            };
            reason.get_or_insert(why.to_owned());
            each.push(format!("{}: {what}", make::variant_name(object)));
        }
        let on_hold = || QuotaReservedReason::OnHold.as_str().to_owned();
        Some((reason.or_else(|| is_delayed.then(on_hold))?, each.join("; ")))
    }
}

fn wire_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
