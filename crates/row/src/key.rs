//! Keys of rows, from Rust's types.
//!
//! Owns the bytes of a key. A row's key is bytes, and rows lie in the order of them. Strings and bytes are keys as they are. Integers and tuples
//! are encoded, so that **the order of the bytes is the order of the values**; the bytes are those of FoundationDB's tuple layer:
//!
//! | part | bytes |
//! |---|---|
//! | bytes, in a tuple | `01`, the bytes with each `00` as `00 FF`, `00` |
//! | string, in a tuple | `02`, its UTF-8 in the same way, `00` |
//! | integer 0 | `14` |
//! | integer above 0 | `14` + n, then its n bytes, big-endian, the first not 0 |
//! | integer below 0 | `14` - n, then the n bytes of its absolute value, inverted |
//! | `false`, `true` | `26`, `27` |
//!
//! A tuple is its parts, one after the other; an integer alone is a tuple of one. An integer's key depends on its value and not on its type:
//! `7u8` and `7i64` are one key. A tuple's key begins with the keys of the tuples it begins with, so those are prefixes of scans.
//!
//! It promises that what is encoded is decoded to the same, and that other bytes are an error and no panic. It must not know tables, nor what
//! lengths they take. In one table keys should be of one shape: a string and a tuple can have the same bytes.

use std::borrow::Cow;
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::SmallVec;

use crate::{Error, Result};

/// What can be a row's key: bytes and strings as they are, and integers, `bool`s and tuples in the order of their values. A table takes it as
/// a reference: `table.get("ada")`, `table.get(&42)`, `table.get(&(7, "ada"))`.
///
/// ```
/// # use hedgerow_row as hedgerow;
/// use hedgerow::Key;
/// assert_eq!("ada".key_bytes(), b"ada");
/// assert_eq!(42u8.key_bytes().as_ref(), [0x15, 42]);
/// assert!((7, "ada").key_bytes().as_ref() < (300u64, "").key_bytes().as_ref());
/// ```
pub trait Key {
    /// What holds the bytes: a borrow, where the key is bytes already.
    type Bytes<'k>: AsRef<[u8]>
    where
        Self: 'k;

    /// Whether the key is encoded in parts.
    #[doc(hidden)]
    const IN_PARTS: bool = false;

    /// The key's bytes.
    fn key_bytes(&self) -> Self::Bytes<'_>;
}

/// A range of keys: `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..`, or a pair of [`Bound`]s.
pub trait KeyRange {
    /// The keys of its bounds.
    #[doc(hidden)]
    fn key_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

fn owned(key: &(impl Key + ?Sized)) -> Vec<u8> {
    key.key_bytes().as_ref().to_vec()
}

macro_rules! ranges {
    ($($range:ty, $this:ident => $from:expr, $to:expr;)*) => {$(
        impl<K: Key> KeyRange for $range {
            fn key_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
                let $this = self;
                ($from, $to)
            }
        }
    )*};
}

ranges! {
    Range<K>, range => Bound::Included(owned(&range.start)), Bound::Excluded(owned(&range.end));
    RangeInclusive<K>, range => Bound::Included(owned(range.start())), Bound::Included(owned(range.end()));
    RangeFrom<K>, range => Bound::Included(owned(&range.start)), Bound::Unbounded;
    RangeTo<K>, range => Bound::Unbounded, Bound::Excluded(owned(&range.end));
    RangeToInclusive<K>, range => Bound::Unbounded, Bound::Included(owned(&range.end));
    (Bound<K>, Bound<K>), range => range.0.as_ref().map(owned), range.1.as_ref().map(owned);
}

impl KeyRange for RangeFull {
    fn key_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

/// The first bytes behind all keys that begin with `prefix`. Of one in parts those are the tuples that begin with it.
#[doc(hidden)]
pub fn prefix_end<K: Key + ?Sized>(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    if K::IN_PARTS {
        // No part begins so; a zero byte of the last part's contents goes on so.
        end.push(ESCAPE);
        return Bound::Excluded(end);
    }
    while end.last() == Some(&0xFF) {
        end.pop();
    }
    match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    }
}

/// A key that was encoded. It takes no memory of its own up to 32 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EncodedKey(SmallVec<[u8; 32]>);

