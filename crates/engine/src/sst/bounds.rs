//! The entries of an index block: where data blocks lie, and lower bounds of their keys.
//!
//! Owns their bytes, and the search among them. Promises that decoding what encoding gave is the same, that what was not encoded is nothing or leads nowhere but wrong, never out of
//! the block, and that what all bounds of a block begin with is there once. Must not know how blocks are read, nor whether the pages that it names are those of blocks.
//!
//! Bounds of one block lie close together, so most of each is what the others begin with, too; and data blocks follow one another, so that each begins where the one before ends. What is
//! left of an entry is a few bytes, and an index block leads to some hundreds of data blocks: the index of small rows stays in memory.
//!
//! ```text
//! page of the first data block (u32) | bytes of the prefix (u32) | prefix | what follows the prefix in each bound
//! | of each: end of that (u16), pages up to the end of its data block (u16) | how many there are (u32)
//! ```

use hedgerow_row::le_bytes::{u16_at, u32_at};

use super::format::{HEAD_BYTES, IndexBound, PAGE_BYTES, PageRange, RAW_BYTES_MAX};

const START_BYTES: usize = 8;
const PLACE_BYTES: usize = 4;
const COUNT_BYTES: usize = 4;
/// What an index block takes at most, unless it has one entry only.
const ROOM: usize = PAGE_BYTES - HEAD_BYTES;

/// Ends of what follows the prefix are numbers of 16 bits, where there are several; and so are the pages of one data block, of the largest row alone.
const _: () = assert!(ROOM <= u16::MAX as usize);
const _: () = assert!(RAW_BYTES_MAX / PAGE_BYTES < u16::MAX as usize);

/// How many bytes the one and the other have in common at their beginnings.
fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// How many of these, from the first on, go into one index block: one at least.
pub(super) fn fitting(bounds: &[IndexBound]) -> usize {
    let Some(first) = bounds.first() else { return 0 };
    let (mut prefix, mut bytes) = (first.bound.len(), 0);
    let mut fits = |(n, next): (usize, &IndexBound)| {
        prefix = prefix.min(common_bytes(&first.bound, &next.bound));
        bytes += next.bound.len();
        let suffixes = bytes - (n + 1) * prefix;
        let pages = next.pages.first + next.pages.count - first.pages.first;
        START_BYTES + prefix + suffixes + (n + 1) * PLACE_BYTES + COUNT_BYTES <= ROOM
            && pages <= u32::from(u16::MAX)
    };
    bounds.iter().enumerate().take_while(|&each| fits(each)).count().max(1)
}

/// Appends the entries of an index block, which [fit](fitting).
pub(super) fn put_bounds(bounds: &[IndexBound], out: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (bounds.first(), bounds.last()) else { return };
    // They rise, so that what the first and the last have in common all have.
    let prefix = common_bytes(&first.bound, &last.bound);
    out.extend(first.pages.first.to_le_bytes());
    out.extend((prefix as u32).to_le_bytes());
    out.extend_from_slice(&first.bound[..prefix]);
    bounds.iter().for_each(|each| out.extend_from_slice(&each.bound[prefix..]));
    let mut end = 0;
    for each in bounds {
        end += each.bound.len() - prefix;
        let pages = each.pages.first + each.pages.count - first.pages.first;
        out.extend((end as u16).to_le_bytes());
        out.extend((pages as u16).to_le_bytes());
    }
    out.extend((bounds.len() as u32).to_le_bytes());
}

/// The entries of an index block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<'b> {
    first_page: u32,
    prefix: &'b [u8],
    suffixes: &'b [u8],
    places: &'b [u8],
}

