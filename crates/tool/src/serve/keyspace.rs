//! Redis keys as rows: which row a key is, what type it has, and every change of it.
//!
//! Owns: the choice between the ways to keep keys, of which [`tiered`] is one, and what all of them share. Promises: a key has one type;
//! a key is never in two places; changes made between [`Keyspace::begin`] and [`Keyspace::end`] happen together or not at all. Must not know
//! replies or connections.

use std::ops::Range;
use std::time::{Duration, Instant};

use hedgerow::{AtHandOnly, Db, Missing, Schema, SyncFailure, Type, Value, WriteFailure};
use hedgerow_device::{Clock, Random};
use hedgerow_row::pairs::PairDb;

use super::failure::{Failure, Outcome};
use super::limits;

mod copied;
pub mod cursor;
pub mod naming;
pub mod pairs;
pub mod text;
pub mod tiered;
pub mod wants;

use cursor::Position;
use pairs::PairKeyspace;
use pairs::attempt::Attempt;
use pairs::hashes::PairHashView;
use tiered::TieredKeyspace;
use tiered::hashes::TieredHashView;
use tiered::prefetch::PrefetchedKey;
use wants::{Tries, Wants};

/// How old the time that a command goes by may be at its start.
const TIME_STEP: Duration = Duration::from_micros(100);

/// Which keys a scan wants.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'f> {
    /// Only keys that match.
    pub pattern: Option<&'f [u8]>,
    /// Only keys of this type.
    pub kind: Option<Kind>,
}

/// What a field of a hash is given.
#[derive(Debug, Clone, Copy)]
pub struct FieldWrite<'v> {
    /// Its name.
    pub name: &'v [u8],
    /// Its value, as a client gives it.
    pub text: &'v [u8],
    /// When it expires on its own (ms since 1970), if it does.
    pub expires_at_ms: Option<u64>,
}

impl<'v> FieldWrite<'v> {
    /// A field that does not expire on its own.
    #[inline]
    pub fn lasting((name, text): (&'v [u8], &'v [u8])) -> FieldWrite<'v> {
        FieldWrite { name, text, expires_at_ms: None }
    }
}

/// A field to declare.
#[derive(Debug, Clone)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Type,
    /// Whether it may be absent.
    pub nullable: bool,
}

/// The type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A binary string.
    String,
    /// A row.
    Hash,
}

impl Declared {
    /// The schema of a table with these fields.
    pub fn schema(fields: &[Declared]) -> Schema {
        fields.iter().fold(Schema::new(), |schema, field| match field.nullable {
            true => schema.nullable(&field.name, field.kind),
            false => schema.field(&field.name, field.kind),
        })
    }
}

impl Kind {
    /// As TYPE says it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
        }
    }
}

/// Refuses a key that no row can have, before anything of a command is staged that would then be done by half.
pub fn check_key(key: &[u8]) -> Outcome<()> {
    match (1..=hedgerow::limits::KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "ERR a key has 1 to {} bytes; this one has {}",
            hedgerow::limits::KEY_BYTES_MAX,
            key.len()
        ))),
    }
}

/// What a watched key was like when a client began to watch it.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    /// What tells it from later ones, by the store's own count.
    pub since: Option<u64>,
    /// Whether it was there.
    pub existed: bool,
    /// When the first of its fields was to expire, if it was a hash with fields that do, in ms since 1970: no write tells of that.
    pub first_field_expiry_ms: Option<u64>,
}

impl Watched {
    /// Whether a field has expired that it had.
    pub fn has_lost_field(&self, now_ms: u64) -> bool {
        self.first_field_expiry_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }
}

/// All databases of one store.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, and what is quick is not to be behind a pointer"
)]
pub enum Keyspace {
    /// Of a tiered store, whose rows are read in place.
    Tiered(TieredKeyspace),
    /// Of a store of pairs, which others may write, too.
    Pairs(Box<PairKeyspace>),
}