impl AsRef<[u8]> for EncodedKey {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A part of a tuple that is a key.
pub trait KeyPart {
    /// Appends the part's bytes.
    #[doc(hidden)]
    fn append_to(&self, key: &mut EncodedKey);
}

/// What a key can be read as: [`Row::key_as`](crate::Row::key_as).
pub trait FromKey: Sized {
    /// The value with these bytes as its key; `None` if there is none of this type.
    fn from_key(bytes: &[u8]) -> Option<Self>;
}

/// A part of a tuple that a key can be read as.
pub trait FromKeyPart: Sized {
    /// Takes the part off the front of what is left of a key.
    #[doc(hidden)]
    fn take_from(bytes: &mut &[u8]) -> Option<Self>;
}

/// Reads a key as a `T`.
///
/// # Errors
/// `Invalid` if it is the key of none.
pub fn read_key<T: FromKey>(bytes: &[u8]) -> Result<T> {
    T::from_key(bytes).ok_or_else(|| {
        let (shown, wanted) = (bytes.escape_ascii(), std::any::type_name::<T>());
        Error::invalid(format!("the key {shown} is that of no {wanted}"))
    })
}

const BYTES: u8 = 0x01;
const STRING: u8 = 0x02;
const ZERO: u8 = 0x14;
const FALSE: u8 = 0x26;
const TRUE: u8 = 0x27;
/// What follows a zero byte of the contents; greater than the first byte of any part.
const ESCAPE: u8 = 0xFF;

/// Keys as they are; and what they are in a tuple.
macro_rules! plain_keys {
    ($([$($generic:tt)*] $key:ty => $kind:expr;)*) => {$(
        impl<$($generic)*> Key for $key {
            type Bytes<'k> = &'k [u8];

            #[inline(always)]
            fn key_bytes(&self) -> &[u8] {
                self.as_ref()
            }
        }

        impl<$($generic)*> KeyPart for $key {
            fn append_to(&self, key: &mut EncodedKey) {
                key.append_escaped($kind, self.as_ref());
            }
        }
    )*};
}

plain_keys! {
    [] [u8] => BYTES;
    [const N: usize] [u8; N] => BYTES;
    [] Vec<u8> => BYTES;
    [] str => STRING;
    [] String => STRING;
}

impl<T: Key + ?Sized> Key for &T {
    type Bytes<'k>
        = T::Bytes<'k>
    where
        Self: 'k;
    const IN_PARTS: bool = T::IN_PARTS;

    #[inline(always)]
    fn key_bytes(&self) -> T::Bytes<'_> {
        (**self).key_bytes()
    }
}

impl<T: Key + ?Sized> Key for Box<T> {
    type Bytes<'k>
        = T::Bytes<'k>
    where
        Self: 'k;
    const IN_PARTS: bool = T::IN_PARTS;

    #[inline(always)]
    fn key_bytes(&self) -> T::Bytes<'_> {
        (**self).key_bytes()
    }
}

impl<T: Key + ToOwned + ?Sized> Key for Cow<'_, T> {
    type Bytes<'k>
        = T::Bytes<'k>
    where
        Self: 'k;
    const IN_PARTS: bool = T::IN_PARTS;

    #[inline(always)]
    fn key_bytes(&self) -> T::Bytes<'_> {
        (**self).key_bytes()
    }
}

impl Key for EncodedKey {
    type Bytes<'k> = &'k [u8];
    const IN_PARTS: bool = true;

    #[inline(always)]
    fn key_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: KeyPart + ?Sized> KeyPart for &T {
    fn append_to(&self, key: &mut EncodedKey) {
        (**self).append_to(key);
    }
}

impl EncodedKey {
    fn append_escaped(&mut self, kind: u8, contents: &[u8]) {
        self.0.push(kind);
        for piece in contents.split_inclusive(|&byte| byte == 0) {
            self.0.extend_from_slice(piece);
            if piece.last() == Some(&0) {
                self.0.push(ESCAPE);
            }
        }
        self.0.push(0);
    }

