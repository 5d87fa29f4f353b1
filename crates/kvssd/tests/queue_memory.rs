//! What a queue pair asks of the allocator: all of it at its opening.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use hedgerow_device::{CountingAllocator, FastTier, FastTierOptions, allocations};
use hedgerow_kvssd::{
    Device, DeviceOptions, DeviceThread, Geometry, HostRequest, KvAnswer, KvCommand, PairKey, StoreMode,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// In bytes, `depth` times a key and a value buffer; and nothing is allocated, in the thread that has the queue, by commands with keys that lie in them. A longer key takes memory of its own while it is under way.
#[test]
fn memory_is_set_aside_at_the_opening() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 256 << 10, blocks: 16 };
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
    let thread =
        DeviceThread::start(Device::format(tier, geometry, DeviceOptions::default()).unwrap()).unwrap();
    let mut queue = thread.opener().open(64, 4096).unwrap();
    assert_eq!(queue.buffer_bytes(), 64 * (255 + 4096));
    let name = PairKey::new(b"one").unwrap();
    let made = queue.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 })).unwrap();
    let KvAnswer::Space(info) = made else { panic!("{made:?}") };
    let (space, mode, value) = (info.id, StoreMode::Post, [7; 4096]);
    for (key_bytes, allocated) in [(30, 0), (31, 1)] {
        let before = allocations();
        let (mut submitted, mut read_bytes) = (0u64, 0);
        for n in 0..20_000u64 {
            let mut key = [b'.'; 31];
            key[..8].copy_from_slice(&(n % 300).to_le_bytes());
            let (key, len) = (&key[..key_bytes], (n * 37 % 4097) as usize);
            let request = match n % 3 {
                0 => HostRequest::Retrieve { space, key, offset: 0, bytes: 4096, delete: n % 9 == 0 },
                _ => HostRequest::Store { space, key, value: &value[..len], mode },
            };
            if let Ok(ticket) = queue.submit(request) {
                submitted += 1;
                if n % 50 == 0 {
                    queue.wait(ticket, Duration::from_secs(60), |_, _| ()).unwrap().unwrap();
                }
            } else {
                queue.poll(|_, _, read| read_bytes += read.len());
            }
        }
        while queue.poll(|_, _, read| read_bytes += read.len()) {}
        assert!(submitted > 400 && read_bytes > 0, "{submitted} {read_bytes}");
        assert_eq!(allocations() - before, submitted * allocated, "{key_bytes} bytes of a key");
    }
    assert_eq!(queue.buffer_bytes(), 64 * (255 + 4096));
    drop(queue);
    thread.stop().unwrap().close().unwrap();
}
