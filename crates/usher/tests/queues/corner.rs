//! A corner of a cluster that many stories share, shown to each as a cluster of its own: its namespace `default` is one made for
//! the story, and names of queues, flavors, checks, classes and cohorts get a prefix on their way in and lose it on their way
//! out. What `usher up` does while a request is admitted is done here as well, by the same rules, and what the pods of a story
//! do is put into the words of simulated nodes.

use http::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use usher_api::kueue::rules;

/// For ever, as far as a story is concerned.
const LONG: &str = "1000h";
const CLUSTER_WIDE: [&str; 5] =
    ["clusterqueues", "resourceflavors", "admissionchecks", "workloadpriorityclasses", "cohorts"];

/// A client that sees its own corner of what `client` sees. `prefix` must occur nowhere else.
pub fn client_of(client: Client, prefix: &str) -> Client {
    let prefix = prefix.to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, prefix) = (client.clone(), prefix.clone());
        async move { carry(client, &prefix, request).await }
    });
    Client::new(service, "default")
}

async fn carry(client: Client, prefix: &str, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    let (mut parts, body) = request.into_parts();
    let watching = parts.uri.query().is_some_and(|query| query.contains("watch="));
    let bytes = body.collect_bytes().await?;
    let bytes = match serde_json::from_slice::<Value>(&bytes) {
        Ok(mut object) => {
            if parts.method == Method::POST {
                admit(parts.uri.path(), &mut object);
                if is_cluster_wide(parts.uri.path()) {
                    prepend(object.pointer_mut("/metadata/name"), prefix);
                }
            }
            dress(&mut object, "", prefix);
            serde_json::to_vec(&object).expect("json")
        }
        Err(_) => bytes.to_vec(),
    };
    parts.uri = place(&parts.uri, prefix);
    let response = client.send(Request::from_parts(parts, Body::from(bytes))).await?;
    if watching {
        return Ok(response);
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(http::header::CONTENT_LENGTH);
    let text = String::from_utf8_lossy(&body.collect_bytes().await?).replace(prefix, "");
    Ok(Response::from_parts(parts, Body::from(text.into_bytes())))
}

/// Where the story's object really is.
fn place(uri: &Uri, prefix: &str) -> Uri {
    let mut before = "";
    let mut segments = Vec::new();
    for segment in uri.path().split('/') {
        segments.push(match before {
            "namespaces" if segment == "default" => format!("{prefix}{segment}"),
            kind if CLUSTER_WIDE.contains(&kind) => format!("{prefix}{segment}"),
            "workloads" => segment.replace("-variant-", &format!("-variant-{prefix}")),
            _ => segment.to_owned(),
        });
        before = segment;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}{query}", segments.join("/")).parse().expect("a path")
}

fn is_cluster_wide(path: &str) -> bool {
    CLUSTER_WIDE.iter().any(|kind| path.ends_with(&format!("/{kind}")))
}

fn prepend(name: Option<&mut Value>, prefix: &str) {
    if let Some(Value::String(name)) = name
        && !name.is_empty()
    {
        name.insert_str(0, prefix);
    }
}

/// Gives every name of something that is not in the namespace its prefix.
fn dress(value: &mut Value, under: &str, prefix: &str) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let names = match key.as_str() {
                    "cohortName" | "clusterQueue" | "minFlavor" | "minVariant" | "lastAcceptableFlavorName" => true,
                    "kueue.x-k8s.io/priority-class" => true,
                    "name" => matches!(under, "flavors" | "admissionChecks" | "explicitVariants"),
                    _ => false,
                };
                match names {
                    true => prepend(Some(value), prefix),
                    false => dress(value, key, prefix),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                match item.is_string() {
                    true if matches!(under, "onFlavors" | "allowedResourceFlavors") => prepend(Some(item), prefix),
                    _ => dress(item, under, prefix),
                }
            }
        }
        _ => {}
    }
}

/// What happens to an object that is created.
fn admit(path: &str, object: &mut Value) {
    let plural = path.rsplit('/').next().unwrap_or_default();
    let around = rules::Surroundings { elastic_jobs: true, ..Default::default() };
    let owned = object.pointer("/metadata/ownerReferences/0/controller").is_some();
    match plural {
        "jobs" => rules::default_job(object, around),
        "rayclusters" if !owned => rules::default_ray_cluster(object, around),
        _ => {
            rules::default(plural, object);
        }
    }
    if matches!(plural, "jobs" | "rayclusters") {
        cast(object);
    }
}

/// Tells the pods of every template what to do: as the notes of our pretended node say it, in the words of simulated nodes.
fn cast(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if key == "template" { cast_template(value) } else { cast(value) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(cast),
        _ => {}
    }
}

fn cast_template(template: &mut Value) {
    let note = |name: &str| template.pointer("/metadata/annotations")?.get(name)?.as_str().map(str::to_owned);
    let fails = note("test/fails");
    let runs = match (note("test/runs").map(|secs| shorter(&secs)), &fails) {
        (None, _) => LONG.to_owned(),
        (Some(runs), None) => runs,
        // One that fails often does not get anywhere; here it takes long.
        (Some(runs), Some(which)) if which == "9@1" => format!("{runs},{LONG}"),
        (_, Some(which)) => panic!("simulated nodes cannot play test/fails: {which}"),
    };
    let stops = note("test/stops-after").map(|secs| shorter(&secs));
    let pending = note("test/pending").is_some();
    let fields = template.as_object_mut().expect("a template");
    let meta = fields.entry("metadata").or_insert_with(|| json!({}));
    meta["annotations"]["usher.dev/sim-duration"] = runs.into();
    if let Some(stops) = stops {
        meta["annotations"]["usher.dev/sim-stop-duration"] = stops.into();
    }
    if pending {
        fields["spec"]["schedulerName"] = "nobody".into();
    }
}

/// Real time is dear: of what is longer than ten seconds there is a tenth.
fn shorter(secs: &str) -> String {
    let secs: f64 = secs.parse().expect("seconds");
    format!("{}s", secs.min(10.0 + (secs - 10.0).max(0.0) / 10.0))
}
