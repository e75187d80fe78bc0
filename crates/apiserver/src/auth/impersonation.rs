//! `kubectl --as`: acting as another user, where one may.
//!
//! The headers say whom ([`wanted`]), the rules say whether ([`impersonate`]). Kubernetes 1.36 tries the constrained
//! modes first (the verbs `impersonate:<mode>` and `impersonate-on:<mode>:<verb>` of KEP-5284), then the verb
//! `impersonate` alone; the first mode that passes wins, and when none does, the first refusal is the answer.

use std::collections::BTreeMap;

use http::HeaderMap;
use usher_schema::field::quote;

use super::identity::{
    ANONYMOUS, AUTHENTICATED, MASTERS, NODES, UNAUTHENTICATED, User, is_dns_subdomain, node_of, service_account_groups,
    split_service_account,
};
use super::rbac::{Attributes, Decision};
use super::refusal::Forbidden;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The user the headers ask for, exactly as they say it; `None` when they ask for nobody. An error is a 400.
pub fn wanted(headers: &HeaderMap) -> Result<Option<User>, String> {
    let mut user = User { name: first(headers, USER)?, uid: first(headers, UID)?, ..User::default() };
    for group in headers.get_all(GROUP) {
        user.groups.push(text(group, GROUP)?);
    }
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let values = headers.get_all(name).iter().map(|value| text(value, name.as_str()));
            user.extra.entry(unescape(key)).or_default().extend(values.collect::<Result<Vec<_>, _>>()?);
        }
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user == User::default() {
        return Ok(None);
    }
    Err(format!("requested {} without impersonating a user name", go_syntax(&user)))
}

/// Takes the headers off the request: nothing behind this point may behave differently because of them.
pub fn strip(headers: &mut HeaderMap) {
    let ours = |name: &str| [USER, UID, GROUP].contains(&name) || name.starts_with(EXTRA);
    let names: Vec<_> = headers.keys().filter(|name| ours(name.as_str())).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// The user to go on with, if `request` (whose user is who really asks) may be done in the name of `wanted`.
pub fn impersonate(
    wanted: &User,
    request: &Attributes,
    authorize: &dyn Fn(&Attributes) -> Decision,
) -> Result<User, Forbidden> {
    let mut first = None;
    for mode in modes(wanted, request.user) {
        let tried = Attempt { mode, wanted, request, authorize }.run();
        match tried {
            Ok(user) => return Ok(user),
            Err(forbidden) => _ = first.get_or_insert(forbidden),
        }
    }
    Err(first.unwrap_or_else(|| request.forbidden("all impersonation modes failed")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    /// The plain verb `impersonate`.
    Legacy,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            Mode::Legacy => "legacy",
        }
    }
}

/// The modes that are meant for this kind of user, in the order they are tried.
fn modes(wanted: &User, requestor: &User) -> Vec<Mode> {
    let only_name = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
    let mut modes = Vec::new();
    if let Some(node) = node_of(&wanted.name) {
        let own = requestor.extra.get(NODE_NAME).map(Vec::as_slice);
        let associated =
            split_service_account(&requestor.name).is_some() && matches!(own, Some([name]) if name == node);
        if only_name && associated {
            modes.push(Mode::AssociatedNode);
        }
        if only_name {
            modes.push(Mode::ArbitraryNode);
        }
    } else if split_service_account(&wanted.name).is_some() {
        if only_name {
            modes.push(Mode::ServiceAccount);
        }
    } else {
        modes.push(Mode::UserInfo);
    }
    modes.push(Mode::Legacy);
    modes
}

struct Attempt<'a> {
    mode: Mode,
    wanted: &'a User,
    request: &'a Attributes<'a>,
    authorize: &'a dyn Fn(&Attributes) -> Decision,
}

