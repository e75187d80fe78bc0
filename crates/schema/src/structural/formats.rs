//! String formats that a schema may ask for, checked as Go's libraries check them, and Go's regular expressions.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

use super::schema::Ty;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Int32,
    Int64,
    Float,
    Double,
    BsonObjectId,
    Uri,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Cidr,
    Mac,
    Uuid,
    Uuid3,
    Uuid4,
    Uuid5,
    Isbn,
    Isbn10,
    Isbn13,
    CreditCard,
    Ssn,
    HexColor,
    RgbColor,
    Byte,
    Password,
    Date,
    Duration,
    DateTime,
    ShortName,
    LongName,
}

impl Format {
    /// The format by its name, where upstream enforces it for that type; other names are ignored, not refused.
    pub fn supported(name: &str, ty: Ty) -> Option<Format> {
        match (ty, name) {
            (Ty::Integer, "int32") => Some(Format::Int32),
            (Ty::Integer, "int64") => Some(Format::Int64),
            (Ty::Number, "float") => Some(Format::Float),
            (Ty::Number, "double") => Some(Format::Double),
            (Ty::Unset | Ty::String, name) => Format::of_strings(&name.replace('-', "")),
            _ => None,
        }
    }

    fn of_strings(normalised: &str) -> Option<Format> {
        Some(match normalised {
            "bsonobjectid" => Format::BsonObjectId,
            "uri" => Format::Uri,
            "email" => Format::Email,
            "hostname" => Format::Hostname,
            "ipv4" => Format::Ipv4,
            "ipv6" => Format::Ipv6,
            "cidr" => Format::Cidr,
            "mac" => Format::Mac,
            "uuid" => Format::Uuid,
            "uuid3" => Format::Uuid3,
            "uuid4" => Format::Uuid4,
            "uuid5" => Format::Uuid5,
            "isbn" => Format::Isbn,
            "isbn10" => Format::Isbn10,
            "isbn13" => Format::Isbn13,
            "creditcard" => Format::CreditCard,
            "ssn" => Format::Ssn,
            "hexcolor" => Format::HexColor,
            "rgbcolor" => Format::RgbColor,
            "byte" => Format::Byte,
            "password" => Format::Password,
            "date" => Format::Date,
            "duration" => Format::Duration,
            "datetime" => Format::DateTime,
            "k8sshortname" => Format::ShortName,
            "k8slongname" => Format::LongName,
            _ => return None,
        })
    }

    pub fn accepts(self, s: &str) -> bool {
        match self {
            Format::Int32 | Format::Int64 | Format::Float | Format::Double | Format::Password => true,
            Format::BsonObjectId => s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit()),
            Format::Uri => is_request_uri(s),
            Format::Email => is_email(s),
            Format::Hostname => is_hostname(s),
            Format::Ipv4 => s.contains('.') && parse_ip(s).is_some(),
            Format::Ipv6 => s.contains(':') && s.parse::<Ipv6Addr>().is_ok(),
            Format::Cidr => is_cidr(s),
            Format::Mac => is_mac(s),
            Format::Uuid => UUID.is_match(s),
            Format::Uuid3 => UUID.is_match(s) && hex_at(s, 12) == Some('3'),
            Format::Uuid4 => is_variant_uuid(s, '4'),
            Format::Uuid5 => is_variant_uuid(s, '5'),
            Format::Isbn => is_isbn10(s) || is_isbn13(s),
            Format::Isbn10 => is_isbn10(s),
            Format::Isbn13 => is_isbn13(s),
            Format::CreditCard => is_credit_card(s),
            Format::Ssn => s.len() == 11 && SSN.is_match(s),
            Format::HexColor => HEX_COLOR.is_match(s),
            Format::RgbColor => RGB_COLOR.is_match(s),
            Format::Byte => is_base64(s),
            Format::Date => is_date(s),
            Format::Duration => is_duration(s),
            Format::DateTime => is_date_time(s),
            Format::ShortName => s.len() <= 63 && is_label(s),
            Format::LongName => s.len() <= 253 && s.split('.').all(is_label),
        }
    }
}

