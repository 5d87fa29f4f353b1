//! From a field's name to its position.
//!
//! Owns one small open-addressing table. It promises an answer in about one probe for names as people choose them, and in
//! at most as many probes as there are fields for names chosen to collide; hence no keyed hash. It must not know what a
//! field is beyond its name.

/// Up to this many fields a look-up compares one after the other.
const LINEAR_MAX: usize = 8;

/// Positions by the hash of the name. Empty for small schemas, which are searched one by one.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameIndex {
    /// 0, or the upper half of the hash in the upper 16 bits and position + 1 in the lower. A power of two long, at most
    /// half full.
    slots: Box<[u32]>,
}

impl NameIndex {
    /// Indexes `names`, whose number must stay below 65,535; they must differ.
    pub(crate) fn new<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> NameIndex {
        if names.len() <= LINEAR_MAX {
            return NameIndex::default();
        }
        let mut slots = vec![0u32; (2 * names.len()).next_power_of_two()].into_boxed_slice();
        for (position, name) in names.enumerate() {
            let hash = hash(name.as_bytes());
            let mut at = hash as usize & (slots.len() - 1);
            while slots[at] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = tag(hash) | (position as u32 + 1);
        }
        NameIndex { slots }
    }

    /// Whether there is nothing indexed: search one by one.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The position at which `is_it` finds `name`. Only for an index that is not empty.
    pub(crate) fn find(&self, name: &str, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = hash(name.as_bytes());
        let mut at = hash as usize & (self.slots.len() - 1);
        while self.slots[at] != 0 {
            let slot = self.slots[at];
            if slot & 0xFFFF_0000 == tag(hash) {
                let position = (slot & 0xFFFF) as usize - 1;
                if is_it(position) {
                    return Some(position);
                }
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }
}

fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 & 0xFFFF_0000
}

/// Eight bytes at a time, the last eight overlapping: no loop over single bytes for names of any length.
pub fn hash(name: &[u8]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |hash: u64, word: u64| {
        let product = (hash ^ word).wrapping_mul(ODD);
        product ^ (product >> 29)
    };
    let mut hash = (name.len() as u64).wrapping_mul(ODD);
    let mut rest = name;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        hash = mix(hash, u64::from_le_bytes(*word));
        rest = after;
    }
    let last = match (name.last_chunk::<8>(), rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        (Some(word), _, _) => u64::from_le_bytes(*word),
        (None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
        }
        _ => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    mix(hash, last)
}
