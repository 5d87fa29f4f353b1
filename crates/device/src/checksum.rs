//! CRC-32C (Castagnoli), whole or by the block.
//!
//! Owns the choice of instruction. Promises the same sums on every machine. The processor's crc instruction has a latency
//! of three cycles and a throughput of one, so a lone chain of it runs at a third of its speed: blocks are summed four
//! at a time, which takes a row of 1 KB to the throughput limit of the instruction (128 steps, 35 ns at 3.6 GHz).
#![allow(unsafe_code)]

/// Continues the CRC-32C `seed` over `bytes`; a seed of 0 starts one. `crc32c(crc32c(0, a), b)` is the sum of `a` then `b`.
#[inline]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // Short inputs are summed here; long ones by the crate, which splits them into three and joins the sums.
    if bytes.len() <= SHORT_BYTES
        && let Some(sum) = imp::short(seed, bytes)
    {
        return sum;
    }
    ::crc32c::crc32c_append(seed, bytes)
}

/// Up to here the crate's three chains and their joining are slower than what is here.
const SHORT_BYTES: usize = 256;

/// Sums each block of `block_bytes` on its own (seed 0) into `out`; the last block may be short.
///
/// # Panics
/// `block_bytes` is not 0, and `out` has exactly one place per block.
#[inline]
pub fn crc32c_blocks(bytes: &[u8], block_bytes: usize, out: &mut [u32]) {
    assert!(block_bytes != 0, "a block has bytes");
    assert_eq!(out.len(), bytes.len().div_ceil(block_bytes), "one sum per block");
    if block_bytes.is_multiple_of(8) && imp::blocks(bytes, block_bytes, out) {
        return;
    }
    for (block, sum) in bytes.chunks(block_bytes).zip(out) {
        *sum = crc32c(0, block);
    }
}

