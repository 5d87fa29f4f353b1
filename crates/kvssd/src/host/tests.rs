use hedgerow_device::{FastTier, FastTierOptions};

use super::*;
use crate::device::DeviceOptions;
use crate::{Geometry, KeyPattern, batch_entries};

fn host() -> Host {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 16 };
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
    Host::new(Device::format(tier, geometry, DeviceOptions::default()).unwrap())
}

fn store(space: SpaceId, key: &[u8], value: &'static [u8]) -> HostRequest<'static> {
    let key = Box::leak(key.to_vec().into_boxed_slice());
    HostRequest::Store { space, key, value, mode: StoreMode::Post }
}

#[test]
fn completions_go_to_their_queues_once_and_depth_is_a_limit() {
    let mut host = host();
    let (a, b) = (host.open_queue(4, 1024), host.open_queue(2, 1024));
    let space = host.create_space(a, b"one", 0).unwrap();
    let of_a: Vec<_> = (0..4u8).map(|n| host.start(a, store(space, &[n + 1], b"a")).unwrap()).collect();
    assert!(matches!(host.start(a, store(space, b"x", b"a")), Err(KvError::QueueFull { depth: 4 })));
    let of_b = host.start(b, store(space, b"b", b"b")).unwrap();
    let mut seen = Vec::new();
    assert!(!host.poll(a, |ticket, result, _| seen.push((ticket, result.unwrap()))));
    assert_eq!(seen, of_a.iter().map(|&ticket| (ticket, KvAnswer::Stored)).collect::<Vec<_>>());
    host.poll(a, |ticket, _, _| panic!("{ticket:?} twice"));
    let mut seen = Vec::new();
    host.poll(b, |ticket, _, _| seen.push(ticket));
    assert_eq!(seen, [of_b]);
    assert!(matches!(host.wait(b, of_b, |_, _| ()), Err(KvError::Param { .. })));
}

/// Whoever waits for the last of several leaves the others to be polled.
#[test]
fn waiting_keeps_what_others_wait_for() {
    let mut host = host();
    let queue = host.open_queue(4, 1024);
    let space = host.create_space(queue, b"one", 0).unwrap();
    let first = host.start(queue, store(space, b"k", b"value")).unwrap();
    let retrieve = HostRequest::Retrieve { space, key: b"k", offset: 1, bytes: 100, delete: false };
    let second = host.start(queue, retrieve).unwrap();
    let read = host.wait(queue, second, |result, read| (result.unwrap(), read.to_vec())).unwrap();
    assert_eq!(read, (KvAnswer::Retrieved { value_bytes: 5 }, b"alue".to_vec()));
    let mut seen = Vec::new();
    host.poll(queue, |ticket, _, _| seen.push(ticket));
    assert_eq!(seen, [first]);
}

/// Memory is what was set aside at opening, however many pairs there are and whatever is refused.
#[test]
fn memory_does_not_grow() {
    let mut host = host();
    let queue = host.open_queue(8, 2048);
    let before = host.buffer_bytes();
    assert_eq!(before, 8 * (255 + 2048));
    let space = host.create_space(queue, b"one", 0).unwrap();
    assert_eq!(host.buffer_bytes(), before, "a command without a buffer leaves the slot its own");
    for n in 0..3000u32 {
        let key = (n % 700).to_le_bytes();
        let value = vec![n as u8; (n * 37 % 2049) as usize];
        let mode = StoreMode::Post;
        match host.call(queue, HostRequest::Store { space, key: &key, value: &value, mode }) {
            Ok(_) | Err(KvError::DeviceFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let request = HostRequest::Retrieve { space, key: &key, offset: 0, bytes: 2048, delete: n % 3 == 0 };
        let _ = host.call(queue, request);
    }
    assert_eq!(host.buffer_bytes(), before);
    let too_long = HostRequest::Store { space, key: b"k", value: &[0; 2049], mode: StoreMode::Post };
    assert!(matches!(host.call(queue, too_long), Err(KvError::ValueLength { bytes: 2049, max: 2048 })));
    assert!(matches!(
        host.call(queue, store(space, b"", b"")),
        Err(KvError::KeyLength { bytes: 0, max: 255 })
    ));
    let (selected, content) = (KeyPattern::ALL, crate::IteratorContent::Pairs);
    let open = HostRequest::Other(KvCommand::OpenIterator { space, selected, content, owner: 0 });
    let small = host.open_queue(2, 300);
    let with_small = host.buffer_bytes();
    host.call(queue, HostRequest::Store { space, key: b"!", value: &[7; 2000], mode: StoreMode::Post })
        .unwrap();
    let Ok(KvAnswer::Iterator(iterator)) = host.call(small, open) else { panic!("not opened") };
    let mut refused = 0;
    for _ in 0..5 {
        let next = host.call(small, HostRequest::IterateNext { iterator, bytes: 300 });
        refused += u32::from(matches!(next, Err(KvError::BufferSmall { .. })));
    }
    assert!(refused > 0);
    assert_eq!(host.buffer_bytes(), with_small, "an entry that does not fit is not read");
    let own = KvCommand::IterateNext { iterator: 1, buffer: vec![0; 1 << 20] };
    assert!(matches!(host.call(queue, HostRequest::Other(own)), Err(KvError::Param { .. })));
    assert_eq!(host.buffer_bytes(), with_small);
}

#[test]
fn a_walk_goes_through_the_queues_buffers() {
    let mut host = host();
    let queue = host.open_queue(2, 512);
    let space = host.create_space(queue, b"one", 0).unwrap();
    for n in 0..100u8 {
        host.call(queue, store(space, &[n, 1], b"v")).unwrap();
    }
    let (selected, content) = (KeyPattern::ALL, crate::IteratorContent::Keys);
    let open = HostRequest::Other(KvCommand::OpenIterator { space, selected, content, owner: 0 });
    let Ok(KvAnswer::Iterator(iterator)) = host.call(queue, open) else { panic!("not opened") };
    let (mut keys, mut is_end) = (0, false);
    while !is_end {
        let ticket = host.start(queue, HostRequest::IterateNext { iterator, bytes: 100 }).unwrap();
        is_end = host
            .wait(queue, ticket, |result, read| {
                keys += batch_entries(read, content).unwrap().len();
                matches!(result, Ok(KvAnswer::Batch { end: true, .. }))
            })
            .unwrap();
    }
    assert_eq!(keys, 100);
    assert!(matches!(host.find_space(queue, &[7; 256]), Err(KvError::SpaceName { bytes: 256, max: 255 })));
    assert_eq!(host.find_space(queue, b"one").unwrap().pairs, 100);
}

/// What was queued is not carried out for somebody who has no slots for it.
#[test]
fn a_device_that_is_taken_back_has_nothing_queued() {
    let mut host = host();
    let queue = host.open_queue(4, 1024);
    let space = host.create_space(queue, b"one", 0).unwrap();
    host.start(queue, store(space, b"k", b"v")).unwrap();
    let mut device = host.into_device();
    let mut out = Out::default();
    assert!(!device.step(0, &mut out) && out.completions.is_empty());
    assert_eq!(device.info().pairs, 0);
}
