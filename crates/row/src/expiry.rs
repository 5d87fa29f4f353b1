//! `Expiry`: when a row or a field is to be gone.
//!
//! Owns what callers say of time, so that a span is never taken for a date. Stores count in milliseconds since 1970, by their own clock. It
//! must not know rows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a row or a field expires. A [`Duration`] and a [`SystemTime`] are expiries as they are, and so is `None`, which is never.
///
/// ```
/// # use hedgerow_row as hedgerow;
/// use hedgerow::Expiry;
/// use std::time::{Duration, SystemTime};
/// assert_eq!(Expiry::from(Duration::from_secs(60)), Expiry::After(Duration::from_secs(60)));
/// assert_eq!(Expiry::from(None::<SystemTime>), Expiry::Never);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Not at all.
    Never,
    /// At this moment, to the millisecond, by the store's clock, which may be 4 ms late; at once if it is in the past.
    At(SystemTime),
    /// So long after the call, by the store's clock.
    After(Duration),
}

impl Expiry {
    /// At so many milliseconds since 1970, or never: for who counts so, as a protocol may.
    pub fn at_unix_ms(ms: impl Into<Option<u64>>) -> Expiry {
        ms.into().map_or(Expiry::Never, |ms| Expiry::At(time_of_unix_ms(ms)))
    }

    /// In milliseconds since 1970, given the time now. Never earlier than was said: parts of a millisecond are rounded up.
    #[doc(hidden)]
    pub fn unix_ms(self, now_ms: impl FnOnce() -> u64) -> Option<u64> {
        match self {
            Expiry::Never => None,
            Expiry::At(at) => Some(at.duration_since(UNIX_EPOCH).map_or(0, whole_ms)),
            Expiry::After(span) => Some(now_ms().saturating_add(whole_ms(span))),
        }
    }
}

/// The moment of so many milliseconds since 1970.
#[doc(hidden)]
pub fn time_of_unix_ms(ms: u64) -> SystemTime {
    // 64 bits of milliseconds are within 64 bits of seconds, with which the system counts.
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Expiry {
    fn from(at: SystemTime) -> Expiry {
        Expiry::At(at)
    }
}

impl From<Duration> for Expiry {
    fn from(span: Duration) -> Expiry {
        Expiry::After(span)
    }
}

impl<T: Into<Expiry>> From<Option<T>> for Expiry {
    fn from(expiry: Option<T>) -> Expiry {
        expiry.map_or(Expiry::Never, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_come_back_as_they_were() {
        for ms in [0, 1, 1_700_000_000_123, u64::MAX] {
            assert_eq!(Expiry::at_unix_ms(ms).unix_ms(|| unreachable!("it is a date")), Some(ms));
        }
        assert_eq!(Expiry::at_unix_ms(None), Expiry::Never);
        assert_eq!(Expiry::Never.unix_ms(|| 5), None);
    }

    #[test]
    fn nothing_expires_before_its_time() {
        let half = Duration::from_micros(500);
        assert_eq!(Expiry::from(UNIX_EPOCH + half).unix_ms(|| 7), Some(1));
        assert_eq!(Expiry::from(half).unix_ms(|| 7), Some(8));
        assert_eq!(Expiry::from(Some(Duration::ZERO)).unix_ms(|| 7), Some(7));
        assert_eq!(Expiry::from(UNIX_EPOCH - half).unix_ms(|| 7), Some(0), "long past");
        assert_eq!(Expiry::from(Duration::MAX).unix_ms(|| 7), Some(u64::MAX));
    }
}
