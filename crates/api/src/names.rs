//! The syntax of names, labels and annotations, with upstream's explanations.
//!
//! Each function returns what is wrong with a value, in the words clients know; an empty list (which costs nothing) means
//! it is fine. Two families word lengths differently upstream ("characters" for names, "bytes" for label keys and values);
//! both are kept.

pub const DNS1123_LABEL_MAX: usize = 63;
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;
const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_MSG: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// `must be no more than 63 characters`.
pub fn max_len(length: usize) -> String {
    format!("must be no more than {length} characters")
}

fn max_bytes(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

/// `must be between 1 and 65535, inclusive`.
pub fn inclusive_range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// How upstream explains a value that its regular expression refuses.
pub fn regex_error(message: &str, format: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{format}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{format}')", examples.join(" or "))
}

fn lower_alnum(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// `first` and `last` at the ends, `inner` between; not empty.
fn framed(value: &[u8], first: fn(u8) -> bool, inner: fn(u8) -> bool, last: fn(u8) -> bool) -> bool {
    match value {
        [] => false,
        [one] => first(*one) && last(*one),
        [head, middle @ .., tail] => first(*head) && last(*tail) && middle.iter().all(|&c| inner(c)),
    }
}

fn is_label(value: &[u8]) -> bool {
    framed(value, lower_alnum, |c| lower_alnum(c) || c == b'-', lower_alnum)
}

fn is_subdomain(value: &str) -> bool {
    value.as_bytes().split(|&c| c == b'.').all(is_label)
}

fn is_qualified_part(value: &str) -> bool {
    let alnum = |c: u8| c.is_ascii_alphanumeric();
    framed(value.as_bytes(), alnum, |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'), alnum)
}

/// A name that will get a random suffix may end in a dash (upstream also drops the character before it; so do we).
fn masked(name: &str, prefix: bool) -> std::borrow::Cow<'_, str> {
    if prefix && name.len() > 1 && name.ends_with('-') {
        // Inside a character: then the name has a letter no name may have, and stays as it is.
        if let Some(kept) = name.get(..name.len() - 2) {
            return format!("{kept}a").into();
        }
    }
    name.into()
}

/// A DNS subdomain; `prefix` when it is a `generateName`.
pub fn dns1123_subdomain(name: &str, prefix: bool) -> Vec<String> {
    let name = masked(name, prefix);
    let mut out = Vec::new();
    if name.len() > DNS1123_SUBDOMAIN_MAX {
        out.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if !is_subdomain(&name) {
        out.push(subdomain_message());
    }
    out
}

fn subdomain_message() -> String {
    regex_error(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
         and must start and end with an alphanumeric character",
        SUBDOMAIN_FMT,
        &["example.com"],
    )
}

/// A DNS subdomain whose labels may contain underscores (search domains).
pub fn dns1123_subdomain_with_underscore(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    if name.len() > DNS1123_SUBDOMAIN_MAX {
        out.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    let label = |value: &[u8]| {
        let value = value.strip_prefix(b"_").unwrap_or(value);
        framed(value, lower_alnum, |c| lower_alnum(c) || c == b'-' || c == b'_', lower_alnum)
    };
    if !name.as_bytes().split(|&c| c == b'.').all(label) {
        out.push(regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
             and must start and end with an alphanumeric character",
            "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    out
}

pub fn dns1123_label(name: &str, prefix: bool) -> Vec<String> {
    let name = masked(name, prefix);
    let mut out = Vec::new();
    if name.len() > DNS1123_LABEL_MAX {
        out.push(max_len(DNS1123_LABEL_MAX));
    }
    if !is_label(name.as_bytes()) {
        if is_subdomain(&name) {
            out.push("must not contain dots".to_owned());
        } else {
            out.push(regex_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                 and must start and end with an alphanumeric character",
                LABEL_FMT,
                &["my-name", "123-abc"],
            ));
        }
    }
    out
}

pub fn dns1035_label(name: &str, prefix: bool) -> Vec<String> {
    let name = masked(name, prefix);
    let mut out = Vec::new();
    if name.len() > DNS1123_LABEL_MAX {
        out.push(max_len(DNS1123_LABEL_MAX));
    }
    let starts_with_letter = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if !starts_with_letter || !is_label(name.as_bytes()) {
        out.push(regex_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', \
             start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    out
}

pub fn wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > DNS1123_SUBDOMAIN_MAX {
        out.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        out.push(regex_error(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, \
             which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!("\\*\\.{SUBDOMAIN_FMT}"),
            &["*.example.com"],
        ));
    }
    out
}

/// A name that stands alone in a URL path (RBAC objects and the like).
pub fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|bad| name.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

/// A qualified name, which is also what label and annotation keys, finalizers, taints and condition types are.
pub fn qualified(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut parts = value.splitn(3, '/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > DNS1123_SUBDOMAIN_MAX {
                    out.push(format!("prefix part {}", max_bytes(DNS1123_SUBDOMAIN_MAX)));
                }
                if !is_subdomain(prefix) {
                    out.push(format!("prefix part {}", subdomain_message()));
                }
            }
            name
        }
        _ => {
            let message = regex_error(QUALIFIED_MSG, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"]);
            return vec![format!(
                "a valid label key {message} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > DNS1123_LABEL_MAX {
        out.push(format!("name part {}", max_bytes(DNS1123_LABEL_MAX)));
    }
    if !is_qualified_part(name) {
        let message = regex_error(QUALIFIED_MSG, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"]);
        out.push(format!("name part {message}"));
    }
    out
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > DNS1123_LABEL_MAX {
        out.push(max_bytes(DNS1123_LABEL_MAX));
    }
    if !value.is_empty() && !is_qualified_part(value) {
        out.push(regex_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
             and must start and end with an alphanumeric character",
            &format!("({QUALIFIED_FMT})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    out
}

/// The name of an environment variable, as upstream allows it since 1.34: printable ASCII but `=`.
pub fn env_var(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    if name.is_empty() {
        out.push("environment variable name must be non-empty".to_owned());
    }
    if !name.bytes().all(|c| (c.is_ascii_graphic() || c == b' ') && c != b'=') {
        out.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    out
}

/// A key of a ConfigMap or Secret.
pub fn config_key(key: &str) -> Vec<String> {
    let mut out = Vec::new();
    if key.len() > DNS1123_SUBDOMAIN_MAX {
        out.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if key.is_empty() || !key.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.')) {
        out.push(regex_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match key {
        "." => out.push("must not be '.'".to_owned()),
        ".." => out.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => out.push("must not start with '..'".to_owned()),
        _ => {}
    }
    out
}

/// The name of a container or service port (an IANA service name).
pub fn port_name(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    if name.len() > 15 {
        out.push(max_len(15));
    }
    if name.is_empty() || !name.bytes().all(|c| lower_alnum(c) || c == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|c| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) { Vec::new() } else { vec![inclusive_range(1, 65535)] }
}

/// A Unix user or group id.
pub fn unix_id(id: i64) -> Vec<String> {
    let max = i64::from(i32::MAX);
    if (0..=max).contains(&id) { Vec::new() } else { vec![inclusive_range(0, max)] }
}

pub fn http_header_name(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    vec![regex_error(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

pub fn c_identifier(name: &str) -> Vec<String> {
    let mut bytes = name.bytes();
    let starts = bytes.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    if starts && bytes.all(|c| c.is_ascii_alphanumeric() || c == b'_') {
        return Vec::new();
    }
    vec![regex_error(
        "a valid C identifier must start with alphabetic character or '_', \
         followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subdomains_are_refused_in_upstreams_words() {
        assert!(dns1123_subdomain("a.b-c.0", false).is_empty());
        assert_eq!(
            dns1123_subdomain("Foo_bar", false),
            ["a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
              and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"]
        );
        assert_eq!(dns1123_subdomain(&"a".repeat(254), false), ["must be no more than 253 characters"]);
        for bad in ["", "-a", "a-", "a..b", ".a", "a.", "ä", "a/b"] {
            assert_eq!(dns1123_subdomain(bad, false).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_generate_name_may_end_in_a_dash() {
        assert!(dns1123_subdomain("pi-", true).is_empty());
        assert_eq!(dns1123_subdomain("pi-", false).len(), 1);
        assert_eq!(dns1123_subdomain("ä-", true).len(), 1);
        assert_eq!(dns1123_subdomain("-", true).len(), 1);
    }

    #[test]
    fn labels_refuse_dots_and_1035_labels_refuse_leading_digits() {
        assert_eq!(dns1123_label("a.b", false), ["must not contain dots"]);
        assert_eq!(dns1123_label(&"a".repeat(64), false), ["must be no more than 63 characters"]);
        assert!(dns1123_label("1a", false).is_empty());
        assert_eq!(dns1035_label("1a", false).len(), 1);
        assert!(dns1035_label("a1", false).is_empty());
    }

    #[test]
    fn qualified_names_check_prefix_and_name() {
        for good in ["a", "A_b.c", "example.com/Name", "nvidia.com/gpu"] {
            assert!(qualified(good).is_empty(), "{good}");
        }
        assert_eq!(qualified("/a"), ["prefix part must be non-empty"]);
        assert_eq!(
            qualified("a/"),
            [
                "name part must be non-empty".to_owned(),
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                    .to_owned()
            ]
        );
        assert!(qualified("a/b/c")[0].starts_with("a valid label key must consist of"));
        assert_eq!(qualified(&format!("x/{}", "a".repeat(64))), ["name part must be no more than 63 bytes"]);
    }

    #[test]
    fn values_keys_and_variables() {
        assert!(label_value("").is_empty());
        assert_eq!(label_value("a b").len(), 1);
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert_eq!(config_key("..a"), ["must not start with '..'"]);
        assert!(config_key("ca.crt").is_empty());
        assert!(env_var("MY VAR-1.x").is_empty());
        assert_eq!(env_var("a=b").len(), 1);
        assert_eq!(port_name("8080"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("-"), ["must contain at least one letter (a-z)", "must not begin or end with a hyphen"]);
        assert_eq!(path_segment("a/b%", false), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(path_segment("..", false), ["may not be '..'"]);
        assert!(path_segment("..", true).is_empty());
    }
}
