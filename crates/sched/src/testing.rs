//! How many random worlds the properties of this crate look at: few by default, `USHER_SCHED_CASES` times as many on request.

use proptest::test_runner::Config;

pub fn cases(few: u32) -> Config {
    let times = std::env::var("USHER_SCHED_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1u32);
    Config { cases: few.saturating_mul(times), failure_persistence: None, ..Config::default() }
}