impl Attempt<'_> {
    fn run(&self) -> Result<User, Forbidden> {
        let constrained = self.mode != Mode::Legacy;
        if constrained {
            let verb = format!("impersonate-on:{}:{}", self.mode.name(), self.request.verb);
            self.check(&Attributes { verb: &verb, ..*self.request })?;
        }
        let verb = if constrained { format!("impersonate:{}", self.mode.name()) } else { "impersonate".to_owned() };
        let group = if constrained { AUTHENTICATION } else { "" };
        let on = |group, resource| Attributes::resource(self.request.user, &verb, group, resource);

        let mut user = self.wanted.clone();
        self.check_name(&mut user, on(group, "users"))?;
        if !user.uid.is_empty() {
            self.check(&on(AUTHENTICATION, "uids").name(&user.uid))?;
        }
        self.check_groups(on(group, "groups"))?;
        self.check_extra(on(AUTHENTICATION, "userextras"))?;
        Ok(with_standing(user))
    }

    fn check_name<'b>(&'b self, user: &mut User, mut wanted: Attributes<'b>) -> Result<(), Forbidden> {
        wanted.name = &self.wanted.name;
        if let Some(node) = node_of(&self.wanted.name).filter(|_| self.mode != Mode::Legacy) {
            // The grant for associated nodes is for all nodes: which one it is follows from the requestor's token.
            (wanted.resource, wanted.name) = ("nodes", if self.mode == Mode::AssociatedNode { "*" } else { node });
            user.groups = vec![NODES.to_owned()];
        } else if let Some((namespace, name)) = split_service_account(&self.wanted.name) {
            (wanted.resource, wanted.namespace, wanted.name) = ("serviceaccounts", namespace, name);
            if user.groups.is_empty() {
                user.groups = service_account_groups(namespace);
            }
        }
        self.check(&wanted)
    }

    fn check_groups<'b>(&'b self, wanted: Attributes<'b>) -> Result<(), Forbidden> {
        let groups = &self.wanted.groups;
        if self.mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(wanted.forbidden("impersonating the empty string group is not allowed"));
            }
            if self.wanted.in_group(MASTERS) {
                return Err(wanted.name(MASTERS).forbidden("impersonating the system:masters group is not allowed"));
            }
        }
        if self.many(groups.len()) && self.check(&wanted.name("*")).is_ok() {
            return Ok(());
        }
        groups.iter().try_for_each(|group| self.check(&wanted.name(group)))
    }

    fn check_extra<'b>(&'b self, wanted: Attributes<'b>) -> Result<(), Forbidden> {
        let extra = &self.wanted.extra;
        if self.mode != Mode::Legacy {
            check_extra_form(extra).map_err(|why| wanted.forbidden(&why))?;
        }
        let all = extra.len().max(extra.values().map(Vec::len).sum());
        if self.many(all) && self.check(&wanted.subresource("*").name("*")).is_ok() {
            return Ok(());
        }
        for (key, values) in extra {
            values.iter().try_for_each(|value| self.check(&wanted.subresource(key).name(value)))?;
        }
        Ok(())
    }

    /// Where a grant for everything is asked for once before many are asked for one by one.
    fn many(&self, count: usize) -> bool {
        self.mode != Mode::Legacy && count >= 4
    }

    fn check(&self, wanted: &Attributes) -> Result<(), Forbidden> {
        let decision = (self.authorize)(wanted);
        if decision.allow { Ok(()) } else { Err(wanted.forbidden(&decision.reason)) }
    }
}

/// An impersonated user is authenticated, or not, like any other.
fn with_standing(mut user: User) -> User {
    let standing = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !user.in_group(standing) && (user.name == ANONYMOUS || !user.in_group(UNAUTHENTICATED)) {
        user.groups.push(standing.to_owned());
    }
    user
}

