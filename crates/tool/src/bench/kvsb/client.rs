//! One client of one device: what it asks for, and whether the answer is right.
//!
//! Owns [`KvsbClient`]: keys, values that say whose they are, and what each key must have. Promises that each answer is compared with what was stored last before it, and that each latency is counted from when the
//! operation was to begin to when its answer was taken. Must not know what a report looks like.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hedgerow_device::{Random, crc32c};
use hedgerow_kvssd::{
    HostRequest, HostTicket, KvAnswer, KvCommand, KvError, PairKey, QueuePair, SpaceId, StoreMode,
};

use super::sizes::{VALUE_BYTES_MIN, ValueSizes};
use crate::bench::distribution::{Distribution, KeyChooser};

/// How long a client waits for one answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest latency that is told from longer ones.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Operations between two looks at what is complete.
const OPERATIONS_A_LOOK: u64 = 8;

/// What is done to a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvsbOperation {
    Read = 0,
    Update = 1,
    Insert = 2,
    Delete = 3,
}

impl KvsbOperation {
    pub(super) const ALL: [KvsbOperation; 4] =
        [KvsbOperation::Read, KvsbOperation::Update, KvsbOperation::Insert, KvsbOperation::Delete];

    pub(super) fn name(self) -> &'static str {
        ["read", "update", "insert", "delete"][self as usize]
    }
}

/// What a client does in a phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvsbPlan {
    /// Percents of [`KvsbOperation::ALL`].
    pub(super) mix: [u64; 4],
    pub(super) operations: u64,
    /// Operations a second, begun whether or not others are complete; none, as many as go.
    pub(super) rate: Option<f64>,
    pub(super) distribution: Distribution,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct KvsbOutcome {
    pub(super) seconds: f64,
    pub(super) latencies: [Histogram<u64>; 4],
    /// Answers that were not what they had to be.
    pub(super) wrong: u64,
    /// Bytes of keys and values that were stored.
    pub(super) stored_bytes: u64,
    /// Bytes of keys and values that the queue took from the client to store them.
    pub(super) host_bytes: u64,
}

/// Under way: what, since when, which key, what there was of it, bytes to store.
type UnderWay = (KvsbOperation, Instant, u64, Option<u64>, u64);

/// What is under way, and what came of what is not.
struct KvsbAnswers {
    under_way: BTreeMap<HostTicket, UnderWay>,
    latencies: [Histogram<u64>; 4],
    wrong: u64,
    stored_bytes: u64,
    /// The first error of the device, which is no answer.
    failed: Option<KvError>,
}

impl KvsbAnswers {
    fn take(&mut self, ticket: HostTicket, result: &hedgerow_kvssd::Result<KvAnswer>, read: &[u8]) {
        use KvsbOperation::{Delete, Insert, Read, Update};
        let Some((operation, due, key, expected, bytes)) = self.under_way.remove(&ticket) else {
            self.wrong += 1;
            return;
        };
        self.latencies[operation as usize].saturating_record(due.elapsed().as_nanos() as u64);
        let is_right = match (result, operation) {
            (Ok(KvAnswer::Retrieved { .. }), Read) => is_value(read, key, expected),
            (Err(KvError::KeyMissing), Read) => expected.is_none(),
            (Ok(KvAnswer::Stored), Update | Insert) => {
                self.stored_bytes += bytes;
                true
            }
            (Ok(KvAnswer::Deleted(existed)), Delete) => *existed == expected.is_some(),
            (Err(error), _) if !matches!(error, KvError::KeyMissing) => {
                self.failed.get_or_insert_with(|| error.clone());
                true
            }
            _ => false,
        };
        self.wrong += u64::from(!is_right);
    }
}

/// A client, from phase to phase.
#[derive(Debug)]
pub(super) struct KvsbClient {
    space: SpaceId,
    random: Random,
    key_bytes: usize,
    sizes: ValueSizes,
    value: Vec<u8>,
    /// Of each key that was ever there, the version that was stored last; none: it was deleted.
    versions: Vec<Option<u64>>,
    /// Keys below this were deleted in the order that they came in.
    deleted: u64,
    version: u64,
}

