//! This machine as a node: the pods bound to it run as processes. And simulated nodes, whose pods only seem to run.
//!
//! **Processes, not containers.** A container is a process of this machine with its command, environment, working directory,
//! volumes, output, exit code, restarts and grace period. The image is recorded, not pulled: an image's entrypoint is not
//! known, `args` alone are run as the command, and a container with neither waits with `CreateContainerError`. All pods share
//! the machine's network and address.
//!
//! **Volumes** are directories below `Options::pod_dir`. Where the machine permits it (root, or user namespaces), each container
//! has a mount namespace in which they are at their mount paths, on a root made of the machine's own directories ([`view`]).
//! Where it does not, `$USHER_VOLUMES` names a directory below which the mount paths are links.
//!
//! **Restarts of the node.** Every container runs under a shim ([`shim`]), this same binary, which writes its output and how it
//! ended below `Options::state_dir`, and outlives the node, whether that is killed or stopped: `usher up` leaves pods running, as
//! kubelet does, and finds them again by those records ([`record`]). What cannot be found is accounted for as failed with
//! `ContainerStatusUnknown`; nothing is run twice. A node that keeps nothing (`survives: false`) ends its pods with itself.
//! Run under a service manager, usher must be stopped alone (systemd: `KillMode=process`).
//!
//! **Whose rights.** Started as root, pods run as an unprivileged user and cannot read the data directory; `runAsUser` and
//! `runAsGroup` are honoured except for root. Pods of one user are not protected from each other. Started as a user, pods run with that
//! user's rights, and the log says so.
//!
//! Left out: images, network namespaces, seccomp and capabilities, ephemeral containers, attach and port-forward, size limits of
//! emptyDir, in-place resize, device plugins.
//!
//! Start reading at [`agent`], then [`decide`] (all choices, pure) and [`worker`] (all effects).

pub mod agent;
mod cgroup;
pub mod decide;
mod env;
mod events;
pub mod exec;
mod fd;
mod follow;
mod hooks;
mod launch;
mod log_file;
pub mod logs;
mod machine;
pub mod model;
mod probes;
mod reach;
mod record;
mod register;
pub mod shim;
pub mod sim;
mod status;
mod tls;
mod view;
mod volumes;
mod worker;
mod write;

pub use agent::{Node, Options, StartError};
pub use exec::ExecQuery;
pub use logs::LogQuery;
pub use record::{State, User};
