//! `/openapi/v3` and `/openapi/v2`: the documents kubectl validates with and explains from.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use usher_schema::openapi::{
    self, Dialect, GroupVersionKind, Resource as Described, Subresource as DescribedSub, v2_protobuf,
};

use crate::body::Body;
use crate::negotiate;
use crate::registry::catalog::Catalog;
use crate::registry::kind::Resource;
use crate::rest::Answer;
use crate::server::Server;
use crate::status::{ApiError, Result};

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The last is no valid media type, yet what client-go asks for; it is answered under the name above, as upstream does.
const V2_FORMS: [&str; 3] =
    ["application/json", V2_PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"];

impl Server {
    /// `rest` is the path below `/openapi`.
    pub(crate) fn openapi(&self, rest: &[&str], accept: Option<&str>) -> Result<Answer> {
        let catalog = self.catalog();
        match rest {
            ["v3"] => Ok(Answer::json(200, &self.openapi_index(&catalog))),
            ["v3", "api", version] => self.openapi_group(&catalog, "", version),
            ["v3", "apis", group, version] => self.openapi_group(&catalog, group, version),
            ["v2"] => match negotiate::preferred(accept, &V2_FORMS) {
                Some("application/json") => Ok(Answer::json(200, &openapi_v2(&catalog))),
                Some(_) => {
                    let encoded = catalog.openapi_v2.get_or_init(|| v2_protobuf::encode(&openapi_v2(&catalog)).into());
                    let body = Body::whole(encoded.clone());
                    Ok(Answer::whole(200, V2_PROTOBUF, body))
                }
                None => Err(ApiError::not_acceptable(&V2_FORMS.join(", "))),
            },
            _ => Err(ApiError::no_such_path()),
        }
    }

    fn openapi_index(&self, catalog: &Catalog) -> Value {
        let paths: Map<String, Value> = described(catalog)
            .keys()
            .map(|(group, version)| {
                let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
                // The hash changes with what is served, so that clients may cache a document for good.
                let hash = fingerprint(catalog, group, version);
                (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
            })
            .collect();
        json!({"paths": paths})
    }

    fn openapi_group(&self, catalog: &Catalog, group: &str, version: &str) -> Result<Answer> {
        let key = (group.to_owned(), version.to_owned());
        let mut made = catalog.openapi_v3.lock();
        let document = match made.get(&key) {
            Some(document) => document.clone(),
            None => {
                let groups = described(catalog);
                let resources = groups.get(&key).ok_or_else(ApiError::no_such_path)?;
                let extra = custom_definitions(catalog, Dialect::V3, |r| r.group == group && r.version == version);
                let document = openapi::v3_group(group, version, &server_version(), resources, &extra);
                let document = Bytes::from(document.to_string());
                made.insert(key, document.clone());
                document
            }
        };
        Ok(Answer::whole(200, "application/json", Body::whole(document)))
    }
}

fn openapi_v2(catalog: &Catalog) -> Value {
    let groups = described(catalog);
    let listed: Vec<(&str, &str, &[Described])> =
        groups.iter().map(|((g, v), r)| (g.as_str(), v.as_str(), r.as_slice())).collect();
    openapi::v2(&server_version(), &listed, &custom_definitions(catalog, Dialect::V2, |_| true))
}

fn server_version() -> String {
    crate::service::version()["gitVersion"].as_str().unwrap_or("").to_owned()
}

/// Every resource in the words of the OpenAPI writer, by group and version.
fn described(catalog: &Catalog) -> BTreeMap<(String, String), Vec<Described>> {
    let mut groups: BTreeMap<(String, String), Vec<Described>> = BTreeMap::new();
    for group in catalog.groups() {
        for version in group.versions {
            let custom = |r: &Resource| catalog.find(&r.group, &r.version, &r.plural).is_some_and(|s| s.is_custom());
            let list = version.resources.iter().map(|r| describe(r, custom(r))).collect();
            groups.insert((group.name.clone(), version.name), list);
        }
    }
    groups
}

fn describe(r: &Resource, custom: bool) -> Described {
    let gvk = GroupVersionKind::new(&r.group, &r.version, &r.kind);
    let subresources = r
        .subresources
        .iter()
        .map(|s| {
            let body = match &s.body {
                Some((group, version, kind)) => GroupVersionKind::new(group, version, kind),
                None => gvk.clone(),
            };
            let definition = if custom && s.body.is_none() {
                Some(openapi::custom_name(&gvk))
            } else {
                body.builtin_definition().map(str::to_owned)
            };
            DescribedSub {
                name: s.name.clone(),
                gvk: body,
                verbs: s.verbs.iter().map(|v| (*v).to_owned()).collect(),
                definition,
            }
        })
        .collect();
    if custom {
        let name = openapi::custom_name(&gvk);
        return Described {
            plural: r.plural.clone(),
            namespaced: r.namespaced,
            verbs: r.verbs.iter().map(|v| (*v).to_owned()).collect(),
            list_definition: format!("{name}List"),
            definition: name,
            strategic: false,
            subresources,
            gvk,
        };
    }
    let mut described = Described::builtin(gvk, &r.plural, r.namespaced, &r.verbs);
    described.subresources = subresources;
    described
}

fn custom_definitions(catalog: &Catalog, dialect: Dialect, wanted: impl Fn(&Resource) -> bool) -> Map<String, Value> {
    let mut all = Map::new();
    for served in catalog.all().filter(|s| s.is_custom() && wanted(s.resource())) {
        let r = served.resource();
        let gvk = GroupVersionKind::new(&r.group, &r.version, &r.kind);
        all.extend(openapi::custom(dialect, &gvk, &format!("{}List", r.kind), served.published_schema().as_ref()));
    }
    all
}

fn fingerprint(catalog: &Catalog, group: &str, version: &str) -> String {
    let mut text = format!("{} {group}/{version}", env!("CARGO_PKG_VERSION"));
    for served in catalog.all().filter(|s| s.resource().group == group && s.resource().version == version) {
        text.push_str(&served.resource().plural);
        if let Some(schema) = served.published_schema() {
            text.push_str(&schema.to_string());
        }
    }
    let digest = ring::digest::digest(&ring::digest::SHA512, text.as_bytes());
    digest.as_ref().iter().map(|b| format!("{b:02X}")).collect()
}