fn fixed(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern")
}

static UUID: LazyLock<Regex> =
    LazyLock::new(|| fixed("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static SSN: LazyLock<Regex> = LazyLock::new(|| fixed("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| fixed("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = r"[\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*";
    fixed(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    fixed(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}\
         |3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
});
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    let edge = r"[a-zA-Z0-9\p{S}\p{L}]";
    let inner = r"[a-zA-Z0-9\-\p{S}\p{L}]";
    fixed(&format!(
        r"^({edge}((-?{edge}{{0,62}})?)|({edge}(({inner}{{0,61}}{edge})?)(\.)){{1,}}([a-zA-Z\p{{L}}]){{2,63}})$"
    ))
});
static DURATION_PART: LazyLock<Regex> = LazyLock::new(|| fixed("([0-9]+)[\t\n\x0c\r ]*([A-Za-zµ]+)"));

/// The n-th hexadecimal digit, dashes not counted.
fn hex_at(s: &str, n: usize) -> Option<char> {
    s.chars().filter(|c| *c != '-').nth(n)
}

fn is_variant_uuid(s: &str, version: char) -> bool {
    UUID.is_match(s)
        && hex_at(s, 12) == Some(version)
        && hex_at(s, 16).is_some_and(|c| matches!(c.to_ascii_lowercase(), '8' | '9' | 'a' | 'b'))
}

fn is_hostname(s: &str) -> bool {
    s.len() <= 255 && s.split('.').all(|part| part.len() <= 63) && HOSTNAME.is_match(s)
}

fn is_label(s: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !s.is_empty() && s.bytes().all(inner) && !s.starts_with('-') && !s.ends_with('-')
}

/// Go's sloppy parser of old: leading zeros of IPv4 numbers are tolerated.
fn parse_ip(s: &str) -> Option<IpAddr> {
    if s.contains(':') {
        return s.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let parts: Vec<&str> = s.split('.').collect();
    let number = |p: &&str| -> Option<u8> {
        if p.is_empty() || p.len() > 8 || !p.bytes().all(|b| b.is_ascii_digit()) {
            None
        } else {
            p.parse::<u32>().ok()?.try_into().ok()
        }
    };
    match parts.iter().map(number).collect::<Option<Vec<u8>>>()?.as_slice() {
        &[a, b, c, d] => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
        _ => None,
    }
}

fn is_cidr(s: &str) -> bool {
    let Some((ip, bits)) = s.split_once('/') else { return false };
    let Some(ip) = parse_ip(ip) else { return false };
    let most = if ip.is_ipv4() { 32 } else { 128 };
    !bits.is_empty()
        && bits.len() <= 3
        && bits.bytes().all(|b| b.is_ascii_digit())
        && bits.parse::<u32>().is_ok_and(|n| n <= most)
}

/// 6, 8 or 20 bytes as `01:23`, `01-23` or `0123.4567`.
fn is_mac(s: &str) -> bool {
    let hex = |parts: std::str::Split<'_, char>, width: usize| -> Option<usize> {
        let mut n = 0;
        for part in parts {
            if part.len() != width || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            n += width / 2;
        }
        Some(n)
    };
    let bytes = match s.chars().find(|c| matches!(c, ':' | '-' | '.')) {
        Some('.') => hex(s.split('.'), 4),
        Some(c) => hex(s.split(c), 2),
        None => None,
    };
    matches!(bytes, Some(6 | 8 | 20))
}

fn is_isbn10(s: &str) -> bool {
    let s: Vec<u8> = s.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'-').collect();
    if s.len() != 10 || !s[..9].iter().all(u8::is_ascii_digit) || !(s[9].is_ascii_digit() || s[9] == b'X') {
        return false;
    }
    let digit = |b: u8| if b == b'X' { 10 } else { u32::from(b - b'0') };
    s.iter().zip(1u32..).map(|(b, i)| i * digit(*b)).sum::<u32>() % 11 == 0
}

