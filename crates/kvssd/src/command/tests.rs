use super::*;

#[test]
fn keys_have_1_to_255_bytes() {
    assert!(matches!(PairKey::new(b""), Err(KvError::KeyLength { bytes: 0, max: 255 })));
    assert!(matches!(PairKey::new(&[7; 256]), Err(KvError::KeyLength { bytes: 256, .. })));
    assert_eq!(PairKey::new(&[7; 255]).unwrap().bytes(), [7; 255]);
}

#[test]
fn short_keys_are_filled_up_with_zeros() {
    assert_eq!(group_of(b"a"), 0x6100_0000);
    assert_eq!(group_of(b"a"), group_of(b"a\0\0\0rest"));
    assert_eq!(group_of(b"abcdef"), 0x6162_6364);
}

/// Every mask shape the standard names: whole bytes, single bits, a byte in the middle, bits 1 to 4.
#[test]
fn masks_of_every_shape_select_by_their_bits_and_lie_in_their_range() {
    let masks: [u32; 9] = [
        0,
        u32::MAX,
        0xFF00_0000,
        0xFFFF_0000,
        0x8000_0000,
        0x0000_0001,
        0x00FF_0000,
        0x1E00_0000,
        0xFFF8_0F01,
    ];
    for mask in masks {
        for pattern in [0u32, 0x6162_6364, u32::MAX] {
            let selected = KeyPattern { mask: mask.to_be_bytes(), pattern: pattern.to_be_bytes() };
            let least = selected.next_group(0).unwrap();
            assert!(selected.selects(least), "{mask:08x} {pattern:08x}");
            for group in [0u32, 0x6162_6364, 0x6162_0000, 0x61FF_FFFF, u32::MAX, 0x1E00_0001] {
                let expected = group & mask == pattern & mask;
                assert_eq!(selected.selects(group), expected, "{mask:08x} {pattern:08x} {group:08x}");
                assert!(
                    !expected || least <= group && selected.next_group(group) == Some(group),
                    "{mask:08x} {group:08x}"
                );
            }
        }
    }
    let of_prefix = KeyPattern::prefix(b"ab");
    assert_eq!(
        [0, 0x6162_FFFF, 0x6163_0000].map(|from| of_prefix.next_group(from)),
        [Some(0x6162_0000), Some(0x6162_FFFF), None]
    );
    assert!(KeyPattern::ALL.is_same(&KeyPattern { mask: [0; 4], pattern: [9; 4] }));
    assert!(!KeyPattern::prefix(b"a").is_same(&KeyPattern::prefix(b"b")));
}

#[test]
fn a_batch_is_read_as_it_was_written() {
    let mut batch = Vec::new();
    push_entry(&mut batch, b"key", None);
    push_entry(&mut batch, b"k", None);
    assert_eq!(batch, b"\x03\0\0\0key\x01\0\0\0k");
    assert_eq!(
        batch_entries(&batch, IteratorContent::Keys).unwrap(),
        [(&b"key"[..], None), (&b"k"[..], None)]
    );
    batch.truncate(6);
    assert!(batch_entries(&batch, IteratorContent::Keys).is_err());
    let mut batch = Vec::new();
    push_entry(&mut batch, b"k", Some(b"vv"));
    assert_eq!(batch, b"\x01\0\0\0k\x02\0\0\0vv");
    assert_eq!(batch_entries(&batch, IteratorContent::Pairs).unwrap(), [(&b"k"[..], Some(&b"vv"[..]))]);
}

/// Against a look at one group after the other, for many masks of few bits.
#[test]
fn the_next_selected_group_is_the_least() {
    for mask in 0..64u32 {
        for pattern in [0, 1, 5, 21, 42, 63] {
            let shifted = |bits: u32| (bits | bits << 26).to_be_bytes();
            let selected = KeyPattern { mask: mask.to_be_bytes(), pattern: shifted(pattern) };
            for from in 0..64 {
                let expected = (from..200).find(|&group| selected.selects(group));
                assert_eq!(selected.next_group(from), expected, "{mask} {pattern} {from}");
            }
            let high =
                KeyPattern { mask: (mask << 26).to_be_bytes(), pattern: (pattern << 26).to_be_bytes() };
            for from in 0..64 {
                let expected = (from..64).find(|&group| high.selects(group << 26)).map(|group| group << 26);
                assert_eq!(high.next_group(from << 26), expected, "{mask} {pattern} {from}");
            }
        }
    }
}
