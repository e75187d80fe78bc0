//! What is to be written about each workload, in the order in which it was decided.
//!
//! One write of a workload is under way at a time, and what is said of it next is worked out on the object that the last
//! one made. Nothing that was decided is lost: it is written, or it is handed back as fallen. Only a reason to wait may be
//! forgotten, once there is news.

use std::collections::{BTreeMap, VecDeque};

use usher_sched::model::WorkloadId;

use super::write::{Kind, Order};

#[derive(Default)]
pub struct Outbox {
    /// What follows the write that is under way.
    following: BTreeMap<WorkloadId, VecDeque<Order>>,
}

/// What the end of a write leads to.
#[derive(Debug, Default, PartialEq)]
pub struct Then {
    /// Orders that made sense only after the one that was refused.
    pub fallen: Vec<Order>,
    pub next: Option<Order>,
}

impl Outbox {
    /// Takes an order in; it comes back if it can be written at once.
    pub fn put(&mut self, order: Order) -> Option<Order> {
        let Some(following) = self.following.get_mut(&order.workload) else {
            self.following.insert(order.workload, VecDeque::new());
            return Some(order);
        };
        if following.back().is_some_and(|last| last.kind() == Kind::Reason) {
            following.pop_back();
        }
        following.push_back(order);
        None
    }

    /// The write that was under way has ended.
    pub fn ended(&mut self, workload: WorkloadId, kind: Kind, written: bool) -> Then {
        let Some(following) = self.following.get_mut(&workload) else { return Then::default() };
        let mut then = Then::default();
        if kind == Kind::Admission && !written {
            // It never had the quota that it was then evicted from.
            then.fallen.extend(following.drain(..));
        }
        then.next = following.pop_front();
        if then.next.is_none() {
            self.following.remove(&workload);
        }
        then
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use usher_sched::plan::Eviction;
    use usher_sched::reason::Wait;

    use super::*;
    use crate::queueing::scheduler::write::What;

    const W: WorkloadId = WorkloadId(1);

    fn order(what: What) -> Order {
        Order { workload: W, uid: "u".into(), what }
    }

    fn reason() -> Order {
        order(What::Wait(Arc::new(Wait::Deactivated)))
    }

    fn admission() -> Order {
        order(What::Admit { queue: Default::default(), assignment: Default::default(), checks: Vec::new() })
    }

    fn eviction() -> Order {
        order(What::Evict(Eviction::LocalQueueStopped))
    }

    #[test]
    fn one_write_of_a_workload_is_under_way_at_a_time() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.put(reason()), Some(reason()));
        assert_eq!(outbox.put(admission()), None);
        let other = Order { workload: WorkloadId(2), ..reason() };
        assert_eq!(outbox.put(other.clone()), Some(other));
        assert_eq!(outbox.ended(W, Kind::Reason, true), Then { next: Some(admission()), ..Then::default() });
        assert_eq!(outbox.ended(W, Kind::Admission, true), Then::default());
        assert_eq!(outbox.put(eviction()), Some(eviction()));
    }

    #[test]
    fn an_eviction_does_not_replace_the_admission_that_waits_to_be_written() {
        let mut outbox = Outbox::default();
        outbox.put(reason());
        outbox.put(admission());
        outbox.put(eviction());
        assert_eq!(outbox.ended(W, Kind::Reason, false).next, Some(admission()));
        assert_eq!(outbox.ended(W, Kind::Admission, true).next, Some(eviction()));
    }

    #[test]
    fn what_follows_an_admission_falls_with_it() {
        let mut outbox = Outbox::default();
        outbox.put(admission());
        outbox.put(eviction());
        assert_eq!(outbox.ended(W, Kind::Admission, false), Then { fallen: vec![eviction()], next: None });
        assert_eq!(outbox.put(reason()), Some(reason()), "nothing is under way any more");
    }

    #[test]
    fn a_reason_is_forgotten_when_there_is_news_and_nothing_else_is() {
        let mut outbox = Outbox::default();
        outbox.put(eviction());
        outbox.put(reason());
        outbox.put(admission());
        outbox.put(reason());
        assert_eq!(outbox.ended(W, Kind::Eviction, true).next, Some(admission()));
        assert_eq!(outbox.ended(W, Kind::Admission, true).next, Some(reason()));
    }
}
