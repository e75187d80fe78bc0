//! Where a webhook listens: a URL, or a Service by name.

use http::Uri;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use serde_json::Value;
use usher_store::Store;

use crate::object::Object;
use crate::stored;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `host:port` as errors show it.
    pub authority: String,
    pub path: String,
    /// The name its certificate must be valid for.
    pub server_name: String,
    pub place: Place,
    /// PEM of the authorities it is trusted by.
    pub roots: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Host { host: String, port: u16 },
    Service { namespace: String, name: String, port: u16 },
}

impl Endpoint {
    /// `own_ca` is trusted where the configuration names no authority: there are no system roots here.
    pub fn new(config: &WebhookClientConfig, own_ca: &str) -> Result<Endpoint, String> {
        let roots = config.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).filter(|bundle| !bundle.is_empty());
        let roots = roots.unwrap_or_else(|| own_ca.as_bytes().to_vec());
        if let Some(service) = &config.service {
            let port = service.port.unwrap_or(443);
            let port = u16::try_from(port).map_err(|_| format!("invalid service port {port}"))?;
            let server_name = format!("{}.{}.svc", service.name, service.namespace);
            return Ok(Endpoint {
                authority: format!("{server_name}:{port}"),
                path: absolute(service.path.as_deref().unwrap_or("")),
                server_name,
                place: Place::Service { namespace: service.namespace.clone(), name: service.name.clone(), port },
                roots,
            });
        }
        let url = config.url.as_deref().unwrap_or("");
        if url.is_empty() {
            return Err("webhook configuration must have either service or URL".to_owned());
        }
        let uri: Uri = url.parse().map_err(|e| format!("Unparsable URL: {e}"))?;
        let host = uri.host().unwrap_or("").trim_start_matches('[').trim_end_matches(']').to_owned();
        if uri.scheme_str() != Some("https") || host.is_empty() {
            return Err(format!("{url:?} is not an https URL with a host"));
        }
        Ok(Endpoint {
            authority: uri.authority().map_or_else(|| host.clone(), ToString::to_string),
            path: absolute(uri.path()),
            server_name: host.clone(),
            place: Place::Host { host, port: uri.port_u16().unwrap_or(443) },
            roots,
        })
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

impl Place {
    /// What to connect to now. There is no cluster network: a Service is where its Endpoints are, what it is an external name
    /// for, or its cluster address; failing these its name may be known to this machine.
    pub fn address(&self, store: &Store) -> Result<(String, u16), String> {
        let (namespace, name, port) = match self {
            Place::Host { host, port } => return Ok((host.clone(), *port)),
            Place::Service { namespace, name, port } => (namespace, name, *port),
        };
        let read = |collection: &str| -> Option<Object> {
            let entry = store.get(collection, &stored::key(namespace, name))?;
            serde_json::from_slice(&entry.value).ok()
        };
        let text = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_str).unwrap_or("").to_owned();
        let by_name = format!("{name}.{namespace}.svc");
        let Some(service) = read("core/services") else { return Ok((by_name, port)) };
        if text(&service, "/spec/type") == "ExternalName" {
            return Ok((text(&service, "/spec/externalName"), port));
        }
        let ports = service.pointer("/spec/ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let Some(wanted) = ports.iter().find(|p| p.get("port").and_then(Value::as_u64) == Some(port.into())) else {
            return Err(format!("no service port {port} found for service {name:?}"));
        };
        if let Some(found) = read("core/endpoints").and_then(|e| endpoint_address(&e, &text(wanted, "/name"))) {
            return Ok(found);
        }
        match text(&service, "/spec/clusterIP").as_str() {
            "" | "None" => Ok((by_name, port)),
            address => Ok((address.to_owned(), port)),
        }
    }

    /// What the lookup of its name is about when it fails.
    pub fn unknown(&self) -> Option<String> {
        match self {
            Place::Host { .. } => None,
            Place::Service { name, .. } => Some(format!("service {name:?} not found")),
        }
    }
}

fn endpoint_address(endpoints: &Object, port_name: &str) -> Option<(String, u16)> {
    endpoints.get("subsets")?.as_array()?.iter().find_map(|subset| {
        let host = subset.pointer("/addresses/0/ip")?.as_str()?;
        let mut ports = subset.get("ports")?.as_array()?.iter();
        let port = ports.find(|p| p.get("name").and_then(Value::as_str).unwrap_or("") == port_name)?;
        Some((host.to_owned(), u16::try_from(port.get("port")?.as_u64()?).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::json;
    use usher_store::{Expect, Op};

    fn endpoint(config: Value) -> Result<Endpoint, String> {
        Endpoint::new(&serde_json::from_value(config).unwrap(), "own")
    }

    #[test]
    fn urls_and_services_become_endpoints() {
        let url = endpoint(json!({"url": "https://127.0.0.1:8443/mutate?x=1"})).unwrap();
        assert_eq!((url.authority.as_str(), url.path.as_str()), ("127.0.0.1:8443", "/mutate"));
        assert_eq!((url.server_name.as_str(), url.roots.as_slice()), ("127.0.0.1", b"own".as_slice()));
        let v6 = endpoint(json!({"url": "https://[::1]/"})).unwrap();
        assert_eq!(v6.place, Place::Host { host: "::1".to_owned(), port: 443 });

        let service = endpoint(json!({"service": {"namespace": "ns", "name": "s", "path": "p"}, "caBundle": "eA=="}));
        let service = service.unwrap();
        assert_eq!((service.authority.as_str(), service.path.as_str()), ("s.ns.svc:443", "/p"));
        assert_eq!((service.server_name.as_str(), service.roots.as_slice()), ("s.ns.svc", b"x".as_slice()));

        for bad in [json!({}), json!({"url": "http://x/"}), json!({"url": "https://"}), json!({"url": "::"})] {
            assert!(endpoint(bad.clone()).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_service_is_where_its_objects_say() {
        let store = Store::open_memory(usher_store::Options::default());
        let put = async |collection: &str, object: Value| {
            let value = Bytes::from(object.to_string());
            store.write(collection, "ns/s", Op::Put(value), Expect::Any).await.unwrap();
        };
        let place = Place::Service { namespace: "ns".into(), name: "s".into(), port: 443 };
        let at = |host: &str, port: u16| Ok((host.to_owned(), port));
        assert_eq!(place.address(&store), at("s.ns.svc", 443));
        put("core/services", json!({"spec": {"type": "ExternalName", "externalName": "localhost"}})).await;
        assert_eq!(place.address(&store), at("localhost", 443));
        put("core/services", json!({"spec": {"ports": [{"port": 80}]}})).await;
        assert_eq!(place.address(&store), Err("no service port 443 found for service \"s\"".to_owned()));
        put("core/services", json!({"spec": {"clusterIP": "None", "ports": [{"port": 443}]}})).await;
        assert_eq!(place.address(&store), at("s.ns.svc", 443));
        put("core/services", json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]}})).await;
        assert_eq!(place.address(&store), at("10.0.0.1", 443));
        put("core/endpoints", json!({"subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 9443}]}]}))
            .await;
        assert_eq!(place.address(&store), at("127.0.0.1", 9443));
    }
}
