//! Hashes of keys, which nobody can foretell.
//!
//! Owns [`HashSecret`], from which that of checksums follows, too. Promises that who does not know a device's secret cannot choose keys that share a hash: look-ups, chains of the index and iterator
//! buckets stay short whoever chooses the keys. Must not know where hashes lead.
//!
//! SipHash-1-3 (Aumasson and Bernstein 2012) of the key and then the number of its key space, four bytes. Hashes are in footers, so this function, the order of what it is
//! fed and the secret are parts of the format.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::seed::SeedSecret;
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
        let mut hasher = SipHasher13::new_with_key(&self.0.to_le_bytes());
        hasher.write(key);
        hasher.write_u32(space.number());
        hasher.finish()
    }

    /// What checksums begin with: hashes of one byte each, which are those of no key, since a key's end in the number of its key space.
    pub(crate) fn seed_secret(self) -> SeedSecret {
        SeedSecret([0, 1].map(|word| {
            let mut hasher = SipHasher13::new_with_key(&self.0.to_le_bytes());
            hasher.write_u8(word);
            hasher.finish()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are on the flash.
    #[test]
    fn hashes_keep_their_values() {
        let secret = HashSecret(0x0F0E_0D0C_0B0A_0908_0706_0504_0302_0100);
        let hashes = [&b"k"[..], b"1234567", b"12345678", &[7; 255]].map(|key| secret.hash(SpaceId(1), key));
        assert_eq!(hashes, GOLDEN);
        assert_ne!(secret.hash(SpaceId(2), b"k"), GOLDEN[0]);
        assert_eq!(format!("{secret:?}"), "HashSecret(..)");
        assert_eq!(secret.seed_secret().0, GOLDEN_SEED_SECRET);
    }

    const GOLDEN_SEED_SECRET: [u64; 2] = [14552427766023178899, 518569535017903986];
    const GOLDEN: [u64; 4] =
        [818011298358795816, 885422937055076424, 6122346174543437976, 2099251128128914654];
}
