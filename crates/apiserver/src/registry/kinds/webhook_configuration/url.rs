//! A webhook's URL, taken apart as Go's `net/url` does it, as far as the rules look at it.

use usher_schema::field::{Errors, quote};

use crate::registry::kinds::at::At;

const FORM: &str = "; desired format: https://host[/path]";

pub fn validate_url(url: &str, at: &At, errors: &mut Errors) {
    let parts = match Parts::of(url) {
        Ok(parts) => parts,
        Err(problem) => {
            let detail = format!("url must be a valid URL: parse {}: {problem}{FORM}", quote(url));
            return errors.required(&at.path(), detail);
        }
    };
    if parts.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid(&at.path(), parts.scheme.as_str(), detail);
    }
    if parts.host.is_empty() {
        errors.invalid(&at.path(), "", format!("host must be specified{FORM}"));
    }
    for (part, what) in [
        (parts.user, "user information is not permitted in the URL"),
        (parts.fragment, "fragments are not permitted in the URL"),
        (parts.query, "query parameters are not permitted in the URL"),
    ] {
        if let Some(part) = part {
            errors.invalid(&at.path(), part, what);
        }
    }
}

struct Parts<'u> {
    scheme: String,
    user: Option<&'u str>,
    host: &'u str,
    query: Option<&'u str>,
    fragment: Option<&'u str>,
}

impl Parts<'_> {
    fn of(url: &str) -> Result<Parts<'_>, String> {
        if url.bytes().any(|c| c < b' ' || c == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (rest, fragment) = split_off(url, '#');
        let (scheme, rest) = split_scheme(rest)?;
        let (rest, query) = split_off(rest, '?');
        let Some(authority) = rest.strip_prefix("//") else {
            let first = rest.split('/').next().unwrap_or_default();
            if scheme.is_empty() && first.contains(':') {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
            return Ok(Parts { scheme, user: None, host: "", query, fragment });
        };
        let authority = authority.split('/').next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let port = host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map(|(_, port)| port);
        if let Some(port) = port.filter(|port| !port.bytes().all(|c| c.is_ascii_digit())) {
            return Err(format!("invalid port {} after host", quote(&format!(":{port}"))));
        }
        if let Some(space) =
            host.chars().find(|c| matches!(c, ' ' | '<' | '>' | '"' | '\\' | '^' | '`' | '{' | '|' | '}'))
        {
            return Err(format!("invalid character {} in host name", quote(&space.to_string())));
        }
        Ok(Parts { scheme, user, host, query, fragment })
    }
}

/// What follows the first `mark`, if it is not empty.
fn split_off(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after).filter(|after| !after.is_empty())),
        None => (text, None),
    }
}

fn split_scheme(url: &str) -> Result<(String, &str), String> {
    for (i, c) in url.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i > 0 => {}
            ':' if i == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((url[..i].to_lowercase(), &url[i + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), url))
}
