//! TEMP
use crate::sync::Arc;
use super::{Index,Slot,NodeArena,Epoch,IndexFull,Decision};
pub struct IndexBuilder(Index, Arc<Epoch>);
impl IndexBuilder {
    pub fn new(arena: Arc<NodeArena>, epoch: Arc<Epoch>, _fill_percent: u32) -> IndexBuilder { IndexBuilder(Index::new(arena, epoch.clone()), epoch) }
    pub fn push(&mut self, key: &[u8], slot: Slot) -> Result<(), IndexFull> { self.0.upsert(key, &self.1.pin(), |_| (Decision::Store(slot), ())) }
    pub fn finish(self) -> Result<Index, IndexFull> { Ok(self.0) }
}
