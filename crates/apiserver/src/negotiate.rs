//! Which form the client wants its answer in, and which form it sent.

use crate::status::{ApiError, Result};

/// How objects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    /// `meta.k8s.io/v1 Table`, what `kubectl get` prints.
    Table,
    /// Metadata only, for metadata informers.
    Partial,
    PartialList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    /// For those who take nothing else: it is made from JSON, which we have at hand.
    Protobuf,
}

pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

impl Encoding {
    pub fn content_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => PROTOBUF,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub shape: Shape,
    pub encoding: Encoding,
    pub pretty: bool,
    /// The version that Tables and metadata are told in; they are the same in both.
    pub meta: &'static str,
}

/// One entry of an `Accept` header.
#[derive(Debug)]
struct Clause<'a> {
    media: &'a str,
    params: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl<'a> Clause<'a> {
    fn parse_all(header: &'a str) -> Vec<Clause<'a>> {
        let mut clauses: Vec<Clause<'a>> = header
            .split(',')
            .filter_map(|part| {
                let mut pieces = part.split(';').map(str::trim);
                let media = pieces.next().filter(|m| !m.is_empty())?;
                let params: Vec<_> = pieces.filter_map(|p| p.split_once('=')).collect();
                let quality = params.iter().find(|(k, _)| *k == "q").and_then(|(_, v)| v.parse().ok()).unwrap_or(1.0);
                Some(Clause { media, params, quality })
            })
            .collect();
        clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
        clauses
    }

    fn param(&self, key: &str) -> &'a str {
        self.params.iter().find(|(k, _)| *k == key).map_or("", |(_, v)| v)
    }

    fn encoding(&self) -> Option<Encoding> {
        match self.media {
            "*/*" | "application/*" | "application/json" => Some(Encoding::Json),
            "application/yaml" => Some(Encoding::Yaml),
            PROTOBUF => Some(Encoding::Protobuf),
            _ => None,
        }
    }

    fn accepted(&self, pretty: bool) -> Option<Accepted> {
        let meta = if self.param("v") == "v1beta1" { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" };
        let pretty = pretty || self.param("pretty") == "1";
        let (shape, encoding) = (self.shape()?, self.encoding()?);
        // A Table has no protobuf form.
        let exists = (shape, encoding) != (Shape::Table, Encoding::Protobuf);
        exists.then_some(Accepted { shape, encoding, pretty, meta })
    }

    fn shape(&self) -> Option<Shape> {
        match (self.param("as"), self.param("g"), self.param("v")) {
            ("", ..) => Some(Shape::Object),
            ("Table", "meta.k8s.io", "v1" | "v1beta1") => Some(Shape::Table),
            ("PartialObjectMetadata", "meta.k8s.io", "v1" | "v1beta1") => Some(Shape::Partial),
            ("PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => Some(Shape::PartialList),
            _ => None,
        }
    }
}

pub const OBJECT_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The first clause of `Accept` that we can satisfy. A protobuf client that lists JSON as well, as nearly all do, gets JSON
/// in the shape it prefers.
pub fn accept(header: Option<&str>, pretty: bool) -> Result<Accepted> {
    let header = header.filter(|h| !h.trim().is_empty()).unwrap_or("application/json");
    let clauses = Clause::parse_all(header);
    let mut possible = clauses.iter().filter_map(|c| c.accepted(pretty));
    let first = possible.clone().find(|a| a.encoding != Encoding::Protobuf);
    first.or_else(|| possible.next()).ok_or_else(|| ApiError::not_acceptable(OBJECT_TYPES))
}

/// For answers that are of one shape only (reviews, tokens, errors): refuses who wants nothing but another.
pub fn accept_whole(header: Option<&str>) -> Result<Encoding> {
    let header = header.filter(|h| !h.trim().is_empty()).unwrap_or("application/json");
    let clauses = Clause::parse_all(header);
    let mut fitting = clauses.iter().filter(|c| c.shape() == Some(Shape::Object)).filter_map(Clause::encoding);
    let first = fitting.clone().find(|e| *e != Encoding::Protobuf);
    first.or_else(|| fitting.next()).ok_or_else(|| ApiError::not_acceptable(OBJECT_TYPES))
}

/// For documents that are not objects (OpenAPI): the first of the client's wishes that is `offered` decides; where the
/// client takes anything, the first offer.
pub fn preferred<'o>(header: Option<&str>, offered: &[&'o str]) -> Option<&'o str> {
    let header = header.filter(|h| !h.trim().is_empty()).unwrap_or("*/*");
    Clause::parse_all(header).iter().find_map(|c| match c.media {
        "*/*" | "application/*" => offered.first().copied(),
        media => offered.iter().copied().find(|o| *o == media),
    })
}