/// The generic halves over a machine's three instructions: one step of eight bytes, of four, of one.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! chains {
    ($feature:literal, $word:expr, $half:expr, $byte:expr) => {
        /// One chain over `bytes`.
        #[inline]
        #[target_feature(enable = $feature)]
        fn one(seed: u32, bytes: &[u8]) -> u32 {
            let (words, rest) = bytes.as_chunks::<8>();
            let mut sum = !seed;
            for word in words {
                sum = $word(sum, u64::from_le_bytes(*word));
            }
            let (halves, rest) = rest.as_chunks::<4>();
            for half in halves {
                sum = $half(sum, u32::from_le_bytes(*half));
            }
            for byte in rest {
                sum = $byte(sum, *byte);
            }
            !sum
        }

        /// `N` chains in step over `N` blocks from the front of `bytes`, of `block_bytes` each but for the last, which may
        /// be short.
        #[inline]
        #[target_feature(enable = $feature)]
        fn several<const N: usize>(bytes: &[u8], block_bytes: usize, out: &mut [u32]) {
            let mut blocks = [bytes; N];
            for (n, block) in blocks.iter_mut().enumerate() {
                *block = &bytes[n * block_bytes..((n + 1) * block_bytes).min(bytes.len())];
            }
            // In step as far as the last one goes: by lines of eight words, where bounds are checked once a line and the steps
            // of a line are unrolled, then by words.
            let in_step = blocks[N - 1].len() / 64;
            let mut sums = [!0u32; N];
            let mut lines: [&[[u8; 8]]; N] = [&[]; N];
            for l in 0..in_step {
                for n in 0..N {
                    lines[n] = blocks[n][l * 64..][..64].as_chunks::<8>().0;
                }
                for i in 0..8 {
                    for n in 0..N {
                        sums[n] = $word(sums[n], u64::from_le_bytes(lines[n][i]));
                    }
                }
            }
            let words = blocks[N - 1].len() / 8;
            for w in in_step * 8..words {
                for n in 0..N {
                    let mut word = [0; 8];
                    word.copy_from_slice(&blocks[n][w * 8..][..8]);
                    sums[n] = $word(sums[n], u64::from_le_bytes(word));
                }
            }
            for n in 0..N {
                out[n] = one(!sums[n], &blocks[n][words * 8..]);
            }
        }

        #[target_feature(enable = $feature)]
        fn by_block(bytes: &[u8], block_bytes: usize, out: &mut [u32]) {
            let (mut bytes, mut out) = (bytes, out);
            while out.len() > 4 {
                let (front, rest) = bytes.split_at(4 * block_bytes);
                several::<4>(front, block_bytes, out);
                (bytes, out) = (rest, &mut out[4..]);
            }
            match out.len() {
                4 => several::<4>(bytes, block_bytes, out),
                3 => several::<3>(bytes, block_bytes, out),
                2 => several::<2>(bytes, block_bytes, out),
                1 => several::<1>(bytes, block_bytes, out),
                _ => {}
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi64_si128,
        _mm_cvtsi128_si64, _mm_xor_si128,
    };

    chains!(
        "sse4.2",
        |sum: u32, word: u64| _mm_crc32_u64(u64::from(sum), word) as u32,
        _mm_crc32_u32,
        _mm_crc32_u8
    );

    #[inline]
    pub(super) fn short(seed: u32, bytes: &[u8]) -> Option<u32> {
        if let Ok(block) = bytes.try_into()
            && is_x86_feature_detected!("sse4.2")
            && is_x86_feature_detected!("pclmulqdq")
        {
            // SAFETY: the features were just found.
            return Some(unsafe { block_of_256(seed, block) });
        }
        // SAFETY: the feature was just found.
        is_x86_feature_detected!("sse4.2").then(|| unsafe { one(seed, bytes) })
    }

    /// A lone block, by four chains over a quarter each: 40 steps of latency, not 96. Sums are linear: those of the first
    /// three are moved over the bytes behind them, by a product with a power of x, into the last word of the fourth.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn block_of_256(seed: u32, block: &[u8; 256]) -> u32 {
        /// x^(8n - 33) modulo the polynomial, bits reversed, for the n bytes behind a quarter: 33 for the width of the
        /// product and the step that reduces it.
        const BEHIND: [i64; 3] = [POWERS[0] as i64, POWERS[1] as i64, POWERS[2] as i64];
        const POWERS: [u32; 3] =
            [power_of_x(8 * 192 - 33), power_of_x(8 * 128 - 33), power_of_x(8 * 64 - 33)];
        let (words, _) = block.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let mut sums = [u64::from(!seed), 0, 0, 0];
        for i in 0..7 {
            for (quarter, sum) in sums.iter_mut().enumerate() {
                *sum = _mm_crc32_u64(*sum, word(quarter * 8 + i));
            }
        }
        let moved = |quarter: usize| -> __m128i {
            let sum = _mm_crc32_u64(sums[quarter], word(quarter * 8 + 7));
            _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(sum as i64), _mm_cvtsi64_si128(BEHIND[quarter]))
        };
        let all = _mm_xor_si128(_mm_xor_si128(moved(0), moved(1)), moved(2));
        !(_mm_crc32_u64(sums[3], word(31) ^ _mm_cvtsi128_si64(all) as u64) as u32)
    }

    /// x^n modulo the polynomial, bits reversed.
    const fn power_of_x(n: u32) -> u32 {
        /// Castagnoli's, bits reversed.
        const POLYNOMIAL: u32 = 0x82F6_3B78;
        let (mut power, mut i) = (0x8000_0000u32, 0);
        while i < n {
            power = (power >> 1) ^ (POLYNOMIAL * (power & 1));
            i += 1;
        }
        power
    }

    #[inline]
    pub(super) fn blocks(bytes: &[u8], block_bytes: usize, out: &mut [u32]) -> bool {
        let found = is_x86_feature_detected!("sse4.2");
        if found {
            // SAFETY: the feature was just found.
            unsafe { by_block(bytes, block_bytes, out) };
        }
        found
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use std::arch::aarch64::{__crc32cb, __crc32cd, __crc32cw};
    use std::arch::is_aarch64_feature_detected;

    chains!("crc", __crc32cd, __crc32cw, __crc32cb);

    #[inline]
    pub(super) fn short(seed: u32, bytes: &[u8]) -> Option<u32> {
        // SAFETY: the feature was just found.
        is_aarch64_feature_detected!("crc").then(|| unsafe { one(seed, bytes) })
    }

    #[inline]
    pub(super) fn blocks(bytes: &[u8], block_bytes: usize, out: &mut [u32]) -> bool {
        let found = is_aarch64_feature_detected!("crc");
        if found {
            // SAFETY: the feature was just found.
            unsafe { by_block(bytes, block_bytes, out) };
        }
        found
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    pub(super) fn short(_seed: u32, _bytes: &[u8]) -> Option<u32> {
        None
    }

    pub(super) fn blocks(_bytes: &[u8], _block_bytes: usize, _out: &mut [u32]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
        (0..len).map(|_| random.next_u64() as u8).collect()
    }

    #[test]
    fn golden_sums() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(0, &std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46dd_794e);
        assert_eq!(crc32c(0, &std::array::from_fn::<u8, 32, _>(|i| 31 - i as u8)), 0x113f_db5c);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, b""), 0);
    }

    #[test]
    fn sums_agree_with_the_crate_at_every_length_and_split() {
        let mut random = Random::from_seed(1);
        let lengths = (0..600).chain([1_000, 4_096, 70_001]);
        for len in lengths.filter(|len| !cfg!(miri) || [0, 5, 64, 255, 256, 257, 530].contains(len)) {
            let bytes = random_bytes(&mut random, len);
            let whole = ::crc32c::crc32c(&bytes);
            assert_eq!(crc32c(0, &bytes), whole, "length {len}");
            let seed = random.next_u64() as u32;
            assert_eq!(
                crc32c(seed, &bytes),
                ::crc32c::crc32c_append(seed, &bytes),
                "length {len}, seed {seed}"
            );
            let (a, b) = bytes.split_at(random.below(len as u64 + 1) as usize);
            assert_eq!(crc32c(crc32c(0, a), b), whole, "length {len} split at {}", a.len());
        }
    }

    #[test]
    fn block_sums_agree_with_the_crate() {
        let mut random = Random::from_seed(2);
        for _ in 0..if cfg!(miri) { 12 } else { 3_000 } {
            let block_bytes = match random.below(4) {
                0 => 256,
                1 => 8 * (1 + random.below(80) as usize),
                2 => 1 + random.below(300) as usize,
                _ => 64,
            };
            let len = random.below(block_bytes as u64 * 11) as usize;
            let bytes = random_bytes(&mut random, len + 1);
            let bytes = &bytes[1..];
            let wanted: Vec<u32> = bytes.chunks(block_bytes).map(::crc32c::crc32c).collect();
            let mut got = vec![0; wanted.len()];
            crc32c_blocks(bytes, block_bytes, &mut got);
            assert_eq!(got, wanted, "{len} bytes in blocks of {block_bytes}");
        }
    }

    #[test]
    #[should_panic(expected = "one sum per block")]
    fn a_missing_place_is_refused() {
        crc32c_blocks(&[0; 257], 256, &mut [0]);
    }
}
