//! When certificates are made anew, and what comes of it. No I/O; keys are random.
//!
//! An authority lasts ten years, a serving certificate one; a certificate is issued again 30 days before its end. When an
//! authority would end before certificates that it signs, a second one is put *beside* it: clients trust both. Only when they
//! have had time to hear of it does it sign. So at no time is a certificate served that a client does not trust.

use jiff::{SignedDuration, Timestamp};
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use usher_pki::{Authority, BACKDATE, LEAF_LIFE, RENEW_BEFORE};

/// How long clients may take to hear of a new authority.
const SETTLE: SignedDuration = SignedDuration::from_hours(1);

/// An authority this close to its end gets a successor: what it signs would not last its time.
fn succeed_before() -> SignedDuration {
    LEAF_LIFE + RENEW_BEFORE
}

/// What the Secret holds, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// All authorities that clients are to trust, the newest first.
    pub authorities: String,
    /// The key of the newest.
    pub authority_key: String,
    pub certificate: String,
    pub key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All is well until then.
    Keep { look_again: Timestamp },
    /// There is nothing to build on.
    MakeAll,
    /// A second authority, beside the first.
    AddAuthority,
    /// A new certificate by the newest authority.
    Issue,
}

pub fn decide(found: Option<&Material>, names: &[String], now: Timestamp) -> Step {
    let Some(found) = found else { return Step::MakeAll };
    let Some(newest) = Newest::of(found).filter(|newest| newest.ends > now) else { return Step::MakeAll };
    if newest.ends <= now + succeed_before() {
        return Step::AddAuthority;
    }
    let trusted = list(&found.authorities);
    let works = is_whole(found, names) && vouched(&trusted, found, names, now);
    if !works {
        return Step::Issue;
    }
    let (_, ends) = usher_pki::validity(&found.certificate).unwrap_or((now, now));
    let renew = (ends - RENEW_BEFORE).max(newest.made + SETTLE);
    if renew <= now {
        return Step::Issue;
    }
    Step::Keep { look_again: renew.min(newest.ends - succeed_before()) }
}

/// What the Secret is to hold after the step.
pub fn carry_out(
    step: Step,
    found: Option<&Material>,
    names: &[String],
    now: Timestamp,
) -> Result<Material, usher_pki::Error> {
    match (step, found) {
        (Step::Keep { .. }, Some(found)) => Ok(found.clone()),
        (Step::AddAuthority, Some(found)) => {
            let next = Authority::new("usher-webhook-ca", now)?;
            // What has ended vouches for nobody.
            let others =
                pems(&found.authorities).filter(|pem| usher_pki::validity(pem).is_ok_and(|(_, end)| end > now));
            let authorities = std::iter::once(next.pem.clone()).chain(others).collect();
            Ok(Material { authorities, authority_key: next.key.serialize_pem(), ..found.clone() })
        }
        (Step::Issue, Some(found)) => {
            let newest = pems(&found.authorities).next().unwrap_or_default();
            let authority = Authority::from_pem(&newest, &found.authority_key)?;
            issue(&authority, found.authorities.clone(), names, now)
        }
        _ => {
            let authority = Authority::new("usher-webhook-ca", now)?;
            issue(&authority, authority.pem.clone(), names, now)
        }
    }
}

fn issue(by: &Authority, authorities: String, names: &[String], now: Timestamp) -> Result<Material, usher_pki::Error> {
    let leaf = by.issue(usher_pki::server_params(names)?, KeyPair::generate()?, now)?;
    Ok(Material {
        authorities,
        authority_key: by.key.serialize_pem(),
        certificate: leaf.pem,
        key: leaf.key.serialize_pem(),
    })
}

struct Newest {
    made: Timestamp,
    ends: Timestamp,
}

impl Newest {
    /// None if it cannot sign.
    fn of(found: &Material) -> Option<Newest> {
        let newest = pems(&found.authorities).next()?;
        Authority::from_pem(&newest, &found.authority_key).ok()?;
        let (begins, ends) = usher_pki::validity(&newest).ok()?;
        Some(Newest { made: begins + BACKDATE, ends })
    }
}

fn is_whole(found: &Material, names: &[String]) -> bool {
    let key = KeyPair::from_pem(&found.key);
    key.is_ok_and(|key| usher_pki::belongs(&found.certificate, &key)) && usher_pki::has_names(&found.certificate, names)
}

fn vouched(trusted: &[CertificateDer<'static>], found: &Material, names: &[String], now: Timestamp) -> bool {
    let name = names.first().map_or("localhost", String::as_str);
    usher_pki::vouch_for_server(trusted, &found.certificate, name, &[now])
}

fn list(bundle: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok).collect()
}

