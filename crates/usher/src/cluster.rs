//! How to reach a cluster that is already there: what `--kubeconfig` and `--context` mean.

use std::path::Path;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Without a file: `$KUBECONFIG`, `~/.kube/config`, or the service account of the pod this runs in. The error is a sentence.
pub async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, String> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(|e| e.to_string())?;
            Config::from_custom_kubeconfig(read, &options).await.map_err(|e| e.to_string())?
        }
        None if context.is_some() => Config::from_kubeconfig(&options).await.map_err(|e| e.to_string())?,
        None => Config::infer().await.map_err(|e| e.to_string())?,
    };
    // Watches are quiet for as long as nothing happens.
    config.read_timeout = None;
    Ok(config)
}
