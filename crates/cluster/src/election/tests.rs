use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::Instant;

use super::decide::{BadTerms, Known, Record, Step, Terms, decide};
use super::run::{Candidate, Election, Standing};
use crate::client::Fence;
use crate::testing::World;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn held(by: &str, revision: &str) -> Record {
    Record { holder: by.to_owned(), lasts: secs(15), transitions: 3, revision: revision.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_made_taken_when_free_and_waited_for_when_held() {
    let (now, terms) = (Instant::now(), Terms::default());
    assert_eq!(decide("a", &Known::default(), &terms, now), Step::Create);
    let mut known = Known::default();
    known.see(Some(held("b", "1")), now);
    assert_eq!(decide("a", &known, &terms, now + secs(3)), Step::Wait { until: now + secs(15) });
    assert_eq!(decide("a", &known, &terms, now + secs(15)), Step::Take { from: held("b", "1") });
    known.see(Some(held("b", "1")), now + secs(9));
    assert_eq!(
        decide("a", &known, &terms, now + secs(15)),
        Step::Take { from: held("b", "1") },
        "nothing new was seen"
    );
    known.see(Some(held("b", "2")), now + secs(9));
    assert_eq!(decide("a", &known, &terms, now + secs(15)), Step::Wait { until: now + secs(24) }, "it was renewed");
    known.see(Some(held("", "3")), now + secs(10));
    assert_eq!(decide("a", &known, &terms, now + secs(10)), Step::Take { from: held("", "3") }, "it was given back");
    known.failed = Some(now + secs(10));
    assert_eq!(decide("a", &known, &terms, now + secs(11)), Step::Wait { until: now + secs(12) });
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_and_resigns_before_anybody_may_take_over() {
    let (now, terms) = (Instant::now(), Terms::default());
    let mut known = Known { renewed: Some(now), ..Known::default() };
    known.see(Some(held("a", "1")), now);
    assert_eq!(decide("a", &known, &terms, now + secs(1)), Step::Wait { until: now + secs(2) });
    assert_eq!(decide("a", &known, &terms, now + secs(2)), Step::Renew { from: held("a", "1") });
    known.failed = Some(now + secs(8));
    assert_eq!(decide("a", &known, &terms, now + secs(9)), Step::Wait { until: now + secs(10) });
    assert!(matches!(decide("a", &known, &terms, now + secs(10)), Step::Resign { .. }));
    known.see(Some(held("b", "2")), now + secs(3));
    assert!(matches!(decide("a", &known, &terms, now + secs(3)), Step::Resign { .. }));
    known.see(None, now + secs(3));
    assert!(matches!(decide("a", &known, &terms, now + secs(3)), Step::Resign { .. }));
}

/// Who took the lease and did not hear back about it finds its own name there.
#[tokio::test(start_paused = true)]
async fn a_lease_that_names_us_is_ours_once_it_would_be_anybodys() {
    let now = Instant::now();
    let mut known = Known::default();
    known.see(Some(held("a", "1")), now);
    assert_eq!(decide("a", &known, &Terms::default(), now + secs(15)), Step::Renew { from: held("a", "1") });
}

#[test]
fn terms_under_which_two_could_write_are_refused() {
    assert_eq!(Terms::default().check(), Ok(()));
    let slow = Terms { write_timeout: secs(5), ..Terms::default() };
    assert_eq!(slow.check(), Err(BadTerms::Write { write: secs(5), left: secs(5) }));
    assert!(Terms { lease: secs(10), ..Terms::default() }.check().is_err());
    assert!(Terms { retry: secs(10), ..Terms::default() }.check().is_err());
}

impl World {
    fn candidate(&self, identity: &str, cut: &Arc<AtomicBool>) -> (Election, Fence) {
        let terms = Terms::default();
        let fence = Fence::closed(terms.write_timeout);
        let election = Candidate {
            client: self.client(cut),
            clock: self.clock.clone(),
            namespace: "here".to_owned(),
            lease: "l".to_owned(),
            identity: identity.to_owned(),
            terms,
            fence: fence.clone(),
        };
        (election.start(), fence)
    }

    async fn lease(&self) -> (Option<String>, Option<i32>) {
        let api: Api<Lease> = Api::namespaced(self.client(&Arc::default()), "here");
        let spec = api.get("l").await.unwrap().spec.unwrap();
        (spec.holder_identity, spec.lease_transitions)
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_for_as_long_as_it_can_renew() {
    let world = World::new().await;
    let (mut a, fence_a) = world.candidate("a", &Arc::default());
    assert!(a.won().await);
    let (b, fence_b) = world.candidate("b", &Arc::default());
    tokio::time::sleep(secs(600)).await;
    assert_eq!((*a.standing().borrow(), *b.standing().borrow()), (Standing::Leading, Standing::Waiting));
    assert!(fence_a.is_open(Instant::now()) && !fence_b.is_open(Instant::now()));
    assert_eq!(world.lease().await, (Some("a".to_owned()), Some(0)));
}

#[tokio::test(start_paused = true)]
async fn a_lease_given_back_is_taken_at_once() {
    let world = World::new().await;
    let (mut a, fence_a) = world.candidate("a", &Arc::default());
    assert!(a.won().await);
    let (mut b, _) = world.candidate("b", &Arc::default());
    tokio::time::sleep(secs(5)).await;
    let began = Instant::now();
    a.release().await;
    assert!(!fence_a.is_open(Instant::now()));
    assert!(b.won().await);
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    assert_eq!(world.lease().await, (Some("b".to_owned()), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_the_next_begins() {
    let world = World::new().await;
    let cut = Arc::new(AtomicBool::new(false));
    let (mut a, fence) = world.candidate("a", &cut);
    assert!(a.won().await);
    let (mut b, _) = world.candidate("b", &Arc::default());
    tokio::time::sleep(secs(5)).await;
    cut.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let (ended, started) = tokio::join!(
        async {
            a.lost().await;
            assert!(!fence.is_open(Instant::now()));
            began.elapsed()
        },
        async {
            assert!(b.won().await);
            began.elapsed()
        }
    );
    assert!(ended <= secs(11), "{ended:?}");
    assert!(started >= ended + Terms::default().write_timeout && started <= secs(16), "{ended:?} {started:?}");
}