/// Each certificate of a bundle, as PEM.
fn pems(bundle: &str) -> impl Iterator<Item = String> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle.split_inclusive(END).filter(|pem| pem.contains(END)).map(|pem| format!("{}\n", pem.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn names() -> Vec<String> {
        vec!["s.n.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn made(at: Timestamp) -> Material {
        carry_out(Step::MakeAll, None, &names(), at).unwrap()
    }

    /// Does what is to be done until nothing is, and says what that was.
    fn settle(material: &mut Option<Material>, names: &[String], now: Timestamp) -> (Vec<Step>, Timestamp) {
        let mut steps = Vec::new();
        loop {
            match decide(material.as_ref(), names, now) {
                Step::Keep { look_again } => return (steps, look_again),
                step => {
                    *material = Some(carry_out(step, material.as_ref(), names, now).unwrap());
                    steps.push(step);
                }
            }
            assert!(steps.len() < 5, "{steps:?}");
        }
    }

    #[test]
    fn at_first_all_is_made_and_then_kept_until_shortly_before_its_end() {
        let mut material = None;
        let (steps, again) = settle(&mut material, &names(), start());
        assert_eq!(steps, [Step::MakeAll]);
        assert_eq!(again, start() + LEAF_LIFE - RENEW_BEFORE);
        let before = material.clone();
        assert_eq!(settle(&mut material, &names(), again - DAY).0, []);
        assert_eq!(material, before);
        assert_eq!(settle(&mut material, &names(), again).0, [Step::Issue]);
        let (before, after) = (before.unwrap(), material.unwrap());
        assert_eq!(before.authorities, after.authorities, "clients need not hear of it");
        assert_ne!(before.certificate, after.certificate);
    }

    #[test]
    fn what_does_not_fit_is_made_anew_from_what_is_left() {
        let good = made(start());
        let other = made(start());
        let with = |change: &dyn Fn(&mut Material)| {
            let mut material = good.clone();
            change(&mut material);
            decide(Some(&material), &names(), start() + DAY)
        };
        assert!(matches!(with(&|_| {}), Step::Keep { .. }));
        assert_eq!(with(&|m| m.key.clone_from(&other.key)), Step::Issue);
        assert_eq!(with(&|m| m.certificate = "nonsense".to_owned()), Step::Issue);
        assert_eq!(with(&|m| (m.certificate, m.key) = (other.certificate.clone(), other.key.clone())), Step::Issue);
        assert_eq!(with(&|m| m.authority_key.clone_from(&other.authority_key)), Step::MakeAll);
        assert_eq!(with(&|m| m.authorities.clear()), Step::MakeAll);
        let moved = vec!["elsewhere.n.svc".to_owned()];
        assert_eq!(decide(Some(&good), &moved, start() + DAY), Step::Issue);
    }

    #[test]
    fn an_authority_gets_a_successor_that_signs_only_when_clients_know_it() {
        let mut material = Some(made(start()));
        let near = start() + usher_pki::CA_LIFE - LEAF_LIFE - RENEW_BEFORE;
        let issued = near - DAY;
        material = Some(carry_out(Step::Issue, material.as_ref(), &names(), issued).unwrap());
        let before = material.clone().unwrap();
        let (steps, again) = settle(&mut material, &names(), near);
        assert_eq!(steps, [Step::AddAuthority]);
        let both = material.clone().unwrap();
        assert_eq!((pems(&both.authorities).count(), &both.certificate), (2, &before.certificate));
        assert!(both.authorities.ends_with(&before.authorities));
        assert_eq!(again, issued + LEAF_LIFE - RENEW_BEFORE);
        assert_eq!(settle(&mut material, &names(), again).0, [Step::Issue]);
        let newest = list(&both.authorities)[..1].to_vec();
        let by_newest = material.unwrap().certificate;
        assert!(usher_pki::vouch_for_server(&newest, &by_newest, "s.n.svc", &[again]));
    }

    /// Every certificate that is ever served is one that clients have been told to trust before.
    #[test]
    fn for_thirty_years_what_is_served_was_trusted_an_hour_before() {
        let (mut material, mut now) = (None, start());
        settle(&mut material, &names(), now);
        let mut told = material.clone().unwrap().authorities;
        let mut rotations = 0;
        while now < start() + DAY * 365 * 30 {
            let (steps, again) = settle(&mut material, &names(), now);
            rotations += steps.len();
            let served = material.clone().unwrap();
            assert!(usher_pki::vouch_for_server(&list(&told), &served.certificate, "127.0.0.1", &[now]), "at {now}");
            assert!(again > now);
            told = served.authorities;
            now = again;
        }
        assert!((30..60).contains(&rotations), "{rotations}");
        assert!(pems(&told).count() <= 3, "ended authorities go");
    }

    #[test]
    fn an_installation_that_slept_for_years_starts_over() {
        let mut material = Some(made(start()));
        let late = start() + usher_pki::CA_LIFE + DAY;
        assert_eq!(settle(&mut material, &names(), late).0, [Step::MakeAll]);
        let mut material = Some(made(start()));
        assert_eq!(settle(&mut material, &names(), start() + LEAF_LIFE + DAY).0, [Step::Issue]);
    }
}
