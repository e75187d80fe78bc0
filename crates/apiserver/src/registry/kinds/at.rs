//! A field's place, built without allocating: most objects are valid, so a path is only spelled out when there is an error.

use usher_schema::field::Path;

/// A place in an object: links back to the root on the stack. [`At::path`] spells it.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    Root(&'static str),
    Path(&'a Path),
    Child(&'a At<'a>, &'static str),
    Index(&'a At<'a>, usize),
    Key(&'a At<'a>, &'a str),
}

impl<'a> At<'a> {
    #[must_use]
    pub fn child(&'a self, name: &'static str) -> At<'a> {
        At::Child(self, name)
    }

    #[must_use]
    pub fn index(&'a self, index: usize) -> At<'a> {
        At::Index(self, index)
    }

    #[must_use]
    pub fn key(&'a self, key: &'a str) -> At<'a> {
        At::Key(self, key)
    }

    pub fn path(&self) -> Path {
        match self {
            At::Root(name) => Path::new(name),
            At::Path(path) => (*path).clone(),
            At::Child(parent, name) => parent.path().child(name),
            At::Index(parent, index) => parent.path().index(*index),
            At::Key(parent, key) => parent.path().key(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_spells_its_path() {
        let spec = At::Root("spec");
        let containers = spec.child("containers");
        assert_eq!(containers.index(2).child("env").key("A").path().as_str(), "spec.containers[2].env[A]");
    }
}
