//! The bytes of records, to the last, and that none of them is wrong unnoticed.

use super::mergeable::merged_word;
use super::*;

/// Bytes of the test's own, at addresses as records have.
struct Own(Vec<u64>);

impl Own {
    fn new(bytes: &[u8]) -> Own {
        let (words, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "a record is whole words");
        Own(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    fn parse(&mut self, offset: u64, segment_number: u64) -> Result<Record<'_>, NotARecord> {
        Record::parse(SharedBytes::of(&mut self.0), offset, segment_number, true)
    }
}

fn sample(body: &[u8], expires_at_ms: Option<u64>) -> Vec<u8> {
    sample_of(0, body, expires_at_ms)
}

fn sample_of(flags: u8, body: &[u8], expires_at_ms: Option<u64>) -> Vec<u8> {
    sample_at(Seed::new(9, 0), flags, body, expires_at_ms)
}

fn sample_at(seed: Seed, flags: u8, body: &[u8], expires_at_ms: Option<u64>) -> Vec<u8> {
    let spec = RecordSpec {
        kind: RecordKind::Row,
        flags,
        table: 7,
        schema_version: 2,
        key: b"ada",
        expires_at_ms,
        body_bytes: body.len(),
    };
    let mut bytes = vec![0xAA; spec.record_bytes()];
    spec.encode(&mut bytes, seed, |out| out.copy_from_slice(body));
    seal(&mut bytes[..spec.prefix_bytes()], seed, 1000, RecordRef::from_word(0x55));
    bytes
}

#[test]
fn golden_bytes() {
    let bytes = sample(b"hello", Some(0x0102));
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "500e8c0c40000000e803000000000000550000000000000007000000050000000200020001010800",
            "0201000000000000616461004cbb719a68656c6c6f000000"
        )
    );
}

#[test]
fn golden_bytes_of_a_mergeable_row() {
    let mut bytes = sample_of(FLAG_MERGEABLE, b"hello", None);
    let at = Own::new(&bytes).parse(0, 9).unwrap().merged_word_offset() as usize;
    bytes[at..at + 8].copy_from_slice(&merged_word(0x7071, Seed::new(9, 0)).to_le_bytes());
    let mut own = Own::new(&bytes);
    let record = own.parse(0, 9).unwrap();
    record.verify_all().unwrap();
    assert_eq!((record.sequence(), record.version()), (1000, 0x7071));
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "ab45378240000000e803000000000000550000000000000007000000050000000200020001100800",
            "616461009be1ace5717000000000a73d68656c6c6f000000"
        )
    );
}

