//! What is left out of the wire: what Go's `omitempty` leaves out of upstream's types.

use std::collections::BTreeMap;

use crate::quantity::Quantity;

pub trait Omit {
    /// Whether a field with this value is not written. Numbers, booleans, words and objects always are.
    fn omit(&self) -> bool {
        false
    }
}

impl Omit for String {
    fn omit(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Omit for Option<T> {
    fn omit(&self) -> bool {
        self.is_none()
    }
}

impl<T> Omit for Vec<T> {
    fn omit(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> Omit for BTreeMap<K, V> {
    fn omit(&self) -> bool {
        self.is_empty()
    }
}

impl Omit for bool {}
impl Omit for i32 {}
impl Omit for i64 {}
impl Omit for Quantity {}
impl Omit for k8s_openapi::api::core::v1::PodTemplateSpec {}
