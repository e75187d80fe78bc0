//! Durations as Go writes them: `1h30m`, `-1.5s`. The reader is shared with schedules.

pub use usher_api::cron::duration::parse;
