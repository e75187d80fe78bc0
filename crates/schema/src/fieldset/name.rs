//! Names of fields, kept in place when they are short, as nearly all are: a set of a few hundred of them is made and dropped
//! on every write, and would else be as many allocations.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

#[derive(Clone)]
pub struct Name(Kept);

const SHORT_BYTES: usize = 22;

#[derive(Clone)]
enum Kept {
    /// The length and the bytes, which are text.
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<str>),
}

impl Name {
    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Kept::Short(len, bytes) => &bytes[..usize::from(*len)],
            Kept::Long(text) => text.as_bytes(),
        }
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Name {
        let mut bytes = [0; SHORT_BYTES];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(text.as_bytes());
                Name(Kept::Short(len, bytes))
            }
            _ => Name(Kept::Long(text.into())),
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Kept::Short(..) => std::str::from_utf8(self.bytes()).unwrap_or_default(),
            Kept::Long(text) => text,
        }
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Name {}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_length_read_back_and_compare_as_text() {
        let texts = ["", "a", "b", "é", "exactly-22-bytes-long!", "exactly-23-bytes-long!!", "exactly-23-bytes-long!?"];
        for a in texts {
            assert_eq!(&*Name::from(a), a);
            for b in texts {
                assert_eq!(Name::from(a).cmp(&Name::from(b)), a.cmp(b), "{a} {b}");
                assert_eq!(Name::from(a) == Name::from(b), a == b);
            }
        }
    }
}
