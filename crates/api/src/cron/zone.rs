//! Time zones by name, as Go's `time.LoadLocation` finds them.

use jiff::tz::TimeZone;

/// The zone of that name, spelled as it is in the database; `None` for `Local`, the zone of whoever asks.
pub fn load_zone(name: &str) -> Result<Option<TimeZone>, String> {
    match name {
        "" | "UTC" => return Ok(Some(TimeZone::UTC)),
        "Local" => return Ok(None),
        _ if name.contains("..") || name.starts_with(['/', '\\']) => {
            return Err("time: invalid location name".to_owned());
        }
        _ => {}
    }
    // The database takes any spelling and has an entry of its own for the unknown.
    match TimeZone::get(name) {
        Ok(zone) if zone.iana_name() == Some(name) && !zone.is_unknown() => Ok(Some(zone)),
        _ => Err(format!("unknown time zone {name}")),
    }
}
