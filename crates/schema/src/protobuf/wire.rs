//! The protobuf wire format: tags, varints, lengths. Lengths are checked against what is there before anything is
//! taken, so a hostile one costs nothing.

use super::ProtoError;

#[derive(Clone, Copy)]
pub enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
    /// A group, obsolete; never a known field.
    Group,
}

impl<'a> Payload<'a> {
    pub fn bytes(self, field: &str) -> Result<&'a [u8], ProtoError> {
        match self {
            Payload::Bytes(bytes) => Ok(bytes),
            other => Err(other.unexpected(field)),
        }
    }

    pub fn varint(self, field: &str) -> Result<u64, ProtoError> {
        match self {
            Payload::Varint(value) => Ok(value),
            other => Err(other.unexpected(field)),
        }
    }

    pub fn fixed64(self, field: &str) -> Result<u64, ProtoError> {
        match self {
            Payload::Fixed64(value) => Ok(value),
            other => Err(other.unexpected(field)),
        }
    }

    fn unexpected(self, field: &str) -> ProtoError {
        let wire = match self {
            Payload::Varint(_) => 0,
            Payload::Fixed64(_) => 1,
            Payload::Bytes(_) => 2,
            Payload::Group => 3,
            Payload::Fixed32 => 5,
        };
        ProtoError::WireType { field: field.to_owned(), wire }
    }
}

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The next field's number and payload.
    pub fn next(&mut self) -> Result<Option<(u32, Payload<'a>)>, ProtoError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire) = self.tag()?;
        if wire == 4 {
            return Err(ProtoError::EndOfGroup);
        }
        Ok(Some((number, self.payload(wire)?)))
    }

    /// The next number of a packed list.
    pub fn packed(&mut self, fixed: bool) -> Result<Option<Payload<'a>>, ProtoError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.payload(u8::from(fixed)).map(Some)
    }

    fn tag(&mut self) -> Result<(u32, u8), ProtoError> {
        let tag = self.varint()?;
        match u32::try_from(tag >> 3) {
            Ok(number) if number != 0 => Ok((number, (tag & 7) as u8)),
            _ => Err(ProtoError::IllegalTag(tag)),
        }
    }

    fn payload(&mut self, wire: u8) -> Result<Payload<'a>, ProtoError> {
        match wire {
            0 => Ok(Payload::Varint(self.varint()?)),
            1 => {
                let bytes = self.take(8)?;
                Ok(Payload::Fixed64(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))))
            }
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| ProtoError::Truncated)?;
                Ok(Payload::Bytes(self.take(length)?))
            }
            3 => self.skip_group(),
            5 => self.take(4).map(|_| Payload::Fixed32),
            _ => Err(ProtoError::IllegalTag(u64::from(wire))),
        }
    }

    fn skip_group(&mut self) -> Result<Payload<'a>, ProtoError> {
        let mut open = 1u32;
        while open > 0 {
            match self.tag()? {
                (_, 3) => open += 1,
                (_, 4) => open -= 1,
                (_, wire) => {
                    self.payload(wire)?;
                }
            }
        }
        Ok(Payload::Group)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtoError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(ProtoError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn varint(&mut self) -> Result<u64, ProtoError> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().enumerate() {
            if i == 10 {
                return Err(ProtoError::Overflow);
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(ProtoError::Truncated)
    }
}
