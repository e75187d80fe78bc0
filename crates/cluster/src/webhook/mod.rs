//! Admission webhooks: [`review`] says what is answered, [`surroundings`] what is known of the namespace, [`answer`] is the
//! way from a request to its answer.

pub mod answer;
pub mod review;
pub mod surroundings;

pub use answer::Webhooks;
pub use surroundings::Around;
