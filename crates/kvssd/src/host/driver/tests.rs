use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc as StdArc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use hedgerow_device::{FastTier, FastTierOptions, Random};

use super::*;
use crate::command::{KvAnswer, KvCommand, PairKey, SpaceId, SpaceInfo, StoreMode};
use crate::device::DeviceOptions;
use crate::flash::geometry::Geometry;
use crate::host::{HostRequest, HostTicket};

const LONG: Duration = Duration::from_secs(60);

fn device(depth: usize) -> Device {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 256 << 10, blocks: 32 };
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
    Device::format(tier, geometry, DeviceOptions { depth, ..DeviceOptions::default() }).unwrap()
}

/// A driver, a queue of it, and a key space.
fn driven(depth: usize) -> (QueueDriver, QueuePair, SpaceId) {
    let mut driver = QueueDriver::new(device(64));
    let mut queue = driver.opener().open(depth, 1024).unwrap();
    let name = PairKey::new(b"one").unwrap();
    let made = queue.submit(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 })).unwrap();
    while driver.drive() {}
    let answered = queue.wait(made, Duration::ZERO, |result, _| result.unwrap()).unwrap();
    let Some(KvAnswer::Space(info)) = answered else { panic!("{answered:?}") };
    (driver, queue, info.id)
}

fn store<'a>(space: SpaceId, key: &'a [u8], value: &'a [u8]) -> HostRequest<'a> {
    HostRequest::Store { space, key, value, mode: StoreMode::Post }
}

fn retrieve(space: SpaceId, key: &[u8]) -> HostRequest<'_> {
    HostRequest::Retrieve { space, key, offset: 0, bytes: 1024, delete: false }
}

#[test]
fn commands_are_complete_once_in_their_order_and_depth_is_a_limit() {
    let (mut driver, mut queue, space) = driven(4);
    let given: Vec<_> = (0..4u8).map(|n| queue.submit(store(space, &[n], &[n])).unwrap()).collect();
    assert!(matches!(queue.submit(store(space, b"x", b"")), Err(KvError::QueueFull { depth: 4 })));
    assert!(queue.poll(|ticket, _, _| panic!("{ticket:?}, and nobody drives")));
    while driver.drive() {}
    let mut seen = Vec::new();
    assert!(!queue.poll(|ticket, result, _| seen.push((ticket, result.unwrap()))));
    assert!(seen.into_iter().eq(given.iter().map(|&ticket| (ticket, KvAnswer::Stored))));
    queue.poll(|ticket, _, _| panic!("{ticket:?} twice"));
    assert!(matches!(queue.wait(given[0], LONG, |_, _| ()), Err(KvError::Param { .. })));
    let refused = queue.submit(store(space, b"", b""));
    assert!(matches!(refused, Err(KvError::KeyLength { bytes: 0, .. })));
    let refused = queue.submit(store(space, b"k", &[7; 1025]));
    assert!(matches!(refused, Err(KvError::ValueLength { bytes: 1025, max: 1024 })));
    let refused = queue.submit(HostRequest::Other(KvCommand::Exist { space, keys: Vec::new() }));
    assert!(matches!(refused, Err(KvError::Param { .. })));
    assert_eq!(queue.under_way(), 0, "what was refused took no place");
    assert!(matches!(driver.opener().open(0, 1), Err(KvError::Param { .. })));
}

/// A time-out loses nothing: the command stays under way, keeps its buffer and its place, and is complete later, once.
#[test]
fn a_command_that_was_not_waited_for_to_its_end_is_complete_later() {
    let (mut driver, mut queue, space) = driven(2);
    let late = queue.submit(store(space, b"k", b"late")).unwrap();
    assert_eq!(queue.wait(late, Duration::from_millis(20), |_, _| ()).unwrap(), None);
    assert_eq!(queue.wait(late, Duration::ZERO, |_, _| ()).unwrap(), None);
    assert_eq!(queue.under_way(), 1);
    while driver.drive() {}
    let read = queue.submit(retrieve(space, b"k")).unwrap();
    while driver.drive() {}
    let value = queue.wait(read, Duration::ZERO, |result, value| (result.unwrap(), value.to_vec()));
    assert_eq!(value.unwrap(), Some((KvAnswer::Retrieved { value_bytes: 4 }, b"late".to_vec())));
    assert_eq!(
        queue.wait(late, Duration::ZERO, |result, _| result.unwrap()).unwrap(),
        Some(KvAnswer::Stored)
    );
    assert!(!queue.poll(|ticket, _, _| panic!("{ticket:?} twice")));
}

