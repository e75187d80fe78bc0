//! The kinds that are served: each built-in kind is one file in `kinds/`.

pub mod catalog;
pub mod kind;
pub mod kinds;
pub mod meta;
pub mod names;
pub mod served;
pub mod table;
