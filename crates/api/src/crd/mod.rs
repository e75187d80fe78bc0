//! Kinds of our own, declared once: the Rust type, what is written to the wire, the schema and the
//! CustomResourceDefinition come from one declaration.
//!
//! [`object!`], [`words!`] and [`kind!`] declare; [`Schema`] is what a field says about itself; [`Definition`] puts a kind's
//! schema, names and columns together. The schemas of embedded Kubernetes types are given by hand ([`embedded`]), because
//! deriving those of all of k8s-openapi costs a minute of build time. Nothing here checks an object: a server does that.

mod declare;
mod definition;
pub mod embedded;
mod omit;
mod schema;

pub(crate) use declare::{kind, object, words};
pub use definition::Definition;
pub use omit::Omit;
pub use schema::Schema;

/// `cohort_name` as the wire spells it: `cohortName`.
pub(crate) fn camel(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for c in name.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.extend(c.to_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}
