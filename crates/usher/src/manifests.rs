//! `usher manifests`: prints what installs Usher on a cluster, for `kubectl apply -f -`. It talks to nobody.

use std::io::Write;

use clap::Args;
use usher_cluster::manifests::{Settings, all, yaml};

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  usher manifests --image registry.example/usher:1 | kubectl apply --server-side -f -\n  usher manifests --webhook-url https://192.0.2.7:9443 > usher.yaml\n\ndeploy/ holds the same for kustomize and Helm."
)]
pub struct ManifestsFlags {
    /// Where Usher is to live
    #[arg(long, value_name = "NAME", default_value = usher_cluster::names::NAMESPACE)]
    namespace: String,
    /// The image of Usher
    #[arg(long, value_name = "IMAGE", default_value_t = Settings::default().image)]
    image: String,
    /// How many copies; one of them leads
    #[arg(long, value_name = "N", default_value_t = Settings::default().replicas)]
    replicas: u32,
    /// Where the webhooks of an Usher that runs outside the cluster are reached [default: through a Service]
    #[arg(long, value_name = "URL")]
    webhook_url: Option<String>,
}

pub fn run(flags: ManifestsFlags) -> Result<(), String> {
    let ManifestsFlags { namespace, image, replicas, webhook_url } = flags;
    if webhook_url.as_ref().is_some_and(|url| !url.starts_with("https://")) {
        return Err("--webhook-url must begin with https://: API servers call webhooks in no other way".to_owned());
    }
    let text = yaml::stream(&all(&Settings { namespace, image, replicas, webhook_url }))?;
    // A reader that has seen enough is no problem of ours.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