    fn append_integer(&mut self, is_negative: bool, absolute: u64) {
        let bytes = absolute.to_be_bytes();
        let used = &bytes[absolute.leading_zeros() as usize / 8..];
        let len = used.len() as u8;
        if is_negative {
            self.0.push(ZERO - len);
            self.0.extend(used.iter().map(|byte| !byte));
        } else {
            self.0.push(ZERO + len);
            self.0.extend_from_slice(used);
        }
    }
}

fn take_escaped(bytes: &mut &[u8], kind: u8) -> Option<Vec<u8>> {
    let (&first, mut rest) = bytes.split_first()?;
    if first != kind {
        return None;
    }
    let mut contents = Vec::new();
    loop {
        let zero = rest.iter().position(|&byte| byte == 0)?;
        contents.extend_from_slice(&rest[..zero]);
        rest = &rest[zero + 1..];
        match rest.first() {
            Some(&ESCAPE) => {
                contents.push(0);
                rest = &rest[1..];
            }
            _ => {
                *bytes = rest;
                return Some(contents);
            }
        }
    }
}

/// The integer, and whether it is below 0.
fn take_integer(bytes: &mut &[u8]) -> Option<(bool, u64)> {
    let (&first, rest) = bytes.split_first()?;
    let len = usize::from(first.abs_diff(ZERO));
    let is_negative = first < ZERO;
    if len > 8 || len > rest.len() {
        return None;
    }
    let mut absolute = [0; 8];
    absolute[8 - len..].copy_from_slice(&rest[..len]);
    if is_negative {
        absolute[8 - len..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    // Each integer has one encoding.
    if len > 0 && absolute[8 - len] == 0 {
        return None;
    }
    *bytes = &rest[len..];
    Some((is_negative, u64::from_be_bytes(absolute)))
}

/// Parts that are keys when they stand alone.
macro_rules! parts_as_keys {
    ($($part:ty),*) => {$(
        impl Key for $part {
            type Bytes<'k> = EncodedKey;
            const IN_PARTS: bool = true;

            #[inline]
            fn key_bytes(&self) -> EncodedKey {
                let mut key = EncodedKey::default();
                self.append_to(&mut key);
                key
            }
        }

        impl FromKey for $part {
            fn from_key(bytes: &[u8]) -> Option<$part> {
                <($part,)>::from_key(bytes).map(|(part,)| part)
            }
        }
    )*};
}

parts_as_keys! { bool, i8, i16, i32, i64, isize, u8, u16, u32, u64, usize }

impl KeyPart for bool {
    fn append_to(&self, key: &mut EncodedKey) {
        key.0.push(if *self { TRUE } else { FALSE });
    }
}

impl FromKeyPart for bool {
    fn take_from(bytes: &mut &[u8]) -> Option<bool> {
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        match first {
            FALSE => Some(false),
            TRUE => Some(true),
            _ => None,
        }
    }
}

macro_rules! integers {
    ($($integer:ty, $value:ident => $is_negative:expr, $absolute:expr;)*) => {$(
        impl KeyPart for $integer {
            #[inline]
            fn append_to(&self, key: &mut EncodedKey) {
                let $value = *self;
                key.append_integer($is_negative, $absolute as u64);
            }
        }

        impl FromKeyPart for $integer {
            fn take_from(bytes: &mut &[u8]) -> Option<$integer> {
                let (is_negative, absolute) = take_integer(bytes)?;
                let value = i128::from(absolute);
                <$integer>::try_from(if is_negative { -value } else { value }).ok()
            }
        }
    )*};
}

integers! {
    i8, n => n < 0, n.unsigned_abs();
    i16, n => n < 0, n.unsigned_abs();
    i32, n => n < 0, n.unsigned_abs();
    i64, n => n < 0, n.unsigned_abs();
    isize, n => n < 0, n.unsigned_abs();
    u8, n => false, n;
    u16, n => false, n;
    u32, n => false, n;
    u64, n => false, n;
    usize, n => false, n;
}

impl FromKeyPart for String {
    fn take_from(bytes: &mut &[u8]) -> Option<String> {
        String::from_utf8(take_escaped(bytes, STRING)?).ok()
    }
}

impl FromKeyPart for Vec<u8> {
    fn take_from(bytes: &mut &[u8]) -> Option<Vec<u8>> {
        take_escaped(bytes, BYTES)
    }
}

impl<const N: usize> FromKeyPart for [u8; N] {
    fn take_from(bytes: &mut &[u8]) -> Option<[u8; N]> {
        take_escaped(bytes, BYTES)?.try_into().ok()
    }
}

impl FromKey for String {
    fn from_key(bytes: &[u8]) -> Option<String> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

impl FromKey for Vec<u8> {
    fn from_key(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

impl<const N: usize> FromKey for [u8; N] {
    fn from_key(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
}

macro_rules! tuples {
    ($(($($part:ident $at:tt),+))*) => {$(
        impl<$($part: KeyPart),+> Key for ($($part,)+) {
            type Bytes<'k> = EncodedKey where Self: 'k;
            const IN_PARTS: bool = true;

            #[inline]
            fn key_bytes(&self) -> EncodedKey {
                let mut key = EncodedKey::default();
                $(self.$at.append_to(&mut key);)+
                key
            }
        }

        impl<$($part: FromKeyPart),+> FromKey for ($($part,)+) {
            fn from_key(mut bytes: &[u8]) -> Option<Self> {
                let key = ($($part::take_from(&mut bytes)?,)+);
                bytes.is_empty().then_some(key)
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

#[cfg(test)]
mod tests;
