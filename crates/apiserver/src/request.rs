//! What a request asks for: path to resource, method to verb, query to options. Follows Kubernetes' request-info rules, because
//! authorization and metrics are about these words.

use std::borrow::Cow;

use http::Method;
use usher_schema::field::{Errors, Path};

use crate::selector::{FieldSelector, LabelSelector};
use crate::status::{ApiError, Result};

/// The words of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// `get`, `list`, `watch`, `create`, ... or the lower-case method for paths that are no resource.
    pub verb: &'static str,
    pub path: String,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
}

impl Info {
    pub fn parse(method: &Method, path: &str, query: &Query) -> Info {
        let mut info = Info { verb: method_word(method), path: path.to_owned(), ..Info::default() };
        let decoded: Vec<Cow<'_, str>> =
            path.trim_matches('/').split('/').filter(|p| !p.is_empty()).map(percent_decode).collect();
        let parts: Vec<&str> = decoded.iter().map(AsRef::as_ref).collect();
        let rest = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                info.version = (*version).to_owned();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                info.group = (*group).to_owned();
                info.version = (*version).to_owned();
                rest
            }
            _ => return info,
        };
        info.is_resource = true;
        info.verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        // The deprecated /watch/ prefix is still what some clients send.
        let (watch_prefix, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            rest => (false, rest),
        };
        let rest = match rest {
            ["namespaces", namespace, tail @ ..] => {
                info.namespace = (*namespace).to_owned();
                match tail {
                    [] | ["status" | "finalize", ..] => rest,
                    tail => tail,
                }
            }
            rest => rest,
        };
        if let [resource, tail @ ..] = rest {
            info.resource = (*resource).to_owned();
            if let [name, tail @ ..] = tail {
                info.name = (*name).to_owned();
                info.subresource = tail.join("/");
            }
        }
        if watch_prefix {
            info.verb = "watch";
        } else if info.verb == "get" && info.name.is_empty() {
            info.verb = if query.flag("watch") { "watch" } else { "list" };
        } else if info.verb == "delete" && info.name.is_empty() {
            info.verb = "deletecollection";
        }
        info
    }

    /// The name authorization sees: a list or watch of a single object counts as access to that object.
    pub fn authorized_name(&self, fields: Option<&FieldSelector>) -> String {
        match fields.and_then(|f| f.exact("metadata.name")) {
            Some(name) if self.name.is_empty() && matches!(self.verb, "list" | "watch") => name.to_owned(),
            _ => self.name.clone(),
        }
    }

    /// `metrics` label: how much a request reaches.
    pub fn scope(&self) -> &'static str {
        match (self.name.is_empty(), self.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        }
    }
}

fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

/// A decoded query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(raw: &str) -> Query {
        Query(
            raw.split('&')
                .filter(|part| !part.is_empty())
                .map(|part| {
                    let (key, value) = part.split_once('=').unwrap_or((part, ""));
                    (query_decode(key), query_decode(value))
                })
                .collect(),
        )
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Go's query booleans: present means true, except `false` and `0`.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|v| !matches!(v.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    fn optional_flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|_| self.flag(key))
    }

    pub fn number(&self, key: &str) -> Result<Option<i64>> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!(
                    "strconv.ParseInt: parsing {}: invalid syntax",
                    usher_schema::field::quote(text)
                ))
            }),
        }
    }
}

/// `%XX`, and nothing else.
fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |b: u8| (b as char).to_digit(16);
        match bytes[i..] {
            [b'%', a, b, ..] if hex(a).is_some() && hex(b).is_some() => {
                out.push((hex(a).unwrap_or(0) * 16 + hex(b).unwrap_or(0)) as u8);
                i += 3;
            }
            [b, ..] => {
                out.push(b);
                i += 1;
            }
            [] => break,
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

fn query_decode(text: &str) -> String {
    percent_decode(&text.replace('+', " ")).into_owned()
}

/// How old a read may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// `resourceVersion` unset: everything that was answered before.
    Latest,
    /// "0": whatever is at hand.
    Any,
    NotOlderThan(u64),
    Exact(u64),
}