impl<'b> Bounds<'b> {
    /// Those of all of `bytes`, if these are an index block's: each entry is in them then.
    pub(super) fn of(bytes: &'b [u8]) -> Option<Bounds<'b>> {
        let bounds = Bounds::of_checked(bytes)?;
        let mut start = 0;
        let rise = (0..bounds.len()).all(|n| {
            let before = std::mem::replace(&mut start, bounds.suffix_end(n));
            before <= start
        });
        (rise && bounds.len() > 0 && start == bounds.suffixes.len()).then_some(bounds)
    }

    /// Those of bytes that [were](Bounds::of) an index block's.
    #[inline]
    pub(super) fn of_checked(bytes: &'b [u8]) -> Option<Bounds<'b>> {
        let (start, rest) = bytes.split_at_checked(START_BYTES)?;
        let (rest, count) = rest.split_at_checked(rest.len().checked_sub(COUNT_BYTES)?)?;
        let place_bytes = (u32_at(count, 0) as usize).checked_mul(PLACE_BYTES)?;
        let (rest, places) = rest.split_at_checked(rest.len().checked_sub(place_bytes)?)?;
        let (prefix, suffixes) = rest.split_at_checked(u32_at(start, 4) as usize)?;
        Some(Bounds { first_page: u32_at(start, 0), prefix, suffixes, places })
    }

    /// How many there are.
    pub(super) fn len(self) -> usize {
        self.places.len() / PLACE_BYTES
    }

    #[inline]
    fn suffix_end(self, n: usize) -> usize {
        usize::from(u16_at(self.places, n * PLACE_BYTES))
    }

    #[inline]
    fn suffix(self, n: usize) -> &'b [u8] {
        let start = if n == 0 { 0 } else { self.suffix_end(n - 1) };
        &self.suffixes[start..self.suffix_end(n)]
    }

    /// The `n`-th bound.
    pub(super) fn bound(self, n: usize) -> Vec<u8> {
        [self.prefix, self.suffix(n)].concat()
    }

    /// Where the `n`-th data block lies: of a block that was not [encoded](put_bounds) anywhere.
    pub(super) fn pages(self, n: usize) -> PageRange {
        let end = |n: usize| u32::from(u16_at(self.places, n * PLACE_BYTES + 2));
        let start = if n == 0 { 0 } else { end(n - 1) };
        let first = self.first_page.saturating_add(start);
        PageRange { first, count: end(n).saturating_sub(start) }
    }

    /// Of how many, from the first on, `is_before` holds of what follows the prefix, told with what follows it in `key`.
    #[inline]
    fn partition(self, key: &[u8], is_before: impl Fn(&[u8], &[u8]) -> bool) -> usize {
        let shared = key.len().min(self.prefix.len());
        match key[..shared].cmp(&self.prefix[..shared]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.len(),
            // All bounds are longer, and above it.
            std::cmp::Ordering::Equal if shared < self.prefix.len() => return 0,
            std::cmp::Ordering::Equal => {}
        }
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = (from + to) / 2;
            match is_before(self.suffix(middle), &key[shared..]) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    /// The data block that has the key if any has: the last whose bound is not above it, or the first.
    #[inline]
    pub(super) fn at_or_below(self, key: &[u8]) -> usize {
        self.partition(key, |bound, key| bound <= key).saturating_sub(1)
    }

    /// The data block that has the last key below `key` if any has, or the one after it.
    pub(super) fn below(self, key: &[u8]) -> usize {
        self.partition(key, |bound, key| bound < key).saturating_sub(1)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    fn of(keys: &[&[u8]]) -> Vec<IndexBound> {
        let pages = |n: usize| PageRange { first: 3 + 2 * n as u32, count: 2 };
        keys.iter().enumerate().map(|(n, &key)| IndexBound { pages: pages(n), bound: key.into() }).collect()
    }

    fn encoded(bounds: &[IndexBound]) -> Vec<u8> {
        let mut out = Vec::new();
        put_bounds(bounds, &mut out);
        out
    }

    #[test]
    fn golden_bounds() {
        let bytes = encoded(&of(&[b"ab", b"abc", b"ad"]));
        assert_eq!(
            bytes,
            [
                &[3, 0, 0, 0, 1, 0, 0, 0][..],
                b"a",
                b"bbcd",
                &[1, 0, 2, 0, 3, 0, 4, 0, 4, 0, 6, 0],
                &[3, 0, 0, 0]
            ]
            .concat()
        );
    }

    /// Keys of few letters, so that they begin alike, against a search of the keys themselves.
    #[test]
    fn all_that_was_put_in_is_found() {
        let mut random = Random::from_seed(7);
        let key = |random: &mut Random, bytes: u64| {
            (0..random.below(bytes + 1)).map(|_| b'a' + random.below(3) as u8).collect::<Vec<u8>>()
        };
        for round in 0..300 {
            let longest = [2, 6, 40, 2000][round % 4];
            let mut keys: Vec<Vec<u8>> =
                (0..1 + random.below(700)).map(|_| key(&mut random, longest)).collect();
            keys.sort();
            keys.dedup();
            let all = of(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut rest = &all[..];
            while !rest.is_empty() {
                let (these, behind) = rest.split_at(fitting(rest));
                rest = behind;
                let bytes = encoded(these);
                assert!(bytes.len() <= ROOM || these.len() == 1);
                let bounds = Bounds::of(&bytes).unwrap();
                assert_eq!(bounds.len(), these.len());
                for (n, each) in these.iter().enumerate() {
                    assert_eq!((bounds.bound(n).as_slice(), bounds.pages(n)), (&*each.bound, each.pages));
                }
                for _ in 0..20 {
                    let key = key(&mut random, longest);
                    let count = |is_before: fn(&[u8], &[u8]) -> bool| {
                        these.iter().filter(|each| is_before(&each.bound, &key)).count().saturating_sub(1)
                    };
                    assert_eq!(bounds.at_or_below(&key), count(|bound, key| bound <= key));
                    assert_eq!(bounds.below(&key), count(|bound, key| bound < key));
                }
            }
        }
    }

    /// Another entry would not have gone into the block.
    #[test]
    fn a_block_is_full() {
        let keys: Vec<Vec<u8>> = (0..5000u32).map(|n| [&[9; 40][..], &n.to_be_bytes()].concat()).collect();
        let all = of(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let count = fitting(&all);
        assert!(encoded(&all[..count]).len() <= ROOM && encoded(&all[..=count]).len() > ROOM);
        // The prefix, which is there once, has 42 bytes of each bound, and 2 are left, with 4 of its place.
        assert_eq!(count, (ROOM - START_BYTES - 42 - COUNT_BYTES) / 6);
    }

    /// Data blocks of the largest rows have thousands of pages: their ends are numbers of 16 bits, too.
    #[test]
    fn pages_are_counted_as_far_as_their_numbers_go() {
        let mut all = of(&[b"a", b"b", b"c", b"d"]);
        for (n, each) in all.iter_mut().enumerate() {
            each.pages = PageRange { first: 1 + 20_000 * n as u32, count: 20_000 };
        }
        assert_eq!(fitting(&all), 3);
        let bytes = encoded(&all[..3]);
        assert_eq!(Bounds::of(&bytes).unwrap().pages(2), PageRange { first: 40_001, count: 20_000 });
    }

    /// The longest key, alone in its block.
    #[test]
    fn one_bound_of_any_length_has_a_block() {
        let key = vec![7; 4 + crate::limits::KEY_BYTES_MAX];
        let all = of(&[&key]);
        assert_eq!(fitting(&all), 1);
        let bytes = encoded(&all);
        let bounds = Bounds::of(&bytes).unwrap();
        assert_eq!((bounds.bound(0), bounds.pages(0)), (key.clone(), all[0].pages));
        assert_eq!((bounds.at_or_below(&key), bounds.below(&key[..9])), (0, 0));
    }

    /// Whatever was changed or cut off: nothing, or entries within the block.
    #[test]
    fn what_was_not_encoded_leads_out_of_no_block() {
        let mut random = Random::from_seed(3);
        let keys: Vec<Vec<u8>> = (0..40u16).map(|n| [&[5; 6][..], &n.to_be_bytes()].concat()).collect();
        let whole = encoded(&of(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        let mut well_formed = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            bytes.truncate(bytes.len() - (random.below(4) * random.below(9)) as usize);
            let Some(bounds) = Bounds::of(&bytes) else { continue };
            well_formed += 1;
            for n in 0..bounds.len() {
                assert!(bounds.bound(n).len() <= bytes.len() && bounds.pages(n).count <= u32::from(u16::MAX));
            }
            let key = &keys[random.below(40) as usize];
            assert!(bounds.at_or_below(key) < bounds.len() && bounds.below(key) < bounds.len());
        }
        assert!(well_formed > 100);
        for bytes in [&[][..], &[0; 11], &[0; 12], &[255; 12], &[255; 40]] {
            assert!(Bounds::of(bytes).is_none());
        }
    }
}
