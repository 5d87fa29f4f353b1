//! What an attempt lacks and its backend has at once.
//!
//! Owns the choice between that and an exchange. Promises that what is taken so is what [`Transaction::fetch`] could have brought, and that what is not is still wanted. Must not know
//! why a backend has it.

use std::sync::Arc;

use super::{Commands, PairCommand, RowAtHand, Transaction, Want};
use crate::backend::{Pair, PairCache};
use crate::pairs::catalog::SeenEntry;
use crate::transaction_bytes::TransactionBytes;

/// A pair that the backend had.
enum CachedPair {
    Table(Box<str>, SeenEntry),
    Row(Vec<u8>, Pair),
}

impl Transaction {
    /// [`Transaction::fetch`] of what the backend [has at once](crate::backend::Backend::cache), if that is all that is wanted: nobody is asked, nor waited for. False if something is
    /// lacking; it is still wanted then, and to be fetched.
    pub fn fetch_cached(&mut self) -> bool {
        let store = Arc::clone(&self.store);
        let Some(cache) = store.backend.cache() else { return false };
        let is_pair = |want: &Want| matches!(want, Want::Table(_) | Want::Row(..));
        let all = &self.wanted.get_mut().all;
        if all.is_empty() || !all.iter().all(is_pair) {
            return false;
        }
        let wanted = std::mem::take(self.wanted.get_mut());
        self.expired.clear();
        self.changes = TransactionBytes::default();
        self.forget_changes();
        let is_all = self.take_cached(cache, wanted.all.iter().collect());
        match is_all {
            true => self.forget_other_groups(),
            false => *self.wanted.get_mut() = wanted,
        }
        self.count_bytes();
        is_all
    }

    fn take_cached(&mut self, cache: &dyn PairCache, mut lacking: Vec<&Want>) -> bool {
        // Where the group of a table is not known its rows are looked for once the table is at hand.
        for _ in 0..2 {
            let mut commands = Commands::default();
            lacking.iter().for_each(|want| self.plan(want, &mut commands));
            let found: Option<Vec<CachedPair>> =
                commands.all.into_iter().map(|command| self.look_up(cache, command)).collect();
            for found in found.into_iter().flatten() {
                match found {
                    CachedPair::Table(name, seen) => drop(self.tables.insert(name, Some(seen))),
                    CachedPair::Row(key, pair) => {
                        drop(self.rows.insert(key, RowAtHand::got(Some(Arc::new(pair)))));
                    }
                }
            }
            lacking.retain(|want| !self.is_at_hand(want));
            if lacking.is_empty() {
                return true;
            }
        }
        false
    }

