//! What is read as a type is what was written, or an error.

use std::fmt::Debug;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::ErrorKind;

fn round_trip<T: FieldValue + PartialEq + Debug>(value: T) {
    assert_eq!(T::from_value(value.to_value()).as_ref(), Some(&value));
    let written = value.to_value();
    assert!(written.is_null() && T::NULLABLE || T::KIND.check(&written).is_ok(), "{value:?}");
}

#[test]
fn what_is_written_is_read() {
    [i8::MIN, 0, i8::MAX].into_iter().for_each(round_trip);
    [i64::MIN, -1, i64::MAX].into_iter().for_each(round_trip);
    [0, u64::MAX].into_iter().for_each(round_trip::<u64>);
    [true, false].into_iter().for_each(round_trip);
    [f32::MIN, 0.1, f32::INFINITY].into_iter().for_each(round_trip);
    [f64::MIN_POSITIVE, f64::NEG_INFINITY].into_iter().for_each(round_trip);
    ["".to_owned(), "ada".to_owned()].into_iter().for_each(round_trip);
    round_trip(vec![0u8, 255]);
    round_trip([7u8; 16]);
    [None, Some(5u16)].into_iter().for_each(round_trip);
    [0, 1, 1_700_000_000_000_000]
        .into_iter()
        .for_each(|us| round_trip(UNIX_EPOCH + Duration::from_micros(us)));
    round_trip(UNIX_EPOCH - Duration::from_micros(1));
}

#[test]
fn a_moment_is_rounded_down_on_both_sides_of_1970() {
    let (off, written) = (Duration::from_nanos(1_500), Value::from);
    assert_eq!(written(UNIX_EPOCH + off), Value::Timestamp(1));
    assert_eq!(written(UNIX_EPOCH - off), Value::Timestamp(-2));
    for us in [i64::MIN, i64::MAX] {
        assert_eq!(SystemTime::from_value(Value::Timestamp(us)).map(written), Some(Value::Timestamp(us)));
    }
    let far = Duration::from_secs(1 << 60);
    assert_eq!(written(UNIX_EPOCH + far), Value::Timestamp(i64::MAX));
    assert_eq!(written(UNIX_EPOCH - far), Value::Timestamp(i64::MIN));
}

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let refused = |error: Error| (error.kind(), error.message().to_owned());
    let (kind, message) = refused(read_as::<u8>("age", Value::Int(300)).unwrap_err());
    assert_eq!(
        (kind, &*message),
        (ErrorKind::Invalid, "field \"age\" holds the integer 300, which is no u8")
    );
    let (_, message) = refused(read_as::<u8>("age", Value::Null).unwrap_err());
    assert!(message.contains("is absent") && message.contains("Option"), "{message}");
    let (_, message) = refused(read_as::<i64>("name", Value::Str("secret")).unwrap_err());
    assert!(!message.contains("secret"), "{message}");
    assert!(
        read_as::<f32>("x", Value::Float(0.1)).is_err() && read_as::<f32>("x", Value::Float(0.5)).is_ok()
    );
    assert!(read_as::<f32>("x", Value::Float(f64::NAN)).is_ok());
    assert!(read_as::<i64>("at", Value::Timestamp(1)).is_err(), "a moment is no number");
    assert!(read_as::<[u8; 2]>("id", Value::Bytes(b"abc")).is_err());
    assert!(read_as::<Option<u8>>("age", Value::Str("5")).is_err());
    assert_eq!(read_as::<Option<u8>>("age", Value::Null).unwrap(), None);
    assert_eq!(read_as::<&str>("name", Value::Str("Ada")).unwrap(), "Ada");
}
