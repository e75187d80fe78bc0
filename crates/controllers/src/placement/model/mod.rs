//! Nodes and pods as placement reads them: lowered once per change, small, comparable, and free of the API's types.

pub mod amounts;
pub mod lower;
pub mod node;
pub mod pod;
pub mod select;
pub mod shared;

pub use amounts::{Allocatable, Requests, Used};
pub use lower::Lowering;
pub use node::{Effect, Node, Taint};
pub use pod::{Aim, Links, Pod, PodTerm, Port, Said, Shape, Spread};
pub use select::{NodeTerm, Requirement, Selector};
pub use shared::{Interner, Shared};
