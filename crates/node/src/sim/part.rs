//! The part that a pod plays, as its annotations say: how long it runs, how it ends, how long it takes to stop. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

/// How long it runs; of an Indexed Job, one duration for each index, the last for all that follow: `5s,1h`.
pub const DURATION: &str = "usher.dev/sim-duration";
pub const EXIT_CODE: &str = "usher.dev/sim-exit-code";
/// How long it takes to stop once it is told to, at most its grace period.
pub const STOP_DURATION: &str = "usher.dev/sim-stop-duration";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const DEFAULT_DURATION: SignedDuration = SignedDuration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub duration: SignedDuration,
    pub code: i32,
}

pub fn of(pod: &Pod) -> Part {
    let index = note(pod, INDEX).and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    let durations = || note(pod, DURATION).into_iter().flat_map(|text| text.split(','));
    let duration = durations().nth(index).or_else(|| durations().next_back()).and_then(go_duration);
    let code = note(pod, EXIT_CODE).and_then(|text| text.trim().parse::<u8>().ok()).unwrap_or(0);
    Part { duration: duration.unwrap_or(DEFAULT_DURATION), code: i32::from(code) }
}

/// When a pod that is being deleted has stopped; `None` for at once.
pub fn stops_at(pod: &Pod) -> Option<Timestamp> {
    let takes = note(pod, STOP_DURATION).and_then(go_duration)?;
    let last = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    let told = last.checked_sub(grace).ok()?;
    Some(told.checked_add(takes).map_or(last, |at| at.min(last)))
}

fn note<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// `1h2m3.5s`, as Go writes and reads it.
fn go_duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    if text.trim().is_empty() { None } else { SignedDuration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.annotations = Some(annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        pod
    }

    #[test]
    fn durations_are_read_as_go_does() {
        for (text, millis) in
            [("1s", 1000), ("1m30s", 90_000), ("1.5s", 1500), ("250ms", 250), ("0", 0), ("1h", 3_600_000)]
        {
            assert_eq!(go_duration(text), Some(SignedDuration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "1x", "s", "-1s", "1s "] {
            assert_eq!(go_duration(text).is_some(), text == "1s ", "{text:?}");
        }
    }

    #[test]
    fn each_index_may_run_for_a_time_of_its_own() {
        for (index, secs) in [("0", 5), ("1", 60), ("2", 3600), ("7", 3600)] {
            let pod = pod(&[(DURATION, "5s,1m,1h"), (INDEX, index)]);
            assert_eq!(of(&pod).duration, SignedDuration::from_secs(secs), "{index}");
        }
        assert_eq!(of(&pod(&[(DURATION, "5s,1m")])).duration, SignedDuration::from_secs(5));
        assert_eq!(of(&pod(&[])), Part { duration: DEFAULT_DURATION, code: 0 });
    }

    #[test]
    fn stopping_takes_as_long_as_it_says_and_no_longer_than_its_grace() {
        let at = |secs: i64| Timestamp::from_second(1000 + secs).unwrap();
        for (takes, stopped) in [("10s", 10), ("1m", 30), ("0", 0)] {
            let mut pod = pod(&[(STOP_DURATION, takes)]);
            assert_eq!(stops_at(&pod), None, "nobody told it to");
            pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(30)));
            pod.metadata.deletion_grace_period_seconds = Some(30);
            assert_eq!(stops_at(&pod), Some(at(stopped)), "{takes}");
        }
    }
}
