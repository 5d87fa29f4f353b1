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
            let (least, greatest) = selected.groups();
            for group in [0u32, 0x6162_6364, 0x6162_0000, 0x61FF_FFFF, u32::MAX, 0x1E00_0001] {
                let expected = group & mask == pattern & mask;
                assert_eq!(selected.selects(group), expected, "{mask:08x} {pattern:08x} {group:08x}");
                assert!(!expected || (least..=greatest).contains(&group), "{mask:08x} {group:08x}");
            }
        }
    }
    assert_eq!(KeyPattern::prefix(b"ab").groups(), (0x6162_0000, 0x6162_FFFF));
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
