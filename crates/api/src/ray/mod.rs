//! `ray.io/v1`: RayCluster, the part of KubeRay's kind that queues and `usher up` read.
//!
//! The definition here is for servers that have no KubeRay: it knows fewer fields than KubeRay's and keeps the others as they
//! are. On a cluster with KubeRay the definition is KubeRay's, and nobody here touches it. RayJob and RayService are not here.

mod definitions;
pub mod keys;
pub mod ray_cluster;
pub mod status;

pub use definitions::definitions;
pub use ray_cluster::RayCluster;

pub const GROUP: &str = "ray.io";
pub const VERSION: &str = "v1";
pub const API_VERSION: &str = "ray.io/v1";