/// `metav1.ListOptions` for lists and watches, parsed and checked.
#[derive(Clone, Debug)]
pub struct ListOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    pub freshness: Freshness,
    pub limit: Option<usize>,
    pub continue_token: Option<String>,
    pub bookmarks: bool,
    pub initial_events: Option<bool>,
    pub timeout_secs: Option<u64>,
}

impl ListOptions {
    pub fn parse(query: &Query, watch: bool) -> Result<ListOptions> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or(""))?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or(""))?;
        let version = query.get("resourceVersion").unwrap_or("");
        let matching = query.get("resourceVersionMatch").unwrap_or("");
        let continue_token = query.get("continue").filter(|t| !t.is_empty()).map(str::to_owned);
        let initial_events = query.optional_flag("sendInitialEvents");
        let errors = if watch {
            check_watch(version, matching, continue_token.is_some(), initial_events)
        } else {
            check_list(version, matching, continue_token.is_some(), initial_events)
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &errors));
        }
        let limit = query.number("limit")?.filter(|&n| n > 0).and_then(|n| usize::try_from(n).ok());
        Ok(ListOptions {
            freshness: freshness(version, matching, limit.is_some() && !watch)
                // Upstream finds this out so late in a watch that it has no reason for it.
                .map_err(|e| if watch { ApiError::plain(500, &bad_version(version)) } else { e })?,
            labels,
            fields,
            limit,
            continue_token,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events,
            timeout_secs: query.number("timeoutSeconds")?.and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0),
        })
    }
}

/// A resource version of ours is a decimal number without sign or leading zero.
pub fn parse_resource_version(text: &str) -> Result<u64> {
    text.parse::<u64>().map_err(|_| ApiError::bad_request(format!("invalid resource version: {}", bad_version(text))))
}

/// What is wrong with a resource version that is no number.
pub fn bad_version(text: &str) -> String {
    let mut errors = Errors::new();
    let why = format!("strconv.ParseUint: parsing {}: invalid syntax", usher_schema::field::quote(text));
    errors.invalid(&Path::new("resourceVersion"), text, why);
    errors.to_string()
}

fn freshness(version: &str, matching: &str, limited: bool) -> Result<Freshness> {
    Ok(match (version, matching) {
        ("", _) => Freshness::Latest,
        ("0", _) => Freshness::Any,
        (v, "Exact") => Freshness::Exact(parse_resource_version(v)?),
        // Without a match rule, a limit makes a numbered list exact: what paging clients of old relied on.
        (v, "") if limited => Freshness::Exact(parse_resource_version(v)?),
        (v, _) => Freshness::NotOlderThan(parse_resource_version(v)?),
    })
}

fn check_list(version: &str, matching: &str, continues: bool, initial_events: Option<bool>) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("resourceVersionMatch");
    if !matching.is_empty() {
        if version.is_empty() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if continues {
            errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.not_supported(&path, matching, &["Exact", "NotOlderThan", ""]);
        }
        if matching == "Exact" && version == "0" {
            errors.forbidden(&path, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if initial_events.is_some() {
        errors.forbidden(&Path::new("sendInitialEvents"), "sendInitialEvents is forbidden for list");
    }
    errors
}

fn check_watch(version: &str, matching: &str, continues: bool, initial_events: Option<bool>) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("resourceVersionMatch");
    // A watch that begins with the state is one with initial events, to upstream.
    let (mut matching, mut initial_events) = (matching, initial_events);
    if matching.is_empty() && initial_events.is_none() && matches!(version, "" | "0") {
        (matching, initial_events) = ("NotOlderThan", Some(true));
    }
    if initial_events.is_some() && matching != "NotOlderThan" {
        errors.forbidden(&path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if !matching.is_empty() {
        if initial_events.is_none() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if matching != "NotOlderThan" {
            errors.not_supported(&path, matching, &["NotOlderThan"]);
        }
        if continues {
            errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
        }
    }
    errors
}

/// What to do with unknown or repeated fields of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of creates, updates and patches.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    pub force: Option<bool>,
}

impl WriteOptions {
    /// `kind` names the options in errors: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    pub fn parse(query: &Query, kind: &str) -> Result<WriteOptions> {
        let mut errors = Errors::new();
        let dry_run = parse_dry_run(query.all("dryRun"), &mut errors);
        let field_manager = query.get("fieldManager").unwrap_or("").to_owned();
        if field_manager.len() > 128 {
            errors.too_long(&Path::new("fieldManager"), 128);
        }
        if let Some(i) = field_manager.chars().position(|c| c.is_control()) {
            errors.invalid(
                &Path::new("fieldManager"),
                field_manager.as_str(),
                format!(
                    "invalid character U+{:04X} (at position {i})",
                    u32::from(field_manager.chars().nth(i).unwrap_or(' '))
                ),
            );
        }
        let field_validation = match query.get("fieldValidation").unwrap_or("") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.not_supported(&Path::new("fieldValidation"), other, &["", "Ignore", "Strict", "Warn"]);
                FieldValidation::Warn
            }
        };
        if errors.is_empty() {
            Ok(WriteOptions { dry_run, field_manager, field_validation, force: query.optional_flag("force") })
        } else {
            Err(ApiError::invalid_kind("meta.k8s.io", kind, "", &errors))
        }
    }
}