/// For aggregated discovery: the first clause that is either it or plain JSON decides. Gives the version asked for.
pub fn aggregated_discovery(header: Option<&str>) -> Option<&'static str> {
    for clause in Clause::parse_all(header.unwrap_or("")) {
        if clause.media != "application/json" && clause.media != "*/*" {
            continue;
        }
        match (clause.param("g"), clause.param("v"), clause.param("as")) {
            ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList") => return Some("v2"),
            ("apidiscovery.k8s.io", "v2beta1", "APIGroupDiscoveryList") => return Some("v2beta1"),
            ("", "", "") => return None,
            _ => {}
        }
    }
    None
}

/// The form of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyForm {
    Json,
    Yaml,
    Protobuf,
}

pub fn body_form(content_type: Option<&str>) -> Result<BodyForm> {
    let media = content_type.unwrap_or("").split(';').next().unwrap_or("").trim();
    match media {
        "" | "application/json" => Ok(BodyForm::Json),
        "application/yaml" => Ok(BodyForm::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(BodyForm::Protobuf),
        _ => Err(ApiError::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: {OBJECT_TYPES}"
        ))),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchForm {
    Json,
    Merge,
    Strategic,
    ApplyYaml,
}

/// `strategic`: custom resources have no strategic merge.
pub fn patch_form(content_type: Option<&str>, strategic: bool) -> Result<PatchForm> {
    let media = content_type.unwrap_or("").split(';').next().unwrap_or("").trim();
    match media {
        "application/json-patch+json" => Ok(PatchForm::Json),
        "application/merge-patch+json" => Ok(PatchForm::Merge),
        "application/strategic-merge-patch+json" if strategic => Ok(PatchForm::Strategic),
        "application/apply-patch+yaml" => Ok(PatchForm::ApplyYaml),
        _ => {
            let mut known = vec!["application/json-patch+json", "application/merge-patch+json"];
            if strategic {
                known.push("application/strategic-merge-patch+json");
            }
            known.push("application/apply-patch+yaml");
            Err(ApiError::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                known.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_get_asks_for_a_table_first() {
        let header = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let first = accept(Some(header), false).unwrap();
        assert_eq!((first.shape, first.meta), (Shape::Table, "meta.k8s.io/v1"));
        let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json";
        let old = accept(Some(old), false).unwrap();
        assert_eq!((old.shape, old.meta), (Shape::Table, "meta.k8s.io/v1beta1"));
        let unknown = "application/json;as=Table;v=v2;g=meta.k8s.io, application/json";
        assert_eq!(accept(Some(unknown), false).unwrap().shape, Shape::Object);
    }

    #[test]
    fn a_protobuf_client_gets_json_if_it_takes_it_and_else_protobuf_but_never_as_a_table() {
        let encoding = |header: &str| accept(Some(header), false).map(|a| a.encoding);
        assert_eq!(encoding("application/vnd.kubernetes.protobuf,application/json").unwrap(), Encoding::Json);
        assert_eq!(encoding("application/vnd.kubernetes.protobuf").unwrap(), Encoding::Protobuf);
        assert_eq!(encoding("application/vnd.kubernetes.protobuf;stream=watch").unwrap(), Encoding::Protobuf);
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(accept(Some(table), false).unwrap_err().code, 406);
    }

    #[test]
    fn aggregated_discovery_is_given_only_to_those_who_prefer_it() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.9";
        assert_eq!(aggregated_discovery(Some(v2)), Some("v2"));
        assert_eq!(aggregated_discovery(Some("application/json")), None);
        assert_eq!(aggregated_discovery(None), None);
    }

    #[test]
    fn tables_are_told_in_the_version_asked_for() {
        let accepted = accept(Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io"), false).unwrap();
        assert_eq!((accepted.shape, accepted.meta), (Shape::Table, "meta.k8s.io/v1beta1"));
        assert_eq!(accept(None, false).unwrap().meta, "meta.k8s.io/v1");
    }

    #[test]
    fn what_has_one_shape_is_refused_to_who_wants_only_a_table() {
        assert_eq!(accept_whole(Some("application/json;as=Table;v=v1;g=meta.k8s.io")).unwrap_err().code, 406);
        assert!(accept_whole(Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json")).is_ok());
        assert!(accept_whole(None).is_ok());
    }

    #[test]
    fn custom_resources_take_no_strategic_merge() {
        let form = Some("application/strategic-merge-patch+json");
        assert_eq!(patch_form(form, true).unwrap(), PatchForm::Strategic);
        assert_eq!(patch_form(form, false).unwrap_err().code, 415);
    }
}