#[test]
fn the_descriptor_is_readable_while_there_are_completions() {
    let (mut driver, mut queue, space) = driven(4);
    queue.ready_fd().unwrap();
    let event = queue.event_for_tests().unwrap();
    assert!(!event.is_readable());
    let first = queue.submit(store(space, b"a", b"")).unwrap();
    queue.submit(store(space, b"b", b"")).unwrap();
    assert!(!event.is_readable());
    while driver.drive() {}
    assert!(event.is_readable());
    queue.wait(first, Duration::ZERO, |_, _| ()).unwrap().unwrap();
    assert!(event.is_readable(), "one is left");
    let again = queue.wait(first, Duration::ZERO, |_, _| ());
    assert!(
        matches!(again, Err(KvError::Param { .. })) && event.is_readable(),
        "it was handed out: {again:?}"
    );
    queue.poll(|_, _, _| ());
    assert!(!event.is_readable());
    queue.submit(store(space, b"c", b"")).unwrap();
    drop(driver);
    assert!(event.is_readable(), "its end is told, too");
    let mut ends = Vec::new();
    queue.poll(|_, result, _| ends.push(result));
    assert!(matches!(ends[..], [Err(KvError::Closed { .. })]), "{ends:?}");
    assert!(matches!(queue.submit(store(space, b"d", b"")), Err(KvError::Closed { .. })));
}

/// A queue that always has something submitted does not keep another from its turn.
#[test]
fn queues_have_their_turns() {
    let mut driver = QueueDriver::new(device(16));
    let (mut flood, mut other) =
        (driver.opener().open(64, 16).unwrap(), driver.opener().open(1, 16).unwrap());
    let submit = |queue: &mut QueuePair| queue.submit(HostRequest::Other(KvCommand::DeviceInfo));
    let mut of_other = 0;
    for _ in 0..100 {
        while submit(&mut flood).is_ok() {}
        submit(&mut other).ok();
        driver.drive();
        flood.poll(|_, _, _| ());
        other.poll(|_, _, _| of_other += 1);
    }
    assert!(of_other >= 50, "{of_other} of 100");
}

/// Commands of a queue that is gone have no completions, and none go to the queue that has its number then.
#[test]
fn a_queue_that_is_dropped_leaves_nothing_to_the_next() {
    let (mut driver, mut queue, space) = driven(4);
    for n in 0..4u8 {
        queue.submit(store(space, &[n], b"gone")).unwrap();
    }
    drop(queue);
    let mut next = driver.opener().open(4, 1024).unwrap();
    while driver.drive() {}
    next.poll(|ticket, _, _| panic!("{ticket:?} is nobody's"));
    let mut last = driver.opener().open(4, 1024).unwrap();
    let tickets =
        [&mut next, &mut last].map(|queue| (queue.submit(store(space, b"k", b"v")).unwrap(), queue));
    while driver.drive() {}
    for (ticket, queue) in tickets {
        assert_eq!(queue.wait(ticket, Duration::ZERO, |result, _| result.is_ok()).unwrap(), Some(true));
    }
}

/// Wakes a thread that sleeps until its future has something.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: StdArc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(StdArc::new(ThreadWaker(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_future_is_done_when_there_is_a_completion() {
    let thread = DeviceThread::start(device(64)).unwrap();
    let mut queue = thread.opener().open(8, 1024).unwrap();
    block_on(queue.ready());
    let name = PairKey::new(b"one").unwrap();
    queue.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 })).unwrap();
    let mut done = 0;
    for _ in 0..500 {
        while queue.submit(HostRequest::Other(KvCommand::DeviceInfo)).is_ok() {}
        block_on(queue.ready());
        let before = done;
        queue.poll(|_, _, _| done += 1);
        assert!(done > before, "a future that is done has something to hand out");
    }
    while queue.under_way() > 0 {
        block_on(queue.ready());
        queue.poll(|_, _, _| done += 1);
    }
    assert!(done >= 500);
    // It is woken by the end of the device, too.
    queue.submit(HostRequest::Other(KvCommand::DeviceInfo)).unwrap();
    drop(thread);
    block_on(queue.ready());
    queue.poll(|_, result, _| assert!(matches!(result, Ok(_) | Err(KvError::Closed { .. }))));
}

/// What was submitted before the stop is carried out, and nothing after; each has one answer. The device comes back as it is.
#[test]
fn stopping_carries_out_what_was_submitted() {
    for round in 0..20 {
        let thread = DeviceThread::start(device(16)).unwrap();
        let mut queue = thread.opener().open(64, 64).unwrap();
        let name = PairKey::new(b"one").unwrap();
        let made = queue.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 })).unwrap();
        let KvAnswer::Space(SpaceInfo { id: space, .. }) = made else { panic!("{made:?}") };
        for n in 0..40u8 {
            queue.submit(store(space, &[n], b"v")).unwrap();
        }
        let device = thread.stop().unwrap();
        assert!(matches!(queue.submit(store(space, b"x", b"")), Err(KvError::Closed { .. })));
        let (mut stored, mut ends) = (0, 0);
        while queue.poll(|_, result, _| (stored, ends) = (stored + u64::from(result.is_ok()), ends + 1)) {}
        assert_eq!((stored, ends, device.info().pairs), (40, 40, 40), "round {round}");
    }
}