#[test]
fn a_whole_record_with_a_flag_that_is_not_known_is_refused_by_name() {
    for flag in [64, 128] {
        for verify in [true, false] {
            let bytes = sample_of(flag | FLAG_RELOCATED, b"hello", None);
            let refused = Record::parse(SharedBytes::of(&mut Own::new(&bytes).0), 0, 9, verify).unwrap_err();
            assert_eq!(refused, NotARecord::Flags(flag));
            let error = refused.error(4096);
            assert_eq!(error.kind(), ErrorKind::Version);
            assert!(
                error.to_string().contains(&format!("4096 of the fast tier has flags {flag}")),
                "{error}"
            );
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    every_flip_is_noticed(0);
}

#[test]
fn every_flipped_bit_of_a_mergeable_row_is_noticed() {
    every_flip_is_noticed(FLAG_MERGEABLE);
}

fn every_flip_is_noticed(flags: u8) {
    let body: Vec<u8> = (0..700).map(|i| (i * 7) as u8).collect();
    let mut good = sample_of(flags, &body, None);
    if flags == FLAG_MERGEABLE {
        let at = Own::new(&good).parse(0, 9).unwrap().merged_word_offset() as usize;
        good[at..at + 8].copy_from_slice(&merged_word(2000, Seed::new(9, 0)).to_le_bytes());
    }
    let mut own = Own::new(&good);
    let parsed = own.parse(0, 9).unwrap();
    assert_eq!((&parsed).slice(0..700).unwrap(), &body[..]);
    assert_eq!(
        (parsed.key(), parsed.sequence(), parsed.previous()),
        (&b"ada"[..], 1000, RecordRef::from_word(0x55))
    );
    let body_end = parsed.prefix_bytes() + body.len();
    for bit in (0..body_end * 8).step_by(if cfg!(miri) { 401 } else { 1 }) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let noticed = match Own::new(&bad).parse(0, 9) {
            Err(_) => true,
            Ok(record) => record.verify_all().is_err(),
        };
        assert!(noticed, "bit {bit}");
    }
}

#[test]
fn a_partial_read_verifies_the_blocks_it_touches() {
    let body = vec![3u8; 1024];
    let mut bytes = sample(&body, None);
    let start = Own::new(&bytes).parse(0, 9).unwrap().prefix_bytes();
    bytes[start + 600] ^= 1;
    let mut own = Own::new(&bytes);
    let record = own.parse(0, 9).unwrap();
    assert!((&record).slice(0..512).is_ok());
    assert!((&record).slice(768..1024).is_ok());
    assert!((&record).slice(511..513).is_err());
}

/// Version 3: only the checksums differ.
#[test]
fn golden_bytes_of_placed_records() {
    for flags in [0, FLAG_MERGEABLE] {
        let (older, bytes) = (sample_of(flags, b"hello", None), placed_at(4096, flags, b"hello"));
        let checksums: String =
            [&bytes[..4], &bytes[44..48]].concat().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!((&bytes[4..44], &bytes[48..]), (&older[4..44], &older[48..]));
        assert_eq!(checksums, if flags == 0 { "f257101d4cbb719a" } else { "08407636c393b239" });
    }
}

fn placed_at(offset: u64, flags: u8, body: &[u8]) -> Vec<u8> {
    sample_at(Seed::new(PLACED | 9, offset), flags, body, None)
}

/// The medium put it where another record of its segment was.
#[test]
fn a_record_in_another_place_of_its_segment_does_not_verify() {
    for flags in [0, FLAG_MERGEABLE] {
        let mut own = Own::new(&placed_at(4096, flags, b"hello"));
        own.parse(4096, PLACED | 9).unwrap().verify_all().unwrap();
        for offset in (0..1 << 20).step_by(if cfg!(miri) { 1 << 15 } else { 8 }).filter(|at| *at != 4096) {
            let parsed = own.parse(offset, PLACED | 9);
            assert_eq!(parsed.unwrap_err(), NotARecord::Checksum, "at {offset}");
        }
    }
}

/// Half of the page before it came from another place, with the prefix or with the body: checksums and how far it was merged.
#[test]
fn a_mergeable_row_of_two_places_does_not_verify() {
    let body = [7; 600];
    let (here, there) = (placed_at(8192, FLAG_MERGEABLE, &body), placed_at(4096, FLAG_MERGEABLE, &body));
    let mut own = Own::new(&here);
    let record = own.parse(8192, PLACED | 9).unwrap();
    let (checksums, word) =
        (record.checksum_offset(0) as usize - 8192, record.merged_word(2000).to_le_bytes());
    let at = record.merged_word_offset() as usize - 8192;
    let mut two = [&here[..checksums], &there[checksums..]].concat();
    let mut own = Own::new(&two);
    let parsed = own.parse(8192, PLACED | 9).unwrap();
    assert!(parsed.verify_all().is_err(), "checksums of another place");
    two[at..at + 8].copy_from_slice(&word);
    assert!(Own::new(&two).parse(8192, PLACED | 9).is_ok());
    assert_eq!(Own::new(&two).parse(4096, PLACED | 9).unwrap_err(), NotARecord::Checksum);
    two[..checksums].copy_from_slice(&there[..checksums]);
    let mut own = Own::new(&two);
    let parsed = own.parse(4096, PLACED | 9);
    assert_eq!(parsed.unwrap_err(), NotARecord::Checksum, "a word of another place");
}

#[test]
fn places_are_left_out_of_older_stores() {
    let bytes = sample(b"hello", None);
    for offset in [0, 4096, 1 << 40, CACHED_OFFSET | 64] {
        assert!(Own::new(&bytes).parse(offset, 9).is_ok(), "at {offset}");
    }
}

/// No two places of a segment, no two segments in one place, and no neighbours of both.
#[test]
#[cfg_attr(miri, ignore = "arithmetic, many times")]
fn seeds_differ() {
    let mut seeds = std::collections::HashSet::new();
    let mut doubled = 0;
    for segment_number in (1..4u64).flat_map(|open| (0..8).map(move |n| PLACED | open << 32 | n)) {
        for offset in (1 << 20..5 << 20).step_by(512) {
            doubled += u32::from(!seeds.insert(Seed::new(segment_number, offset).0));
        }
    }
    // Of 196,608 random numbers of 32 bits four or five are expected.
    assert!(doubled < 20, "{doubled} of {}", seeds.len());
}

#[test]
fn invalidated_records_and_foreign_segment_numbers() {
    let mut bytes = sample(b"x", None);
    assert_eq!(Own::new(&bytes).parse(0, 10).unwrap_err(), NotARecord::Checksum);
    let word = invalidated_word(u64_at(&bytes, 0));
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    assert!(Own::new(&bytes).parse(0, 9).unwrap().is_invalidated());
}

#[test]
fn big_bodies_use_bigger_blocks() {
    assert_eq!(block_shift(32 << 10), 8);
    assert_eq!(block_shift((32 << 10) + 1), 9);
    assert_eq!(block_shift(16 << 20), 17);
}
