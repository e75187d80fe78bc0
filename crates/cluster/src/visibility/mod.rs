//! `visibility.kueue.x-k8s.io` as an aggregated API: who waits in a queue, and in which place. [`caller`] says who asks,
//! [`path`] what is asked, [`answer`] answers.

pub mod answer;
pub mod caller;
pub mod path;

pub use answer::{Source, Visibility};
pub use caller::FrontProxy;
pub use path::Line;