impl KvsbClient {
    pub(super) fn new(space: SpaceId, key_bytes: usize, sizes: ValueSizes, seed: u64) -> KvsbClient {
        let mut random = Random::from_seed(seed);
        let value = (0..sizes.most().max(VALUE_BYTES_MIN)).map(|_| random.below(256) as u8).collect();
        KvsbClient { space, random, key_bytes, sizes, value, versions: Vec::new(), deleted: 0, version: 0 }
    }

    /// Keys that were ever there.
    pub(super) fn keys(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Pairs that are left.
    pub(super) fn pairs(&self) -> u64 {
        self.keys() - self.deleted
    }

    /// As [`key_of`] says.
    pub(super) fn key(&self, number: u64) -> Vec<u8> {
        key_of(number, self.key_bytes)
    }

    /// Does what was planned, and tells `done` of each operation.
    ///
    /// # Errors
    /// Of the queue or the device: what has no answer. Answers that are wrong are counted.
    pub(super) fn run(
        &mut self,
        queue: &mut QueuePair,
        plan: &KvsbPlan,
        done: &AtomicU64,
    ) -> hedgerow_kvssd::Result<KvsbOutcome> {
        let mut answers = KvsbAnswers {
            under_way: BTreeMap::new(),
            latencies: histograms(),
            wrong: 0,
            stored_bytes: 0,
            failed: None,
        };
        let mut chooser = KeyChooser::new(
            plan.distribution,
            self.keys(),
            plan.operations.saturating_mul(plan.mix[2]) / 100,
        );
        let (start, mut host_bytes) = (Instant::now(), 0);
        for number in 0..plan.operations {
            let due = plan.rate.map(|rate| start + Duration::from_secs_f64(number as f64 / rate));
            while due.is_some_and(|due| Instant::now() < due) {
                poll(queue, &mut answers);
            }
            let operation = self.operation(&plan.mix);
            let Some(key) = self.chosen(operation, &mut chooser) else {
                done.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            host_bytes += self.start(queue, &mut answers, (operation, due, key))?;
            if number % OPERATIONS_A_LOOK == 0 {
                poll(queue, &mut answers);
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        while !answers.under_way.is_empty() {
            wait(queue, &mut answers)?;
        }
        let KvsbAnswers { latencies, wrong, stored_bytes, failed, .. } = answers;
        if let Some(error) = failed {
            return Err(error);
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(KvsbOutcome { seconds, latencies, wrong, stored_bytes, host_bytes })
    }

    fn operation(&mut self, mix: &[u64; 4]) -> KvsbOperation {
        let mut percent = self.random.below(100);
        for (operation, &share) in KvsbOperation::ALL.into_iter().zip(mix) {
            if percent < share {
                return operation;
            }
            percent -= share;
        }
        KvsbOperation::Read
    }

    /// Which key: the next new one, the oldest that is left, or any that the distribution chooses. None where there is none.
    fn chosen(&mut self, operation: KvsbOperation, chooser: &mut KeyChooser) -> Option<u64> {
        match operation {
            KvsbOperation::Insert => Some(self.keys()),
            KvsbOperation::Delete => (self.deleted < self.keys()).then(|| {
                self.deleted += 1;
                self.deleted - 1
            }),
            KvsbOperation::Read | KvsbOperation::Update => {
                let (left, keys) = (self.pairs(), self.keys());
                let number = (left > 0).then(|| chooser.next(&mut self.random, keys))?;
                // Keys keep their share however many before them are gone; those that are gone give theirs to all others.
                Some(if number < self.deleted { self.deleted + number % left } else { number })
            }
        }
    }

    /// Starts an operation, once the queue has room for it: its latency counts from then on, or from when it was due. Bytes that the queue took to store.
    fn start(
        &mut self,
        queue: &mut QueuePair,
        answers: &mut KvsbAnswers,
        (operation, due, number): (KvsbOperation, Option<Instant>, u64),
    ) -> hedgerow_kvssd::Result<u64> {
        let (space, key) = (self.space, self.key(number));
        let expected = self.versions.get(number as usize).copied().flatten();
        let len = match operation {
            KvsbOperation::Update | KvsbOperation::Insert => self.write_value(number),
            _ => 0,
        };
        let (ticket, began) = loop {
            let request = match operation {
                KvsbOperation::Read => {
                    let bytes = self.value.len();
                    HostRequest::Retrieve { space, key: &key, offset: 0, bytes, delete: false }
                }
                KvsbOperation::Delete => {
                    let key = PairKey::new(&key)?;
                    HostRequest::Other(KvCommand::Delete { space, key, must_exist: false })
                }
                KvsbOperation::Update | KvsbOperation::Insert => {
                    let (value, mode) = (&self.value[..len], StoreMode::Post);
                    HostRequest::Store { space, key: &key, value, mode }
                }
            };
            let began = due.unwrap_or_else(Instant::now);
            match queue.submit(request) {
                Ok(ticket) => break (ticket, began),
                Err(KvError::QueueFull { .. }) => wait(queue, answers)?,
                Err(error) => return Err(error),
            }
        };
        match operation {
            KvsbOperation::Read => {}
            KvsbOperation::Delete => self.versions[number as usize] = None,
            KvsbOperation::Update => self.versions[number as usize] = Some(self.version),
            KvsbOperation::Insert => self.versions.push(Some(self.version)),
        }
        let bytes = if len > 0 { (key.len() + len) as u64 } else { 0 };
        answers.under_way.insert(ticket, (operation, began, number, expected, bytes));
        Ok(bytes)
    }

    /// A new version of a pair's value, of a size that is drawn. Bytes of it.
    fn write_value(&mut self, number: u64) -> usize {
        let len = self.sizes.draw(&mut self.random);
        self.version += 1;
        let value = &mut self.value[..len];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value[8..16].copy_from_slice(&self.version.to_le_bytes());
        value[16..20].copy_from_slice(&(len as u32).to_le_bytes());
        let sum = sum_of(value);
        value[20..24].copy_from_slice(&sum.to_le_bytes());
        len
    }
}

/// Some bytes that differ in their first four, and then the number.
pub(super) fn key_of(number: u64, len: usize) -> Vec<u8> {
    let spread = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = vec![b'.'; len];
    let bytes = [spread.to_be_bytes(), number.to_be_bytes()].concat();
    let len = len.min(bytes.len());
    key[..len].copy_from_slice(&bytes[..len]);
    key
}

/// Takes what is complete.
fn poll(queue: &mut QueuePair, answers: &mut KvsbAnswers) {
    queue.poll(|ticket, result, read| answers.take(ticket, &result, read));
}

/// Takes what is complete; where there is nothing, waits for the oldest.
fn wait(queue: &mut QueuePair, answers: &mut KvsbAnswers) -> hedgerow_kvssd::Result<()> {
    let before = answers.under_way.len();
    poll(queue, answers);
    let oldest = answers.under_way.keys().next().copied();
    let Some(ticket) = oldest.filter(|_| answers.under_way.len() == before) else { return Ok(()) };
    let ended = queue.wait(ticket, PATIENCE, |result, read| answers.take(ticket, &result, read))?;
    ended.ok_or_else(|| KvError::Closed { why: format!("no answer within {} seconds", PATIENCE.as_secs()) })
}

/// Whether this is the value of this version of a key.
fn is_value(read: &[u8], number: u64, version: Option<u64>) -> bool {
    let Some(version) = version else { return false };
    read.len() >= VALUE_BYTES_MIN
        && read[..8] == number.to_le_bytes()
        && read[8..16] == version.to_le_bytes()
        && read[16..20] == (read.len() as u32).to_le_bytes()
        && read[20..24] == sum_of(read).to_le_bytes()
}

/// Of a value, but for where it stands.
fn sum_of(value: &[u8]) -> u32 {
    crc32c(crc32c(0, &value[..20]), &value[VALUE_BYTES_MIN..])
}

pub(super) fn histograms() -> [Histogram<u64>; 4] {
    std::array::from_fn(|_| {
        // The bounds are right: the least is 1, and there are three digits.
        Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
            .unwrap_or_else(|_| unreachable!("bounds of a histogram"))
    })
}