/// A hash, as it is read.
pub enum HashView<'a, 'v, 'r> {
    /// In place.
    Tiered(&'a TieredHashView<'v, 'r>),
    /// As it was got.
    Pairs(&'a PairHashView<'v, 'r>),
}

/// A table as HR.TABLES shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSummary {
    /// The prefix of its keys.
    pub prefix: Vec<u8>,
    /// How many rows it has.
    pub rows: u64,
    /// How many fields.
    pub fields: usize,
    /// Whether it learns fields.
    pub is_open: bool,
}

impl Keyspace {
    /// The keys of a tiered store, which goes by `clock`.
    pub fn tiered(db: Db, clock: Clock) -> Outcome<Keyspace> {
        Ok(Keyspace::Tiered(TieredKeyspace::new(db, clock)?))
    }

    /// The keys of a store of pairs, which goes by `clock`.
    pub fn of_pairs(db: PairDb, clock: Clock) -> Keyspace {
        Keyspace::Pairs(Box::new(PairKeyspace::new(db, clock)))
    }

    /// The tiered store under the keys, if it is one.
    #[inline]
    pub fn db(&self) -> Option<&Db> {
        match self {
            Keyspace::Tiered(keys) => Some(keys.db()),
            Keyspace::Pairs(_) => None,
        }
    }

    /// Whether what was written can be made durable.
    pub fn persists(&self) -> bool {
        match self {
            Keyspace::Tiered(_) => true,
            Keyspace::Pairs(keys) => keys.db().capabilities().persists,
        }
    }

    /// Its keys; else the command is refused: it needs an order of rows, a snapshot or the log.
    pub fn in_order(&self) -> Outcome<&TieredKeyspace> {
        match self {
            Keyspace::Tiered(keys) => Ok(keys),
            Keyspace::Pairs(_) => Err(Failure::NO_ORDER),
        }
    }

    /// How far its log is durable.
    pub fn durable_sequence(&self) -> u64 {
        match self {
            Keyspace::Tiered(keys) => keys.db().metrics().durable_sequence,
            Keyspace::Pairs(_) => 0,
        }
    }

    /// The sync that failed, if one did.
    #[inline]
    pub fn sync_failure(&self) -> Option<SyncFailure> {
        match self {
            Keyspace::Tiered(keys) => keys.db().sync_failure(),
            Keyspace::Pairs(_) => None,
        }
    }

    /// Why the store takes no more writes, if it takes none.
    #[inline]
    pub fn write_failure(&self) -> Option<WriteFailure> {
        match self {
            Keyspace::Tiered(keys) => keys.db().write_failure(),
            Keyspace::Pairs(_) => None,
        }
    }

    /// Runs `change` with its writes staged: all of them happen, or none.
    pub fn together<R>(&mut self, change: impl FnOnce(&mut Keyspace) -> Outcome<R>) -> Outcome<R> {
        let opened = self.begin();
        match change(self) {
            Ok(result) => self.end(opened).map(|()| result),
            Err(failure) => {
                self.abandon(opened);
                Err(failure)
            }
        }
    }

    /// Looks at the clock: between commands, never within one. What expires does so between commands, too. `now` is now.
    pub fn refresh_time(&mut self, now: Instant) {
        match self {
            Keyspace::Tiered(keys) => keys.refresh_time(now),
            Keyspace::Pairs(keys) => keys.refresh_time(now),
        }
    }

    /// Looks at the clock unless it did so just before.
    #[inline]
    pub fn refresh_old_time(&mut self, now: Instant) {
        match self {
            Keyspace::Tiered(keys) => keys.refresh_old_time(now),
            Keyspace::Pairs(keys) => keys.refresh_old_time(now),
        }
    }

    /// The time since some fixed moment, for what may not take so long: it goes on evenly however the wall clock is set.
    pub fn uptime(&self) -> Duration {
        match self {
            Keyspace::Tiered(keys) => keys.uptime(),
            Keyspace::Pairs(keys) => keys.uptime(),
        }
    }