fn check_extra_form(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for (key, values) in extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".to_owned());
        }
        let well_formed = key.split_once('/').is_some_and(|(host, path)| is_dns_subdomain(host) && !path.is_empty());
        if !well_formed {
            return Err(format!(
                "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {}: must be a \
                 domain-prefixed path (such as \"acme.io/foo\")",
                quote(key)
            ));
        }
        if *key != key.to_lowercase() {
            return Err(format!("impersonating a non-lowercase key in extra is not allowed: {}", quote(key)));
        }
        if values.is_empty() {
            return Err("impersonating empty values in extra is not allowed".to_owned());
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".to_owned());
        }
    }
    Ok(())
}

fn first(headers: &HeaderMap, name: &str) -> Result<String, String> {
    headers.get(name).map_or(Ok(String::new()), |value| text(value, name))
}

fn text(value: &http::HeaderValue, name: &str) -> Result<String, String> {
    std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| format!("header {name} is not UTF-8"))
}

/// Decodes `%2f` and the like; what is not properly encoded is taken as it stands.
fn unescape(key: &str) -> String {
    let mut out = Vec::with_capacity(key.len());
    let mut bytes = key.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16)).map(|d| d as u8);
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else { return key.to_owned() };
        out.push(high * 16 + low);
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}

/// As Go's `%#v` prints upstream's user: the 400 quotes it.
fn go_syntax(user: &User) -> String {
    let strings =
        |list: &[String]| format!("[]string{{{}}}", list.iter().map(|s| quote(s)).collect::<Vec<_>>().join(", "));
    let groups = if user.groups.is_empty() { "[]string(nil)".to_owned() } else { strings(&user.groups) };
    let extra = if user.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let entries: Vec<String> = user.extra.iter().map(|(k, v)| format!("{}:{}", quote(k), strings(v))).collect();
        format!("map[string][]string{{{}}}", entries.join(", "))
    };
    format!("&user.DefaultInfo{{Name:{}, UID:{}, Groups:{groups}, Extra:{extra}}}", quote(&user.name), quote(&user.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    /// Tries to list pods in `ns`; grants are `verb resource[/sub] [name]` as the authorizer is asked.
    fn act(requestor: &User, list: &[(&str, &str)], grants: &[&str]) -> Result<User, String> {
        let wanted = wanted(&headers(list)).unwrap().unwrap();
        let request = Attributes::resource(requestor, "list", "", "pods").namespace("ns");
        let authorize = |a: &Attributes| {
            let resource = if a.subresource.is_empty() {
                a.resource.to_owned()
            } else {
                format!("{}/{}", a.resource, a.subresource)
            };
            let asked = format!("{} {resource} {}", a.verb, a.name);
            Decision { allow: grants.contains(&asked.trim_end()), reason: String::new() }
        };
        impersonate(&wanted, &request, &authorize).map_err(|forbidden| forbidden.message())
    }

    fn jane() -> User {
        User::new("jane", &[AUTHENTICATED])
    }

    #[test]
    fn no_header_asks_for_nobody_and_a_group_alone_is_a_bad_request() {
        assert_eq!(wanted(&headers(&[("accept", "*/*")])), Ok(None));
        assert_eq!(
            wanted(&headers(&[("Impersonate-Group", "dev"), ("Impersonate-Extra-Scopes", "a")])).unwrap_err(),
            "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"dev\"}, \
             Extra:map[string][]string{\"scopes\":[]string{\"a\"}}} without impersonating a user name"
        );
        let mut bad = HeaderMap::new();
        bad.insert(USER, HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(wanted(&bad).is_err());
    }

    #[test]
    fn headers_are_read_whole_and_taken_off() {
        let mut map = headers(&[
            ("Impersonate-User", "joe"),
            ("Impersonate-Uid", "u1"),
            ("Impersonate-Group", "a"),
            ("Impersonate-Group", "b"),
            ("Impersonate-Extra-acme.com%2Fproject", "x"),
            ("Impersonate-Extra-acme.com%2Fproject", "y"),
            ("Impersonate-Extra-half%2", "z"),
            ("accept", "*/*"),
        ]);
        let user = wanted(&map).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("joe", "u1"));
        assert_eq!(user.groups, ["a", "b"]);
        assert_eq!(user.extra["acme.com/project"], ["x", "y"]);
        assert_eq!(user.extra["half%2"], ["z"]);
        strip(&mut map);
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn each_part_of_the_wanted_user_needs_its_own_grant() {
        let all = [
            ("Impersonate-User", "joe"),
            ("Impersonate-Uid", "u1"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Extra-scopes", "x"),
        ];
        let grants = [
            "impersonate users joe",
            "impersonate uids u1",
            "impersonate groups dev",
            "impersonate userextras/scopes x",
        ];
        let user = act(&jane(), &all, &grants).unwrap();
        assert_eq!(user.groups, ["dev", AUTHENTICATED]);
        assert_eq!((user.uid.as_str(), &user.extra["scopes"]), ("u1", &vec!["x".to_owned()]));
        for missing in 0..grants.len() {
            let mut fewer = grants.to_vec();
            fewer.remove(missing);
            assert!(act(&jane(), &all, &fewer).is_err(), "without {:?}", grants[missing]);
        }
    }

    #[test]
    fn the_first_refusal_is_the_constrained_modes() {
        assert_eq!(
            act(&jane(), &[("Impersonate-User", "joe")], &[]).unwrap_err(),
            "pods is forbidden: User \"jane\" cannot impersonate-on:user-info:list resource \"pods\" in API group \"\" \
             in the namespace \"ns\""
        );
        let group_only_legacy = act(
            &jane(),
            &[("Impersonate-User", "system:serviceaccount:ns:bot"), ("Impersonate-Group", "g")],
            &["impersonate serviceaccounts bot"],
        );
        assert_eq!(
            group_only_legacy.unwrap_err(),
            "groups \"g\" is forbidden: User \"jane\" cannot impersonate resource \"groups\" in API group \"\" at the \
             cluster scope"
        );
    }

    #[test]
    fn a_service_account_brings_its_groups() {
        let grants = ["impersonate serviceaccounts bot"];
        let user = act(&jane(), &[("Impersonate-User", "system:serviceaccount:ns:bot")], &grants).unwrap();
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
    }

    #[test]
    fn constrained_impersonation_needs_both_grants() {
        let as_joe = [("Impersonate-User", "joe")];
        let (on, who) = ("impersonate-on:user-info:list pods", "impersonate:user-info users joe");
        assert_eq!(act(&jane(), &as_joe, &[on, who]).unwrap().groups, [AUTHENTICATED]);
        assert!(act(&jane(), &as_joe, &[on]).is_err());
        assert!(act(&jane(), &as_joe, &[who]).is_err());
    }

    #[test]
    fn constrained_impersonation_never_gives_masters() {
        let list = [("Impersonate-User", "joe"), ("Impersonate-Group", MASTERS)];
        let grants = [
            "impersonate-on:user-info:list pods",
            "impersonate:user-info users joe",
            "impersonate:user-info groups system:masters",
        ];
        assert!(
            act(&jane(), &list, &grants).unwrap_err().contains("impersonating the system:masters group is not allowed")
        );
    }

    #[test]
    fn a_service_account_may_be_granted_its_own_node_only() {
        let mut bot = User::service_account("ns", "bot", "u");
        bot.extra.insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
        let grants = ["impersonate-on:associated-node:list pods", "impersonate:associated-node nodes *"];
        let node = act(&bot, &[("Impersonate-User", "system:node:n1")], &grants).unwrap();
        assert_eq!(
            (node.name.as_str(), node.groups),
            ("system:node:n1", vec![NODES.to_owned(), AUTHENTICATED.to_owned()])
        );
        assert!(act(&bot, &[("Impersonate-User", "system:node:n2")], &grants).is_err());
    }

    #[test]
    fn anonymous_is_impersonated_as_unauthenticated() {
        let grants = ["impersonate users system:anonymous"];
        let user = act(&jane(), &[("Impersonate-User", ANONYMOUS)], &grants).unwrap();
        assert_eq!(user, User::anonymous());
    }
}
