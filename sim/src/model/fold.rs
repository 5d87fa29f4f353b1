//! What several writes of one batch to one row come to.
//!
//! Owns: folding them into one part for each row. Must not know rows or tables.

use crate::op::{Part, PartKind};

/// An expiry that comes with the update of a batch, before it or after it.
#[derive(Clone, Copy)]
pub(super) struct NewExpiry {
    pub(super) expires_in: Option<u64>,
    /// After it: a row that the update makes expires, too.
    pub(super) of_new_row: bool,
}

/// One part for each row of a batch. All of it happens at one moment: what an expiry of that moment leaves is gone for
/// the parts after it.
pub(super) fn folded(parts: &[Part]) -> Vec<(Part, Option<NewExpiry>)> {
    let mut folded: Vec<(Part, Option<NewExpiry>)> = Vec::new();
    for part in parts {
        let same = |(p, _): &&mut (Part, _)| (p.table, p.key) == (part.table, part.key);
        let Some((earlier, expiry)) = folded.iter_mut().find(same) else {
            folded.push((part.clone(), None));
            continue;
        };
        if lapses(&earlier.kind, *expiry) {
            (earlier.kind, *expiry) = (PartKind::Delete, None);
        }
        match (&mut earlier.kind, &part.kind) {
            (PartKind::Put(fields, _) | PartKind::Update(fields), PartKind::Update(more)) => {
                fields.extend(more)
            }
            (PartKind::Delete, PartKind::Update(fields)) => {
                earlier.kind = PartKind::Put(fields.clone(), None)
            }
            (PartKind::Expire(expires_in), PartKind::Update(fields)) => {
                *expiry = Some(NewExpiry { expires_in: *expires_in, of_new_row: false });
                earlier.kind = PartKind::Update(fields.clone());
            }
            (PartKind::Put(_, expires_in), PartKind::Expire(new)) => *expires_in = *new,
            (PartKind::Update(_), PartKind::Expire(new)) => {
                *expiry = Some(NewExpiry { expires_in: *new, of_new_row: true });
            }
            (PartKind::Delete, PartKind::Expire(_)) => {}
            (_, later) => (earlier.kind, *expiry) = (later.clone(), None),
        }
    }
    folded
}

/// Whether a write leaves a row that has expired already.
fn lapses(kind: &PartKind, expiry: Option<NewExpiry>) -> bool {
    let expires_in = match kind {
        PartKind::Put(_, expires_in) | PartKind::Expire(expires_in) => *expires_in,
        PartKind::Update(_) => expiry.and_then(|expiry| expiry.expires_in),
        PartKind::Delete => None,
    };
    expires_in == Some(0)
}