pub fn parse_dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Errors) -> bool {
    let given: Vec<&str> = values.filter(|v| !v.is_empty()).collect();
    if given.iter().any(|v| *v != "All") {
        errors.not_supported(&Path::new("dryRun"), given.clone(), &["All"]);
    }
    given.contains(&"All")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, url: &str) -> Info {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        Info::parse(&method.parse().unwrap(), path, &Query::parse(query))
    }

    #[test]
    fn a_path_says_group_version_namespace_resource_name_and_subresource() {
        let i = info("PUT", "/apis/batch/v1/namespaces/team%2Da/jobs/x/status");
        assert_eq!(
            (i.verb, &*i.group, &*i.version, &*i.namespace, &*i.resource, &*i.name, &*i.subresource),
            ("update", "batch", "v1", "team-a", "jobs", "x", "status")
        );
        let i = info("GET", "/api/v1/namespaces/a/finalize");
        assert_eq!((&*i.resource, &*i.name, &*i.subresource), ("namespaces", "a", "finalize"));
        let i = info("GET", "/api/v1/namespaces/a");
        assert_eq!((&*i.resource, &*i.name, &*i.namespace), ("namespaces", "a", "a"));
        assert!(!info("GET", "/apis/batch/v1").is_resource);
    }

    #[test]
    fn the_verb_of_a_collection_depends_on_the_query() {
        assert_eq!(info("GET", "/api/v1/pods").verb, "list");
        assert_eq!(info("GET", "/api/v1/pods?watch=1").verb, "watch");
        assert_eq!(info("GET", "/api/v1/pods?watch=false").verb, "list");
        assert_eq!(info("GET", "/api/v1/watch/pods").verb, "watch");
        assert_eq!(info("DELETE", "/api/v1/namespaces/x/pods").verb, "deletecollection");
    }

    #[test]
    fn a_watch_with_initial_events_must_say_not_older_than() {
        for refused in
            ["sendInitialEvents=true", "continue=x", "resourceVersion=0&continue=x", "resourceVersionMatch=Exact"]
        {
            assert_eq!(ListOptions::parse(&Query::parse(refused), true).unwrap_err().code, 422, "{refused}");
        }
        let ok = Query::parse("sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        assert_eq!(ListOptions::parse(&ok, true).unwrap().initial_events, Some(true));
    }

    #[test]
    fn a_numbered_list_with_a_limit_is_exact_and_without_not_older() {
        let parse = |q: &str| ListOptions::parse(&Query::parse(q), false).unwrap().freshness;
        assert_eq!(parse("resourceVersion=5&limit=2"), Freshness::Exact(5));
        assert_eq!(parse("resourceVersion=5"), Freshness::NotOlderThan(5));
        assert_eq!(parse("resourceVersion=0&limit=2"), Freshness::Any);
        assert_eq!(ListOptions::parse(&Query::parse("resourceVersion=x"), false).unwrap_err().code, 400);
    }
}
