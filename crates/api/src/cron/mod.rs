//! Cron schedules as Kubernetes reads them: the grammar ([`Schedule::parse`]) and the search for the next time
//! ([`Schedule::next`]), one for the API server's validation and the controller.
//!
//! Both follow robfig/cron v3, which Kubernetes uses, to the letter where clocks change: `testdata/cron.txt` holds what that
//! library answers (`tools/crongold`). No cron crate matches it, so it is written out here. Nothing here reads a clock.

pub mod duration;
mod grammar;
mod next;
mod zone;

pub use grammar::{Fields, Schedule};
pub use zone::load_zone;

#[cfg(test)]
mod tests;

/// A string in Go's `%q` form, for what is printable and for ASCII; Go escapes some rarer characters too.
pub fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