/// A driver that panics tells its queues: who waits does not wait for ever.
#[test]
fn a_panic_of_the_driver_is_told() {
    let (driver, mut queue, space) = driven(4);
    let ticket = queue.submit(store(space, b"k", b"v")).unwrap();
    let panicking = spawn("panics", move || {
        let _driver = driver;
        panic!("as a device would, of a fault of its own");
    });
    let ended = queue.wait(ticket, LONG, |result, _| result).unwrap();
    assert!(matches!(ended, Some(Err(KvError::Closed { .. }))), "{ended:?}");
    assert!(panicking.unwrap().join().is_err());
    assert!(matches!(queue.call(store(space, b"k", b"v")), Err(KvError::Closed { .. })));
}

/// A queue, whose it was, and what its keys have.
struct Handed {
    queue: QueuePair,
    number: u8,
    random: Random,
    model: BTreeMap<u8, u64>,
    /// Of commands under way: key, and what it reads or whether it is a store.
    expected: BTreeMap<HostTicket, (u8, Option<u64>)>,
    done: u64,
}

impl Handed {
    /// Some commands, and what of them is complete. Each reads what was last stored before it.
    fn turn(&mut self, space: SpaceId) {
        for _ in 0..self.random.below(20) {
            let n = self.random.below(40) as u8;
            let key = [self.number, n];
            let (request_value, expected) = match self.random.below(2) {
                0 => (Some(self.random.next_u64()), None),
                _ => (None, Some(self.model.get(&n).copied().unwrap_or(0))),
            };
            let bytes = request_value.unwrap_or(0).to_le_bytes();
            let request = match request_value {
                Some(_) => store(space, &key, &bytes),
                None => retrieve(space, &key),
            };
            match self.queue.submit(request) {
                Ok(ticket) => {
                    if let Some(value) = request_value {
                        self.model.insert(n, value);
                    }
                    self.expected.insert(ticket, (n, expected));
                }
                Err(KvError::QueueFull { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let one = self.expected.keys().next().copied().filter(|_| self.random.below(4) == 0);
        if let Some(ticket) = one {
            let ended = self.queue.wait(ticket, LONG, |result, value| (result, value.to_vec())).unwrap();
            let (result, value) = ended.expect("in a minute");
            check(&mut self.expected, ticket, result, &value);
            self.done += 1;
        }
        let (expected, done) = (&mut self.expected, &mut self.done);
        self.queue.poll(|ticket, result, value| {
            check(expected, ticket, result, value);
            *done += 1;
        });
    }
}

fn check(
    expected: &mut BTreeMap<HostTicket, (u8, Option<u64>)>,
    ticket: HostTicket,
    result: Result<KvAnswer>,
    value: &[u8],
) {
    let (key, reads) = expected.remove(&ticket).expect("a completion once, to whom it belongs");
    match (result, reads) {
        (Ok(KvAnswer::Stored), None) => {}
        (Ok(KvAnswer::Retrieved { .. }), Some(last)) => assert_eq!(value, last.to_le_bytes(), "key {key}"),
        (Err(KvError::KeyMissing), Some(0)) => {}
        (other, _) => panic!("{other:?} of key {key}, {reads:?} expected"),
    }
}

/// Six queues go from hand to hand of four threads while the device's own thread drives them: all that is started is complete once, in the queue's order, and reads what was stored.
#[test]
fn queues_go_from_thread_to_thread() {
    let thread = DeviceThread::start(device(16)).unwrap();
    let name = PairKey::new(b"one").unwrap();
    let made = thread.opener().open(1, 16).unwrap();
    let made = { made }.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 })).unwrap();
    let KvAnswer::Space(SpaceInfo { id: space, .. }) = made else { panic!("{made:?}") };
    let (give, take) = channel();
    let take = StdArc::new(std::sync::Mutex::new(take));
    for number in 0..6 {
        let queue = thread.opener().open(8 + usize::from(number), 1024).unwrap();
        let random = Random::from_seed(u64::from(number));
        let (model, expected) = (BTreeMap::new(), BTreeMap::new());
        give.send(Handed { queue, number, random, model, expected, done: 0 }).unwrap();
    }
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (give, take) = (give.clone(), take.clone());
            let work = move || {
                for _ in 0..5_000 {
                    let mut handed = take.lock().unwrap().recv().unwrap();
                    handed.turn(space);
                    give.send(handed).unwrap();
                }
            };
            spawn("worker", work).unwrap()
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    drop(give);
    let mut done = 0;
    for mut handed in take.lock().unwrap().iter() {
        while handed.queue.under_way() > 0 {
            handed.turn(space);
        }
        assert!(handed.expected.is_empty());
        done += handed.done;
    }
    // How much is done in so many turns is for whoever has the processors.
    assert!(done > 1_000, "{done}");
}
