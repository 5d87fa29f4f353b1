//! What a write makes of the expiry of its row.
//!
//! Owns that rule, for every path that writes a changed row whole, in every store. What it makes of the fields is a
//! [`MergePlan`](crate::schema::merge::MergePlan). Must not know where the row is, nor how it is written.

/// What a write says of the expiry of its row, in ms since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowExpiry {
    /// Nothing: a row keeps the one it has; a row that the write makes has none.
    Keep,
    /// The row has this from now on; `None` takes it away.
    Set(Option<u64>),
    /// As `Set`, if there was a row; a row that the write makes has none. Of a change of the expiry that fields came after: without
    /// a row it changed nothing.
    SetOfOld(Option<u64>),
}

/// A row that a write finds, and that has not expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldRow {
    /// When it expires, in ms since 1970, if it does.
    pub expires_at_ms: Option<u64>,
}

impl RowExpiry {
    /// When the row expires after the write.
    #[inline]
    pub fn after(self, old: Option<OldRow>) -> Option<u64> {
        match (self, old) {
            (RowExpiry::Set(at_ms), _) | (RowExpiry::SetOfOld(at_ms), Some(_)) => at_ms,
            (RowExpiry::Keep, Some(old)) => old.expires_at_ms,
            (RowExpiry::Keep | RowExpiry::SetOfOld(_), None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All a write can say, over no row, over one without and over one with an expiry.
    #[test]
    fn what_becomes_of_the_expiry() {
        for (expiry, over_none, over_plain, over_expiring) in [
            (RowExpiry::Keep, None, None, Some(500)),
            (RowExpiry::Set(Some(900)), Some(900), Some(900), Some(900)),
            (RowExpiry::Set(None), None, None, None),
            (RowExpiry::SetOfOld(Some(900)), None, Some(900), Some(900)),
            (RowExpiry::SetOfOld(None), None, None, None),
        ] {
            let over = |expires_at_ms| expiry.after(Some(OldRow { expires_at_ms }));
            let found = (expiry.after(None), over(None), over(Some(500)));
            assert_eq!(found, (over_none, over_plain, over_expiring), "{expiry:?}");
        }
    }
}