    /// The time in ms since 1970 as of the last look, by which the store judges expiry.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        match self {
            Keyspace::Tiered(keys) => keys.now_ms(),
            Keyspace::Pairs(keys) => keys.now_ms(),
        }
    }

    /// Tells that a command begins, given for the first time or again. In the end a write that finds no room fails, and a read waits for
    /// the disk; before, the command waits beside the loop. `brought` is what was brought for it since, `attempt` what was fetched for it at a store of pairs. What is returned is to be held
    /// until it ends.
    #[inline]
    pub fn begin_command(
        &mut self,
        tries: Tries,
        brought: &mut Option<Missing>,
        attempt: &mut Option<Box<Attempt>>,
    ) -> Option<AtHandOnly> {
        match self {
            Keyspace::Tiered(keys) => keys.begin_command(tries, brought),
            Keyspace::Pairs(keys) => {
                keys.begin_command(attempt);
                None
            }
        }
    }

    /// Tells that it has ended; `is_done` says whether well. If it failed for want of something, having changed nothing, that is what it needs before it is given again.
    #[inline]
    pub fn end_command(&mut self, is_done: impl FnOnce() -> bool) -> Option<Wants> {
        match self {
            Keyspace::Tiered(keys) => keys.end_command(),
            Keyspace::Pairs(keys) => {
                keys.end_command(is_done()).map(|(attempt, step)| Wants::Step(attempt, step))
            }
        }
    }

    /// Why the command can not be done, if that was found out since it was given before.
    pub fn take_failure(&mut self) -> Option<Failure> {
        match self {
            Keyspace::Tiered(_) => None,
            Keyspace::Pairs(keys) => keys.take_failure(),
        }
    }

    /// Whether it is done, but waits for a step before it is answered ([`Wants::Step`]).
    pub fn waits_to_be_answered(&self) -> bool {
        match self {
            Keyspace::Tiered(_) => false,
            Keyspace::Pairs(keys) => keys.waits_to_be_answered(),
        }
    }

    /// What the command reads is to have been there at one time, as it always is where nobody else writes.
    pub fn check_reads(&mut self) {
        match self {
            Keyspace::Tiered(_) => {}
            Keyspace::Pairs(keys) => keys.check_reads(),
        }
    }

    /// Whether it has failed so.
    #[inline]
    pub fn wants_again(&mut self) -> bool {
        match self {
            Keyspace::Tiered(keys) => keys.wants_again(),
            Keyspace::Pairs(keys) => keys.wants_again(),
        }
    }

    /// The command just done counts: what it changed is seen by those who watch it. Says whether it changed anything that a sync could make durable.
    #[inline]
    pub fn finish_command(&mut self) -> bool {
        match self {
            Keyspace::Tiered(keys) => keys.finish_command(),
            Keyspace::Pairs(_) => false,
        }
    }

    /// The command just given was not done.
    pub fn forget_watched(&mut self) {
        match self {
            Keyspace::Tiered(keys) => keys.watches.forget(),
            Keyspace::Pairs(_) => {}
        }
    }

    /// How many keys are watched.
    pub fn watched(&self) -> usize {
        match self {
            Keyspace::Tiered(keys) => keys.watches.len(),
            Keyspace::Pairs(keys) => keys.watched(),
        }
    }

    /// One more client watches a key, which is as what is returned says.
    pub fn watch(&mut self, space: usize, key: &[u8]) -> Outcome<Watched> {
        match self {
            Keyspace::Tiered(keys) => keys.watch(space, key),
            Keyspace::Pairs(keys) => keys.watch(space, key),
        }
    }

    /// One client less watches a key.
    pub fn unwatch(&mut self, space: usize, key: &[u8]) {
        match self {
            Keyspace::Tiered(keys) => keys.watches.remove(space, key),
            Keyspace::Pairs(keys) => keys.unwatch(),
        }
    }

    /// Whether one of these watched keys was changed, or has expired, since.
    pub fn has_any_changed<'k>(
        &self,
        mut watched: impl Iterator<Item = (usize, &'k [u8], Watched)>,
    ) -> Outcome<bool> {
        match self {
            Keyspace::Tiered(keys) => keys.has_any_changed(watched),
            Keyspace::Pairs(keys) => watched.try_fold(false, |changed, (space, key, watched)| {
                Ok(changed || keys.has_changed(space, key, watched)?)
            }),
        }
    }

    /// Starts staging writes, unless somebody does already; give the result to [`Keyspace::end`].
    pub fn begin(&mut self) -> bool {
        match self {
            Keyspace::Tiered(keys) => keys.begin(),
            Keyspace::Pairs(_) => false,
        }
    }

    /// Whether so much was to be staged that nothing of it will be written.
    pub fn has_staged_too_much(&self) -> bool {
        match self {
            Keyspace::Tiered(keys) => keys.has_staged_too_much(),
            Keyspace::Pairs(keys) => keys.check_changes().is_err(),
        }
    }

    /// Makes the staged writes happen, if `opened` says that this caller started it.
    pub fn end(&mut self, opened: bool) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.end(opened),
            Keyspace::Pairs(keys) => keys.check_changes(),
        }
    }

    /// Forgets the staged writes, if `opened` says that this caller started it.
    pub fn abandon(&mut self, opened: bool) {
        match self {
            Keyspace::Tiered(keys) => keys.abandon(opened),
            Keyspace::Pairs(_) => {}
        }
    }

    /// Begins a command of several that are done together.
    pub fn begin_part(&mut self) {
        match self {
            Keyspace::Tiered(_) => {}
            Keyspace::Pairs(keys) => keys.begin_part(),
        }
    }

    /// The command that was begun last of several failed: what it had changed by then it has not.
    pub fn undo_part(&mut self) {
        match self {
            // What is staged there is checked when it is written: all of it, or nothing is.
            Keyspace::Tiered(_) => {}
            Keyspace::Pairs(keys) => keys.undo_part(),
        }
    }

    /// The type of a key, if it exists.
    pub fn kind(&self, space: usize, key: &[u8]) -> Outcome<Option<Kind>> {
        match self {
            Keyspace::Tiered(keys) => keys.kind(space, key),
            Keyspace::Pairs(keys) => keys.kind(space, key),
        }
    }

    /// Whether a key exists.
    pub fn exists(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        match self {
            Keyspace::Tiered(keys) => keys.exists(space, key),
            Keyspace::Pairs(keys) => keys.exists(space, key),
        }
    }

    /// How many of these keys exist. What looks at them lack is wanted of all together, not of one after the other.
    pub fn count_existing<'k>(&self, space: usize, keys: impl Iterator<Item = &'k [u8]>) -> Outcome<u64> {
        match self {
            Keyspace::Tiered(keyspace) => keyspace.count_existing(space, keys),
            Keyspace::Pairs(keyspace) => keyspace.count_existing(space, keys),
        }
    }

    /// Looks at keys that the command will need after it has changed something, while it can still be given again for what it lacks of them.
    pub fn look_ahead<'k>(&self, space: usize, keys: impl Iterator<Item = &'k [u8]>) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keyspace) => keyspace.count_existing(space, keys).map(drop),
            // The command's attempt changes nothing before all of it was read.
            Keyspace::Pairs(_) => Ok(()),
        }
    }

    /// Looks at the rows of keys that the command reads, as those of this type if it is one for strings or for hashes, so that what it lacks of any of them is brought together: of
    /// up to [`limits::LOOK_AHEAD_KEYS_MAX`].
    pub fn look_ahead_at<'k>(&self, space: usize, kind: Option<Kind>, keys: impl Iterator<Item = &'k [u8]>) {
        match self {
            Keyspace::Tiered(keyspace) => {
                keyspace.look_at(space, kind, keys.take(limits::LOOK_AHEAD_KEYS_MAX));
            }
            // They are fetched together anyway.
            Keyspace::Pairs(_) => {}
        }
    }

    /// Removes a key; says whether it existed.
    pub fn delete(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        match self {
            Keyspace::Tiered(keys) => keys.delete(space, key),
            Keyspace::Pairs(keys) => keys.delete(space, key),
        }
    }

    /// When a key expires: None if it does not exist, else its time if it has one. Sees staged writes.
    pub fn expiry(&self, space: usize, key: &[u8]) -> Outcome<Option<Option<u64>>> {
        match self {
            Keyspace::Tiered(keys) => keys.expiry(space, key),
            Keyspace::Pairs(keys) => keys.expiry(space, key),
        }
    }

    /// Sets or clears the expiry of a key; false if it does not exist. Sees staged writes.
    pub fn set_expiry(&mut self, space: usize, key: &[u8], at_ms: Option<u64>) -> Outcome<bool> {
        match self {
            Keyspace::Tiered(keys) => keys.set_expiry(space, key, at_ms),
            Keyspace::Pairs(keys) => keys.set_expiry(space, key, at_ms),
        }
    }

    /// Removes a key that exists because its time has come; staged writes of it go, too.
    pub fn expire_now(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        match self {
            Keyspace::Tiered(keys) => keys.expire_now(space, key),
            Keyspace::Pairs(keys) => keys.delete(space, key),
        }
    }

    /// Copies a key over whatever is at the other, expiries included, in one change, removing the first if it is a move. `NO_SUCH_KEY` if there is
    /// nothing to copy.
    pub fn copy(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), is_move: bool) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.copy(from, to, is_move),
            Keyspace::Pairs(keys) => keys.copy(from, to, is_move),
        }
    }

    /// Keys in a database; expired ones that were not removed yet are counted.
    pub fn len(&self, space: usize) -> Outcome<u64> {
        match self {
            Keyspace::Tiered(keys) => Ok(keys.len(space)),
            Keyspace::Pairs(keys) => keys.len(space),
        }
    }

    /// How many of them have an expiry, and the mean time until then in ms; 0 if it is not known.
    pub fn expiring(&self, space: usize) -> (u64, u64) {
        match self {
            Keyspace::Tiered(keys) => keys.expiring(space),
            Keyspace::Pairs(_) => (0, 0),
        }
    }

    /// Keys that were removed because they had expired.
    pub fn expired(&self) -> u64 {
        match self {
            Keyspace::Tiered(keys) => keys.expired(),
            Keyspace::Pairs(_) => 0,
        }
    }

    /// Removes all keys of some databases, in one change of the store's tables. Those with a declared schema keep it; the others go.
    pub fn clear(&mut self, spaces: Range<usize>) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.clear(spaces),
            Keyspace::Pairs(keys) => keys.clear(spaces),
        }
    }

    /// Runs `read` on a string and its expiry. None if the key does not exist; WRONGTYPE if it is a hash.
    #[inline]
    pub fn string<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Outcome<Option<R>> {
        match self {
            Keyspace::Tiered(keys) => keys.string(space, key, read),
            Keyspace::Pairs(keys) => keys.string(space, key, read),
        }
    }

    /// [`Keyspace::string`] of a key that may have been looked up already.
    #[inline]
    pub fn string_prefetched<R>(
        &self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        read: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Outcome<Option<R>> {
        match self {
            Keyspace::Tiered(keys) => keys.string_prefetched(space, key, prefetched, read),
            Keyspace::Pairs(keys) => keys.string(space, key, read),
        }
    }

    /// Writes a string over whatever the key was, with a new expiry or none, all at once.
    #[inline]
    pub fn string_put(
        &mut self,
        space: usize,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.string_put(space, key, value, expires_at_ms),
            Keyspace::Pairs(keys) => keys.string_put(space, key, value, expires_at_ms),
        }
    }

    /// Changes a string, keeping its expiry. The caller knows that the key is a string, or does not exist.
    #[inline]
    pub fn string_update(&mut self, space: usize, key: &[u8], value: &[u8]) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.string_update(space, key, value),
            Keyspace::Pairs(keys) => keys.string_update(space, key, value),
        }
    }

    /// Runs `read` on a hash. None if the key does not exist; WRONGTYPE if it is a string.
    #[inline]
    pub fn hash<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(&HashView<'_, '_, '_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        match self {
            Keyspace::Tiered(keys) => keys.hash(space, key, |view| read(&HashView::Tiered(view))),
            Keyspace::Pairs(keys) => keys.hash(space, key, |view| read(&HashView::Pairs(view))),
        }
    }

    /// [`Keyspace::hash`] of a key that may have been looked up already.
    #[inline]
    pub fn hash_prefetched<R>(
        &self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        read: impl FnOnce(&HashView<'_, '_, '_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        match self {
            Keyspace::Tiered(keys) => {
                keys.hash_prefetched(space, key, prefetched, |view| read(&HashView::Tiered(view)))
            }
            Keyspace::Pairs(keys) => keys.hash(space, key, |view| read(&HashView::Pairs(view))),
        }
    }

    /// Writes fields of a hash, making it if need be; says how many of them it did not have. The last value of a name
    /// wins. Keeps the key's expiry; that of the fields is as given. The store changes once or not at all.
    #[inline]
    pub fn hash_set<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        writes: impl Iterator<Item = FieldWrite<'v>> + Clone,
    ) -> Outcome<usize> {
        match self {
            Keyspace::Tiered(keys) => keys.hash_set(space, key, writes),
            Keyspace::Pairs(keys) => keys.hash_set(space, key, writes),
        }
    }

    /// [`Keyspace::hash_set`] of a key that may have been looked up already, which is not waited for.
    #[inline]
    pub fn hash_set_prefetched<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        pairs: impl Iterator<Item = (&'v [u8], &'v [u8])> + Clone,
    ) -> Outcome<usize> {
        match self {
            Keyspace::Tiered(keys) => keys.hash_set_prefetched(space, key, prefetched, pairs),
            Keyspace::Pairs(keys) => keys.hash_set(space, key, pairs.map(FieldWrite::lasting)),
        }
    }

    /// Removes fields of a hash, and the hash with its last field; says how many it had.
    pub fn hash_delete<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        names: impl Iterator<Item = &'v [u8]> + Clone,
    ) -> Outcome<usize> {
        match self {
            Keyspace::Tiered(keys) => keys.hash_delete(space, key, names),
            Keyspace::Pairs(keys) => keys.hash_delete(space, key, names),
        }
    }

    /// Sets or clears the expiry of those of these fields that exist, all of them or none.
    pub fn hash_expire_fields<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        names: impl Iterator<Item = &'v [u8]>,
        at_ms: Option<u64>,
    ) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.hash_expire_fields(space, key, names, at_ms),
            Keyspace::Pairs(keys) => keys.hash_expire_fields(space, key, names, at_ms),
        }
    }

    /// Runs `visit` on keys of a database from a position on, passing at most `budget` rows, until it says false; gives the
    /// position where to go on, None at the end.
    pub fn scan_keys(
        &self,
        space: usize,
        from: Option<&Position>,
        budget: usize,
        filter: Filter<'_>,
        visit: impl FnMut(&[u8]) -> bool,
    ) -> Outcome<Option<Position>> {
        match self {
            Keyspace::Tiered(keys) => keys.scan_keys(space, from, budget, filter, visit),
            Keyspace::Pairs(keys) => keys.scan_keys(space, from, budget, filter, visit),
        }
    }

    /// A key chosen by `random`, every one as likely as any other.
    pub fn random_key(&self, space: usize, random: &mut Random) -> Outcome<Option<Vec<u8>>> {
        match self {
            Keyspace::Tiered(keys) => keys.random_key(space, random),
            Keyspace::Pairs(keys) => keys.random_key(space, random),
        }
    }

    /// Declares the table of a prefix.
    pub fn declare(&mut self, space: usize, prefix: &[u8], fields: &[Declared]) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.declare(space, prefix, fields),
            Keyspace::Pairs(keys) => keys.declare(space, prefix, fields),
        }
    }

    /// The fields of the table of a prefix.
    pub fn fields(&self, space: usize, prefix: &[u8]) -> Outcome<Vec<Declared>> {
        match self {
            Keyspace::Tiered(keys) => keys.fields(space, prefix),
            Keyspace::Pairs(keys) => keys.fields(space, prefix),
        }
    }

    /// The tables of a database, in the order of their prefixes.
    pub fn summaries(&self, space: usize) -> Outcome<Vec<TableSummary>> {
        match self {
            Keyspace::Tiered(keys) => Ok(keys.summaries(space)),
            Keyspace::Pairs(keys) => keys.summaries(space),
        }
    }

    /// Adds a nullable field to a table.
    pub fn add_field(&mut self, space: usize, prefix: &[u8], name: &str, kind: Type) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.add_field(space, prefix, name, kind),
            Keyspace::Pairs(keys) => keys.add_field(space, prefix, name, kind),
        }
    }

    /// Gives a field another name.
    pub fn rename_field(&mut self, space: usize, prefix: &[u8], name: &str, to: &str) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.rename_field(space, prefix, name, to),
            Keyspace::Pairs(keys) => keys.rename_field(space, prefix, name, to),
        }
    }

    /// Removes a field from a table and so from all its rows.
    pub fn drop_field(&mut self, space: usize, prefix: &[u8], name: &str) -> Outcome<()> {
        match self {
            Keyspace::Tiered(keys) => keys.drop_field(space, prefix, name),
            Keyspace::Pairs(keys) => keys.drop_field(space, prefix, name),
        }
    }

    /// Drops the table of a prefix, its schema and its rows; says whether there was one.
    pub fn drop_table(&mut self, space: usize, prefix: &[u8]) -> Outcome<bool> {
        match self {
            Keyspace::Tiered(keys) => keys.drop_table(space, prefix),
            Keyspace::Pairs(keys) => keys.drop_table(space, prefix),
        }
    }

    /// Removes some of what has expired and looks for more, a bounded amount.
    pub fn sweep(&mut self) {
        match self {
            Keyspace::Tiered(keys) => keys.sweep(),
            Keyspace::Pairs(_) => {}
        }
    }

    /// Whether there is nothing to sweep soon.
    pub fn is_swept(&self) -> bool {
        match self {
            Keyspace::Tiered(keys) => keys.expiries.is_idle(),
            Keyspace::Pairs(_) => true,
        }
    }
}