    /// What a command would bring. Not a row that has expired, which is to be removed, nor what is damaged, of which others tell.
    fn look_up(&self, cache: &dyn PairCache, command: PairCommand) -> Option<CachedPair> {
        match command {
            PairCommand::Table(name, key) => {
                let pair = cache.get(&key)?;
                let seen = self.store.seen_entry(&name, &key, &pair).ok()?;
                Some(CachedPair::Table(name, seen))
            }
            PairCommand::Row(group, key) => {
                let pair = cache.get(&key)?;
                self.expired_mark(group, Some(&pair)).is_none().then_some(CachedPair::Row(key, pair))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use hedgerow_device::Clock;

    use super::*;
    use crate::backend::memory::MemoryBackend;
    use crate::backend::{Backend, Capabilities, Session};
    use crate::pairs::exchange::get;
    use crate::pairs::{Edit, PairDb};
    use crate::schema::plan::FieldExpiries;
    use crate::{Expiry, Result, Schema, Type, Value, row};

    /// Pairs that are all in a cache but for those whose keys end so; and how many sessions there ever were.
    #[derive(Clone, Default)]
    struct Cached {
        behind: MemoryBackend,
        cold: Option<u8>,
        sessions: Arc<AtomicUsize>,
    }

    impl Backend for Cached {
        fn capabilities(&self) -> &Capabilities {
            self.behind.capabilities()
        }

        fn session(&self) -> Result<Box<dyn Session>> {
            self.sessions.fetch_add(1, Ordering::Relaxed);
            self.behind.session()
        }

        fn cache(&self) -> Option<&dyn PairCache> {
            Some(self)
        }

        fn close(&self) -> Result<()> {
            self.behind.close()
        }
    }

    impl PairCache for Cached {
        fn get(&self, key: &[u8]) -> Option<Pair> {
            let is_cold = self.cold.is_some() && key.last().copied() == self.cold;
            get(&mut *self.behind.session().unwrap(), key).unwrap().filter(|_| !is_cold)
        }
    }

    fn opened(cold: Option<u8>) -> (Cached, PairDb, Clock) {
        let (backend, clock) = (Cached { cold, ..Cached::default() }, Clock::manual(1_800_000_000_000));
        let db = PairDb::open_at(Arc::new(backend.clone()) as Arc<dyn Backend>, clock.clone());
        let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
        table.put(b"a", &row! { n: 1 }).unwrap();
        table.put(b"b", &row! { n: 2 }).unwrap();
        (backend, db, clock)
    }

    fn read(attempt: &Transaction, key: &[u8]) -> Result<Option<i64>> {
        attempt.read("t", key, |row| row.map(|row| Ok(row.get("n")?.as_i64().unwrap())).transpose())
    }

    #[test]
    fn what_the_backend_has_at_once_needs_no_session() {
        let (backend, db, _) = opened(None);
        // One that knows no tables, and one that does.
        let other = PairDb::open(Arc::new(backend.clone()) as Arc<dyn Backend>);
        for db in [&other, &other, &db] {
            let (mut attempt, sessions) = (db.transaction(), backend.sessions.load(Ordering::Relaxed));
            assert!(!attempt.fetch_cached(), "nothing is wanted yet");
            assert!(read(&attempt, b"a").is_err() && read(&attempt, b"b").is_err());
            assert!(attempt.fetch_cached());
            assert_eq!((read(&attempt, b"a").unwrap(), read(&attempt, b"b").unwrap()), (Some(1), Some(2)));
            assert_eq!(backend.sessions.load(Ordering::Relaxed), sessions);
            assert!(attempt.bytes_at_hand() > 0 && db.bytes_at_hand() == attempt.bytes_at_hand());
        }
    }

    #[test]
    fn a_change_depends_on_what_was_cached() {
        let (_, db, _) = opened(None);
        let mut session = db.session().unwrap();
        let mut attempts = [db.transaction(), db.transaction()];
        for attempt in &mut attempts {
            assert!(read(attempt, b"a").is_err() && attempt.fetch_cached());
            let fields = [("n", Value::Int(read(attempt, b"a").unwrap().unwrap() + 1))];
            attempt.edit("t", b"a", &Edit::Update(&fields, FieldExpiries::All(None))).unwrap();
        }
        let [first, second] = attempts.each_mut().map(|attempt| attempt.commit(&mut *session));
        assert!(first.is_ok() && second.unwrap_err().kind() == crate::ErrorKind::Conflict);
    }

    /// A row that is not cached, one that is not there, one that has expired, and a walk.
    #[test]
    fn what_is_lacking_is_still_wanted() {
        let (_, db, clock) = opened(Some(b'b'));
        let table = db.table("t").unwrap();
        let soon = Expiry::After(Duration::from_millis(1));
        table.put_expiring(b"gone", &[("n", Value::Int(3))], soon).unwrap();
        clock.advance_ms(1_000);
        let mut session = db.session().unwrap();
        for (key, n) in [(&b"b"[..], Some(2)), (b"none", None), (b"gone", None)] {
            let mut attempt = db.transaction();
            assert!(read(&attempt, key).is_err() && read(&attempt, b"a").is_err());
            assert!(!attempt.fetch_cached(), "{}", key.escape_ascii());
            attempt.fetch(&mut *session).unwrap();
            assert_eq!((read(&attempt, key).unwrap(), read(&attempt, b"a").unwrap()), (n, Some(1)));
        }
    }
}
