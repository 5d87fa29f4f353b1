//! The bytes of keys; their order is that of the values; what is encoded is decoded.

use std::fmt::Debug;

use proptest::prelude::*;

use super::*;

fn bytes(key: impl Key) -> Vec<u8> {
    key.key_bytes().as_ref().to_vec()
}

/// As FoundationDB's tuple layer has them.
#[test]
fn golden_bytes() {
    for (value, golden) in [
        (0, &[0x14][..]),
        (1, &[0x15, 1]),
        (255, &[0x15, 0xFF]),
        (256, &[0x16, 1, 0]),
        (-1, &[0x13, 0xFE]),
        (-255, &[0x13, 0]),
        (-256, &[0x12, 0xFE, 0xFF]),
        (i64::MIN, &[0x0C, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
        (i64::MAX, &[0x1C, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
    ] {
        assert_eq!(bytes(value), golden, "{value}");
    }
    assert_eq!(bytes(u64::MAX), [0x1C, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    assert_eq!(
        bytes((7u8, "F\0oo", b"\0", true, false)),
        b"\x15\x07\x02F\x00\xFFoo\x00\x01\x00\xFF\x00\x27\x26"
    );
    assert_eq!(
        (bytes("ada"), bytes(b"ada"), bytes("ada".to_owned())),
        (b"ada".to_vec(), b"ada".to_vec(), b"ada".to_vec())
    );
    assert_eq!(bytes(Box::<[u8]>::from(&b"x"[..])), b"x");
}

#[test]
fn a_key_depends_on_the_value_and_not_on_the_type() {
    assert_eq!((bytes(7u8), bytes(7i64), bytes((7usize,))), (bytes(7), bytes(7u64), bytes(7i8)));
    assert_eq!(bytes((7, "a")), bytes((&7u64, String::from("a"))));
    assert_eq!(read_key::<u8>(&bytes(7i64)).unwrap(), 7);
    assert!(read_key::<u8>(&bytes(300)).unwrap_err().message().contains("is that of no u8"));
}

#[test]
fn other_bytes_are_an_error() {
    for bad in
        [&b""[..], b"\x15", b"\x15\x00", b"\x15\x07\x15", b"\x02abc", b"\x02\xFF\x00", b"\x03", b"\xFF\x00"]
    {
        assert!(read_key::<(u64,)>(bad).is_err() && read_key::<(String,)>(bad).is_err(), "{bad:?}");
        assert!(read_key::<bool>(bad).is_err() && read_key::<[u8; 5]>(bad).is_err(), "{bad:?}");
    }
    assert_eq!(read_key::<String>(b"\xFF").unwrap_err().kind(), crate::ErrorKind::Invalid);
}

fn returns<T: Key + FromKey + PartialEq + Debug>(value: &T) {
    assert_eq!(T::from_key(value.key_bytes().as_ref()).as_ref(), Some(value));
}

/// Strings and bytes that begin alike, with the bytes that are escaped.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xFE), Just(0xFF), any::<u8>()], 0..6)
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof![Just('\0'), Just('\u{1}'), Just('a'), any::<char>()], 0..5)
        .prop_map(|chars| chars.into_iter().collect())
}

/// Integers of all lengths, as often near those where the length changes.
fn integer() -> impl Strategy<Value = i64> {
    let near = (0..8u32, -2i64..3).prop_map(|(byte, off)| (1i64 << (8 * byte)).wrapping_add(off));
    prop_oneof![any::<i64>(), near.clone(), near.prop_map(i64::wrapping_neg), -3i64..4]
}

proptest! {
    #[test]
    fn integers_are_in_order(a in integer(), b in integer(), c: u64, d: u32) {
        prop_assert_eq!(bytes(a).cmp(&bytes(b)), a.cmp(&b));
        prop_assert_eq!(bytes(a).cmp(&bytes(c)), i128::from(a).cmp(&i128::from(c)));
        prop_assert_eq!(bytes(c).cmp(&bytes(d)), c.cmp(&u64::from(d)));
        returns(&a);
        returns(&c);
        returns(&d);
    }

    #[test]
    fn tuples_are_in_order(
        a in (integer(), text(), contents(), any::<bool>()),
        b in (integer(), text(), contents(), any::<bool>()),
    ) {
        prop_assert_eq!(bytes(a.clone()).cmp(&bytes(b.clone())), a.cmp(&b));
        // With the first parts alike, the later decide.
        let alike = (a.0, b.1.clone(), b.2.clone(), b.3);
        prop_assert_eq!(bytes(a.clone()).cmp(&bytes(alike.clone())), a.cmp(&alike));
        let last = (a.0, a.1.clone(), b.2.clone(), b.3);
        prop_assert_eq!(bytes(a.clone()).cmp(&bytes(last.clone())), a.cmp(&last));
        returns(&a);
    }

    #[test]
    fn a_tuple_is_a_prefix_of_those_that_begin_with_it(a in text(), b in text(), n in integer()) {
        let prefix = bytes((a.as_str(),));
        let Bound::Excluded(end) = prefix_end::<(&str,)>(&prefix) else { panic!("it has an end") };
        let key = bytes((b.as_str(), n));
        prop_assert_eq!(prefix <= key && key < end, a == b);
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(any in contents()) {
        let parts: [Option<Vec<u8>>; 3] = [
            <(i64, String)>::from_key(&any).map(bytes),
            <(Vec<u8>, bool)>::from_key(&any).map(bytes),
            <(u8, i8, u64)>::from_key(&any).map(bytes),
        ];
        for same in parts.into_iter().flatten() {
            prop_assert_eq!(&same, &any, "each value has one key");
        }
    }
}