impl HashView<'_, '_, '_> {
    /// Runs `read` on the value of a field (`Null` if it has none) and on its expiry.
    #[inline]
    pub fn field<R>(&self, name: &[u8], read: impl FnOnce(Value<'_>) -> R) -> hedgerow::Result<R> {
        match self {
            HashView::Tiered(view) => view.field(name, read),
            HashView::Pairs(view) => view.field(name, read),
        }
    }

    /// The expiry of a field: None if there is no such field, else its time if it has one.
    pub fn field_expiry(&self, name: &[u8]) -> hedgerow::Result<Option<Option<u64>>> {
        match self {
            HashView::Tiered(view) => view.field_expiry(name),
            HashView::Pairs(view) => view.field_expiry(name),
        }
    }

    /// Runs `visit` on each field's name and value, until it says false.
    #[inline]
    pub fn for_each(&self, visit: impl FnMut(&[u8], Value<'_>) -> bool) -> hedgerow::Result<()> {
        match self {
            HashView::Tiered(view) => view.for_each(visit),
            HashView::Pairs(view) => view.for_each(visit),
        }
    }

    /// Like [`HashView::for_each`], without the overflow fields.
    #[inline]
    pub fn for_each_own(&self, mut visit: impl FnMut(&[u8], Value<'_>)) -> hedgerow::Result<()> {
        match self {
            HashView::Tiered(view) => view.for_each_own(visit),
            HashView::Pairs(view) => view.for_each(|name, value| {
                visit(name, value);
                true
            }),
        }
    }

    /// Runs `visit` on the overflow fields after `after`, until it says false.
    pub fn for_each_overflow(
        &self,
        after: Option<&[u8]>,
        visit: impl FnMut(&[u8], Value<'_>) -> bool,
    ) -> hedgerow::Result<()> {
        match self {
            HashView::Tiered(view) => view.for_each_overflow(after, visit),
            HashView::Pairs(_) => Ok(()),
        }
    }

    /// How many fields there are.
    pub fn count(&self) -> hedgerow::Result<u64> {
        match self {
            HashView::Tiered(view) => view.count(),
            HashView::Pairs(view) => view.count(),
        }
    }
}
