//! Hashes of keys, which nobody can foretell.
//!
//! Owns [`HashSecret`]. Promises that who does not know a device's secret cannot choose keys that share a hash: look-ups, chains of the index and iterator
//! buckets stay short whoever chooses the keys. Must not know where hashes lead.
//!
//! SipHash-1-3 (Aumasson and Bernstein 2012) of the key and then the number of its key space, a byte. Hashes are in footers, so this function, the order of what it is
//! fed and the secret are parts of the format.

use std::fmt;

use crate::command::SpaceId;

/// What the hashes of a device's keys begin with. Drawn when the device is made, and kept in its superblock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashSecret(pub(crate) u128);

/// Not the secret: what is printed may get to those who choose keys.
impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(..)")
    }
}

impl HashSecret {
    /// The hash of a key of a key space.
    pub(crate) fn hash(self, space: SpaceId, key: &[u8]) -> u64 {
        let (k0, k1) = (self.0 as u64, (self.0 >> 64) as u64);
        let mut state = SipState([
            k0 ^ 0x736F_6D65_7073_6575,
            k1 ^ 0x646F_7261_6E64_6F6D,
            k0 ^ 0x6C79_6765_6E65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ]);
        let (words, rest) = key.as_chunks::<8>();
        for word in words {
            state.absorb(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[rest.len()] = space.number();
        if rest.len() == 7 {
            state.absorb(u64::from_le_bytes(last));
            last = [0; 8];
        }
        state.absorb(u64::from_le_bytes(last) | (key.len() as u64 + 1) << 56);
        state.finish()
    }
}

struct SipState([u64; 4]);

impl SipState {
    #[inline(always)]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        (*v1, *v3) = (v1.rotate_left(13) ^ *v0, v3.rotate_left(16) ^ *v2);
        *v0 = v0.rotate_left(32).wrapping_add(*v3);
        *v2 = v2.wrapping_add(*v1);
        (*v1, *v3) = (v1.rotate_left(17) ^ *v2, v3.rotate_left(21) ^ *v0);
        *v2 = v2.rotate_left(32);
    }

    #[inline(always)]
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xFF;
        for _ in 0..3 {
            self.round();
        }
        self.0.into_iter().fold(0, |all, word| all ^ word)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    /// The standard library's hasher is SipHash-1-3 with a secret of zeros, today.
    #[test]
    fn it_is_the_siphash_that_others_have() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 1..=255 {
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes[..len]);
            hasher.write(&[9]);
            assert_eq!(HashSecret(0).hash(SpaceId(9), &bytes[..len]), hasher.finish(), "{len}");
        }
    }

    /// They are on the flash.
    #[test]
    fn hashes_keep_their_values() {
        let secret = HashSecret(0x0F0E_0D0C_0B0A_0908_0706_0504_0302_0100);
        let hashes = [&b"k"[..], b"1234567", b"12345678", &[7; 255]].map(|key| secret.hash(SpaceId(1), key));
        assert_eq!(hashes, GOLDEN);
        assert_ne!(secret.hash(SpaceId(2), b"k"), GOLDEN[0]);
        assert_eq!(format!("{secret:?}"), "HashSecret(..)");
    }

    const GOLDEN: [u64; 4] =
        [7851179908614561589, 9380294406999978970, 5150321359408765191, 5580691347932092598];
}
