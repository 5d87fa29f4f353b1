//! Which leaf may have a key: the separators of leaves, in memory.
//!
//! Owns [`Separators`], which are gathered once, in the order of the leaves, and never changed. Promises to name the one leaf that may have a key. Must not know what a leaf is, nor where it is.
//!
//! Leaf `n` has the keys from separator `n` on and below separator `n + 1`. A separator is the shortest string that is above the last key before it and not above the first key behind it ([`separator`]), as in a
//! prefix B-tree (Bayer, Unterauer, "Prefix B-trees", 1977). [`FANOUT`] of them are a node: what they all begin with is kept once; of what follows eight bytes are a *head*, compared
//! as a number, and what is behind these is looked at only where heads are equal (Graefe, Larson, "B-tree indexes and CPU caches", 2001). A level above has the first separator of each node, and so on up to
//! a single node. A leaf takes eight bytes and one or two: a quarter of a byte for each of its keys.

/// Separators of a node: their heads take eight lines.
const FANOUT: usize = 64;

/// The shortest string that is above `below` and not above `first`, which is above `below`.
pub fn separator<'k>(below: &[u8], first: &'k [u8]) -> &'k [u8] {
    debug_assert!(below < first, "keys come in order");
    let common = below.iter().zip(first).take_while(|(one, other)| one == other).count();
    &first[..first.len().min(common + 1)]
}

/// The first eight bytes as a number that is ordered as they are; what is missing is zero.
fn head_of(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = bytes.len().min(8);
    head[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(head)
}

/// Whether a head says all of a string.
fn is_all_in_head(suffix: &[u8]) -> bool {
    suffix.len() <= 8 && suffix.last() != Some(&0)
}

/// What of a node is beside its heads, in its level's bytes: the prefix, and then all suffixes if heads do not say them.
#[derive(Debug, Clone, Copy)]
struct NodeBytes {
    start: u32,
    prefix_end: u32,
    /// The place of the node's first suffix among the level's, if it has any.
    suffixes: Option<u32>,
}

/// All nodes of one height.
#[derive(Debug, Default)]
struct SeparatorLevel {
    heads: Vec<u64>,
    nodes: Vec<NodeBytes>,
    bytes: Vec<u8>,
    /// Where suffixes end in `bytes`.
    suffix_ends: Vec<u32>,
    /// Those of the next node, end to end, and where each ends.
    pending: (Vec<u8>, Vec<u32>),
}

impl SeparatorLevel {
    /// Adds a separator. If it is the first of a node, it belongs to the level above as well.
    fn push(&mut self, separator: &[u8]) -> bool {
        if self.pending.1.len() == FANOUT {
            self.finish_node();
        }
        let (bytes, ends) = &mut self.pending;
        bytes.extend_from_slice(separator);
        ends.push(bytes.len() as u32);
        ends.len() == 1
    }

    fn finish_node(&mut self) {
        let (pending, ends) = std::mem::take(&mut self.pending);
        let all = |n: usize| &pending[if n == 0 { 0 } else { ends[n - 1] as usize }..ends[n] as usize];
        let Some(last) = ends.len().checked_sub(1) else { return };
        // In order: what the first and the last have in common all have.
        let prefix = all(0).iter().zip(all(last)).take_while(|(one, other)| one == other).count();
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&all(0)[..prefix]);
        let prefix_end = self.bytes.len() as u32;
        let suffixes = (0..ends.len()).map(|n| &all(n)[prefix..]);
        self.heads.extend(suffixes.clone().map(head_of));
        let are_in_heads = suffixes.clone().all(is_all_in_head);
        let first = self.suffix_ends.len() as u32;
        if !are_in_heads {
            for suffix in suffixes {
                self.bytes.extend_from_slice(suffix);
                self.suffix_ends.push(self.bytes.len() as u32);
            }
        }
        self.nodes.push(NodeBytes { start, prefix_end, suffixes: (!are_in_heads).then_some(first) });
    }

    fn finish(&mut self) {
        self.finish_node();
        let SeparatorLevel { heads, nodes, bytes, suffix_ends, pending } = self;
        *pending = Default::default();
        heads.shrink_to_fit();
        nodes.shrink_to_fit();
        bytes.shrink_to_fit();
        suffix_ends.shrink_to_fit();
    }

    /// How many separators of a node are not above `key`.
    fn not_above(&self, node: usize, key: &[u8]) -> usize {
        let of = self.nodes[node];
        let heads = &self.heads[node * FANOUT..self.heads.len().min((node + 1) * FANOUT)];
        let prefix = &self.bytes[of.start as usize..of.prefix_end as usize];
        let Some(suffix) = key.strip_prefix(prefix) else {
            return if key < prefix { 0 } else { heads.len() };
        };
        let head = head_of(suffix);
        let mut count = heads.partition_point(|other| *other <= head);
        while count > 0 && heads[count - 1] == head && self.is_above(of, count - 1, head, suffix) {
            count -= 1;
        }
        count
    }

    /// Whether a separator whose head is that of a suffix is above it.
    fn is_above(&self, of: NodeBytes, n: usize, head: u64, suffix: &[u8]) -> bool {
        match of.suffixes {
            None => {
                let own = 8 - head.trailing_zeros() as usize / 8;
                head.to_be_bytes()[..own] > *suffix
            }
            Some(first) => {
                let (at, start) = (first as usize + n, of.prefix_end as usize);
                let start = if n == 0 { start } else { self.suffix_ends[at - 1] as usize };
                self.bytes[start..self.suffix_ends[at] as usize] > *suffix
            }
        }
    }

    /// Of a level with a finished node.
    fn first_separator(&self) -> Vec<u8> {
        let of = self.nodes[0];
        let prefix = &self.bytes[of.start as usize..of.prefix_end as usize];
        let head = self.heads[0].to_be_bytes();
        let suffix = match of.suffixes {
            None => &head[..8 - (self.heads[0].trailing_zeros() as usize / 8).min(8)],
            Some(first) => &self.bytes[of.prefix_end as usize..self.suffix_ends[first as usize] as usize],
        };
        [prefix, suffix].concat()
    }

    fn memory_bytes(&self) -> usize {
        self.heads.capacity() * 8
            + self.nodes.capacity() * size_of::<NodeBytes>()
            + self.bytes.capacity()
            + self.suffix_ends.capacity() * 4
    }
}

