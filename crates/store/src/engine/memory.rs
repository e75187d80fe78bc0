//! The engine that keeps nothing: the store's own memory is all there is, and ends with the process.

use super::{Change, CommitError, Engine, Record};
use crate::OpenError;

#[derive(Debug, Default)]
pub struct Memory;

impl Engine for Memory {
    fn blocks(&self) -> bool {
        false
    }

    fn compacted(&mut self) -> Result<u64, OpenError> {
        Ok(0)
    }

    fn replay(&mut self, _: &mut dyn FnMut(Record<'_>) -> Result<(), String>) -> Result<(), OpenError> {
        Ok(())
    }

    fn commit(&mut self, _: &Change<'_>) -> Result<(), CommitError> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        0
    }
}