fn is_isbn13(s: &str) -> bool {
    let s: Vec<u8> = s.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'-').collect();
    if s.len() != 13 || !s.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let weighed: u32 =
        s[..12].iter().enumerate().map(|(i, b)| u32::from(b - b'0') * if i % 2 == 0 { 1 } else { 3 }).sum();
    u32::from(s[12] - b'0') == (10 - weighed % 10) % 10
}

fn is_credit_card(s: &str) -> bool {
    let digits: String = s.chars().filter(char::is_ascii_digit).collect();
    let luhn = digits.bytes().rev().enumerate().map(|(i, b)| {
        let n = u32::from(b - b'0') * if i % 2 == 1 { 2 } else { 1 };
        if n >= 10 { n % 10 + 1 } else { n }
    });
    CREDIT_CARD.is_match(&digits) && luhn.sum::<u32>() % 10 == 0
}

/// Padded standard base64, not empty.
fn is_base64(s: &str) -> bool {
    let bytes = s.as_bytes();
    let padding = bytes.iter().rev().take_while(|b| **b == b'=').count();
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    !bytes.is_empty()
        && bytes.len().is_multiple_of(4)
        && padding <= 2
        && bytes[..bytes.len() - padding].iter().all(plain)
}

fn two(s: &[u8]) -> Option<u32> {
    match s {
        [a, b] if a.is_ascii_digit() && b.is_ascii_digit() => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

/// Go's layout `2006-01-02`.
fn is_date(s: &str) -> bool {
    let b = s.as_bytes();
    if b.len() != 10 || b[4] != b'-' || b[7] != b'-' || !b[..4].iter().all(u8::is_ascii_digit) {
        return false;
    }
    let (Some(century), Some(rest), Some(month), Some(day)) =
        (two(&b[..2]), two(&b[2..4]), two(&b[5..7]), two(&b[8..]))
    else {
        return false;
    };
    let year = century * 100 + rest;
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(s: &str) -> bool {
    let lower = s.to_lowercase();
    let mut halves = lower.split('t');
    let (Some(date), Some(time)) = (halves.next(), halves.next()) else { return false };
    let b = time.as_bytes();
    if !is_date(date) || b.len() < 9 || b[2] != b':' || b[5] != b':' {
        return false;
    }
    let (Some(h), Some(m), Some(sec)) = (two(&b[..2]), two(&b[3..5]), two(&b[6..8])) else { return false };
    if h > 23 || m > 59 || sec > 59 {
        return false;
    }
    // A fraction may start with any character, as upstream's pattern has an unescaped dot.
    let zone = &time[8..];
    let mut fraction = zone.chars();
    fraction.next();
    let digits = fraction.as_str().bytes().take_while(u8::is_ascii_digit).count();
    is_zone(zone) || digits > 0 && is_zone(&fraction.as_str()[digits..])
}

fn is_zone(s: &str) -> bool {
    let b = s.as_bytes();
    s == "z"
        || b.len() == 6
            && matches!(b[0], b'+' | b'-')
            && b[3] == b':'
            && two(&b[1..3]).is_some()
            && two(&b[4..]).is_some()
}

/// Go's `time.ParseDuration`, or Scala's way (`22 ns`, `3 hours`).
fn is_duration(s: &str) -> bool {
    if crate::duration::parse(s).is_ok() {
        return true;
    }
    const EXACT: [&str; 9] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d"];
    const PREFIXES: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    DURATION_PART.captures_iter(s).any(|part| {
        let unit = part[2].to_lowercase();
        part[1].parse::<i64>().is_ok()
            && (EXACT.contains(&unit.as_str())
                || matches!(unit.as_str(), "w" | "wk")
                || PREFIXES.iter().any(|p| unit.starts_with(p)))
    })
}

/// Go's `url.ParseRequestURI`: an absolute URI or an absolute path.
pub(super) fn is_request_uri(s: &str) -> bool {
    if s.is_empty() || s.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if s == "*" {
        return true;
    }
    let scheme = s.find(':').map(|i| &s[..i]).filter(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    });
    let rest = match scheme {
        Some(scheme) => &s[scheme.len() + 1..],
        None if s.starts_with(':') => return false,
        None => s,
    };
    let path = rest.split('?').next().unwrap_or_default();
    if scheme.is_some() && !path.starts_with('/') {
        // `mailto:x` is opaque: accepted as it is.
        return percent_is_valid(rest) || !rest.contains('%');
    }
    if !path.starts_with('/') {
        return false;
    }
    match path.strip_prefix("//") {
        Some(after) if scheme.is_some() => {
            let authority = after.split('/').next().unwrap_or_default();
            let host = authority.rsplit('@').next().unwrap_or_default();
            host_is_valid(host) && percent_is_valid(path)
        }
        _ => percent_is_valid(path),
    }
}

fn host_is_valid(host: &str) -> bool {
    let port = if host.starts_with('[') {
        match host.rfind(']') {
            Some(end) => &host[end + 1..],
            None => return false,
        }
    } else {
        host.rfind(':').map_or("", |i| &host[i..])
    };
    let port_ok = port.is_empty() || port.starts_with(':') && port[1..].bytes().all(|b| b.is_ascii_digit());
    port_ok && !host.bytes().any(|b| matches!(b, b' ' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'))
}

fn percent_is_valid(s: &str) -> bool {
    let b = s.as_bytes();
    let hex = |i: usize| b.get(i).is_some_and(u8::is_ascii_hexdigit);
    (0..b.len()).filter(|i| b[*i] == b'%').all(|i| hex(i + 1) && hex(i + 2))
}

/// RFC 5322's common part, as `net/mail` reads it: an address, or a name and an address in angle brackets.
fn is_email(s: &str) -> bool {
    let s = s.trim();
    let address = match s.rfind('<') {
        Some(start) => match s.strip_suffix('>') {
            Some(inner) => &inner[start + 1..],
            None => return false,
        },
        None => s,
    };
    let Some(at) = address.rfind('@') else { return false };
    let (local, domain) = (&address[..at], &address[at + 1..]);
    let atom = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    let dot_atom = |s: &str| s.split('.').all(|part| !part.is_empty() && part.chars().all(atom));
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']') && parse_ip(&domain[1..domain.len() - 1]).is_some();
    (dot_atom(local) || quoted) && (dot_atom(domain) || literal)
}

/// Compiled patterns that are kept for the next schema that has them: definitions repeat a few patterns many times, and
/// compiling them was most of the time of compiling a definition.
static COMPILED: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);
const MAX_COMPILED: usize = 128;

/// Compiles a pattern written for Go's `regexp`, where the Perl classes are ASCII and `[` inside a class is a letter.
pub(super) fn go_regex(pattern: &str) -> Result<Regex, regex::Error> {
    let compiled = || COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(regex) = compiled().get(pattern) {
        return Ok(regex.clone());
    }
    let regex = Regex::new(&translate(pattern))?;
    let mut compiled = compiled();
    if compiled.len() >= MAX_COMPILED {
        compiled.clear();
    }
    compiled.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped) => translate_escape(escaped, in_class, &mut out),
                None => out.push('\\'),
            },
            '[' if in_class && chars.peek() != Some(&':') => out.push_str("\\["),
            '&' | '~' | '-' if in_class && chars.peek() == Some(&c) => {
                out.push('\\');
                out.push(c);
            }
            '[' if !in_class => {
                in_class = true;
                out.push(c);
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket that comes first is a letter.
                if chars.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            '[' => {
                out.push(c);
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

fn translate_escape(escaped: char, in_class: bool, out: &mut String) {
    let class = match escaped {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => r"\t\n\x0C\r ",
        'D' => "^0-9",
        'W' => "^0-9A-Za-z_",
        'S' => r"^\t\n\x0C\r ",
        'b' if !in_class => return out.push_str(r"(?-u:\b)"),
        'B' if !in_class => return out.push_str(r"(?-u:\B)"),
        other => {
            out.push('\\');
            return out.push(other);
        }
    };
    if in_class && escaped.is_lowercase() {
        out.push_str(class);
    } else {
        out.push('[');
        out.push_str(class);
        out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_refuse_as_go_does() {
        let table: &[(&str, &[&str], &[&str])] = &[
            (
                "date-time",
                &["2014-12-15T19:30:20Z", "2014-12-15t19:30:20.123+02:00"],
                &["2014-12-15", "2014-12-15T25:00:00Z", "2014-13-15T01:00:00Z", ""],
            ),
            ("date", &["2024-02-29"], &["2023-02-29", "2024-2-29", "x"]),
            ("duration", &["1h30m", "22 ns", "3 hours", "-1.5s", "0"], &["abc", "", "5"]),
            ("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"], &["123e4567"]),
            ("uuid4", &["f47ac10b-58cc-4372-a567-0e02b2c3d479"], &["f47ac10b-58cc-3372-a567-0e02b2c3d479"]),
            ("ipv4", &["10.0.0.1", "010.0.0.1"], &["10.0.0", "256.0.0.1", "::1"]),
            ("ipv6", &["::1", "2001:db8::1"], &["10.0.0.1", "x"]),
            ("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0", "10.0.0.0/33"]),
            ("mac", &["01:23:45:67:89:ab", "0123.4567.89ab"], &["01:23", "01:23:45:67:89:zz"]),
            ("email", &["a@b.example", "A B <a@b.example>"], &["a", "@b", "a@"]),
            ("uri", &["https://example.com/x?y", "/a/b", "mailto:x@y"], &["", "a b", "example.com"]),
            ("hostname", &["example.com", "localhost"], &["-x", "a_b.com", ""]),
            ("byte", &["aGk=", "aGlp"], &["aGk", "a===", ""]),
            ("isbn", &["0321751043", "978-0321751041"], &["0321751044"]),
            ("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112"]),
            ("hexcolor", &["#FFFFFF", "fff"], &["#ff"]),
            ("rgbcolor", &["rgb(255, 0,12)"], &["rgb(256,0,0)"]),
            ("k8s-short-name", &["a-b"], &["a.b", "-a", "A"]),
            ("k8s-long-name", &["a-b.c"], &["a..b", "A"]),
            ("password", &["anything", ""], &[]),
        ];
        for (name, good, bad) in table {
            let format = Format::supported(name, Ty::String).expect(name);
            for s in *good {
                assert!(format.accepts(s), "{name} should accept {s:?}");
            }
            for s in *bad {
                assert!(!format.accepts(s), "{name} should refuse {s:?}");
            }
        }
        assert_eq!(Format::supported("int32", Ty::String), None);
        assert_eq!(Format::supported("nonsense", Ty::String), None);
        assert_eq!(Format::supported("int32", Ty::Integer), Some(Format::Int32));
    }

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        let matches = |pattern: &str, s: &str| go_regex(pattern).expect(pattern).is_match(s);
        assert!(matches(r"^\d+$", "12"));
        assert!(!matches(r"^\d+$", "١٢"), "Go's \\d is ASCII");
        assert!(matches(r"^[\w.-]+$", "a_b.c-d"));
        assert!(matches(r"^[[]x[^]]$", "[xa"), "a bracket in a class is a letter");
        assert!(matches(r"^[a&&b]+$", "&a"), "no set operations");
        assert!(matches(r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)$", "a-b"));
        assert!(matches(r"^[[:alpha:]]+$", "abc"));
        assert!(go_regex("(").is_err());
    }
}