/// The separators of leaves, or of whatever else has keys in order.
#[derive(Debug, Default)]
pub struct Separators {
    /// The lowest first; the last has one node.
    levels: Vec<SeparatorLevel>,
    count: usize,
}

/// Gathers separators in order.
#[derive(Debug, Default)]
pub struct SeparatorsBuilder {
    levels: Vec<SeparatorLevel>,
    count: usize,
}

impl SeparatorsBuilder {
    /// Adds that of the next leaf. It is above all before it.
    pub fn push(&mut self, separator: &[u8]) {
        self.count += 1;
        for at in 0.. {
            if self.levels.len() == at {
                self.levels.push(SeparatorLevel::default());
            }
            let begins_node = self.levels[at].push(separator);
            // The topmost level has one node: it needs none above it before it has a second.
            let is_first = self.levels.len() == at + 1 && self.levels[at].nodes.is_empty();
            if !begins_node || is_first {
                return;
            }
            if self.levels.len() == at + 1 {
                let first = self.levels[at].first_separator();
                let mut above = SeparatorLevel::default();
                above.push(&first);
                self.levels.push(above);
            }
        }
    }

    /// All of them.
    pub fn finish(mut self) -> Separators {
        self.levels.iter_mut().for_each(SeparatorLevel::finish);
        Separators { levels: self.levels, count: self.count }
    }
}

impl Separators {
    /// The last whose separator is not above `key`; `None` if all are.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let mut node = 0;
        for level in self.levels.iter().rev() {
            node = node * FANOUT + level.not_above(node, key).checked_sub(1)?;
        }
        (self.count > 0).then_some(node)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.levels.iter().map(SeparatorLevel::memory_bytes).sum::<usize>()
            + self.levels.capacity() * size_of::<SeparatorLevel>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(all: &[Vec<u8>], asked: impl Iterator<Item = Vec<u8>>) -> Separators {
        let mut builder = SeparatorsBuilder::default();
        all.iter().for_each(|separator| builder.push(separator));
        let separators = builder.finish();
        for key in asked {
            let expected = all.partition_point(|separator| *separator <= key).checked_sub(1);
            assert_eq!(separators.find(&key), expected, "{key:?}");
        }
        separators
    }

    /// Each separator, and what lies next to it on both sides.
    fn around(all: &[Vec<u8>]) -> impl Iterator<Item = Vec<u8>> {
        all.iter().flat_map(|separator| {
            let mut below = separator.clone();
            match below.pop() {
                Some(0) | None => {}
                Some(last) => below.extend([last - 1, 0xff, 0xff]),
            }
            let with = |more: &[u8]| [separator, more].concat();
            let shorter = separator[..separator.len().saturating_sub(2)].to_vec();
            [separator.clone(), below, shorter, with(&[0]), with(&[0; 9]), with(&[0xff])]
        })
    }

    #[test]
    fn the_leaf_that_may_have_a_key_is_found() {
        for count in [0, 1, 2, 63, 64, 65, 128, 129, 4_096, 4_097, 10_000] {
            let users: Vec<Vec<u8>> =
                (0..count).map(|n: u32| format!("\0\0\0\x01user{:08}", n * 7).into_bytes()).collect();
            let separators = check(&users, around(&users).chain([b"".to_vec(), vec![0xff; 20]]));
            assert_eq!(separators.count(), count as usize);
        }
        let mut nasty: Vec<Vec<u8>> = (0..3_000u32)
            .map(|n| match n % 5 {
                0 => vec![0; n as usize % 40],
                1 => n.to_be_bytes().repeat(1 + n as usize % 4),
                2 => [b"a common beginning of many bytes".as_slice(), &n.to_be_bytes()].concat(),
                3 => vec![n as u8; n as usize % 23],
                _ => (u64::from(n) << 40).to_be_bytes().to_vec(),
            })
            .collect();
        nasty.sort();
        nasty.dedup();
        check(&nasty, around(&nasty));
        check(&[vec![]], around(&[vec![1]]));
    }

    #[test]
    fn a_separator_is_short_and_parts() {
        for (below, first, expected) in
            [("abc", "abd", "abd"), ("ab", "abxyz", "abx"), ("", "zebra", "z"), ("apple", "b", "b")]
        {
            assert_eq!(separator(below.as_bytes(), first.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn a_leaf_takes_ten_bytes() {
        let mut builder = SeparatorsBuilder::default();
        let leaves = 100_000;
        for n in 0..leaves {
            builder.push(format!("\0\0\0\x01user{:09}", n * 999).as_bytes());
        }
        let bytes = builder.finish().memory_bytes();
        assert!(bytes <= leaves * 10, "{bytes} of {leaves}");
    }
}
