//! One line of the log and its bytes.
//!
//! Layout, integers little-endian: kind (1 byte: 1 put, 2 delete), create revision (8), length of the collection's
//! name (4), length of the key (4), name, key, value to the end. The record's own revision is its key in the table.

use super::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    pub revision: u64,
    pub kind: Kind,
    pub collection: &'a str,
    pub key: &'a str,
    pub create_revision: u64,
    /// Empty for a delete: what was deleted is in the key's record before.
    pub value: &'a [u8],
}

const HEAD: usize = 1 + 8 + 4 + 4;

impl<'a> Record<'a> {
    pub(super) fn encoded_len(&self) -> usize {
        HEAD + self.collection.len() + self.key.len() + self.value.len()
    }

    /// Fills `out`, which is `encoded_len` long. Fails when a name is longer than its length field can tell.
    pub(super) fn encode(&self, out: &mut [u8]) -> Result<(), String> {
        let name_len = |s: &str| u32::try_from(s.len()).map_err(|_| "name longer than 4 GiB".to_string());
        let parts: [&[u8]; 7] = [
            &[match self.kind {
                Kind::Put => 1,
                Kind::Delete => 2,
            }],
            &self.create_revision.to_le_bytes(),
            &name_len(self.collection)?.to_le_bytes(),
            &name_len(self.key)?.to_le_bytes(),
            self.collection.as_bytes(),
            self.key.as_bytes(),
            self.value,
        ];
        let mut rest = out;
        for part in parts {
            let (slot, tail) = rest.split_at_mut(part.len());
            slot.copy_from_slice(part);
            rest = tail;
        }
        Ok(())
    }

    pub(super) fn decode(revision: u64, bytes: &'a [u8]) -> Result<Record<'a>, String> {
        Self::parse(revision, bytes).ok_or_else(|| format!("record {revision} is malformed"))
    }

    fn parse(revision: u64, bytes: &'a [u8]) -> Option<Record<'a>> {
        let (kind, rest) = bytes.split_first()?;
        let kind = match kind {
            1 => Kind::Put,
            2 => Kind::Delete,
            _ => return None,
        };
        let (create_revision, rest) = rest.split_first_chunk()?;
        let (collection_len, rest) = rest.split_first_chunk()?;
        let (key_len, rest) = rest.split_first_chunk()?;
        let (collection, rest) = rest.split_at_checked(u32::from_le_bytes(*collection_len) as usize)?;
        let (key, value) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
        Some(Record {
            revision,
            kind,
            collection: str::from_utf8(collection).ok()?,
            key: str::from_utf8(key).ok()?,
            create_revision: u64::from_le_bytes(*create_revision),
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record<'static> =
        Record { revision: 7, kind: Kind::Put, collection: "jobs", key: "a/b", create_revision: 3, value: b"value" };

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = vec![0; record.encoded_len()];
        record.encode(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        assert_eq!(Record::decode(7, &encoded(&RECORD)), Ok(RECORD));
        let tombstone = Record { kind: Kind::Delete, value: b"", ..RECORD };
        assert_eq!(Record::decode(7, &encoded(&tombstone)), Ok(tombstone));
    }

    #[test]
    fn a_record_cut_inside_its_head_or_names_is_refused() {
        let bytes = encoded(&RECORD);
        for len in 0..bytes.len() - RECORD.value.len() {
            assert_eq!(Record::decode(7, &bytes[..len]), Err("record 7 is malformed".to_string()), "cut at {len}");
        }
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut bytes = encoded(&RECORD);
        bytes[0] = 9;
        assert!(Record::decode(7, &bytes).is_err());
    }
}
