use super::*;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use crate::file::cached_pages;
use crate::{Clock, Random, crc32c};

const MIB: u64 = 1 << 20;

/// A directory of one test, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hedgerow-device-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("fast")
    }

    fn open(&self) -> TierBytes {
        FastTier::open_file(&self.file(), &FastTierOptions::default(), true).unwrap().into_bytes()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Of what the one holder promised another knows nothing.
#[test]
fn the_bytes_of_a_tier_have_one_holder() {
    let tier = Arc::new(FastTier::dram(&FastTierOptions::default()).unwrap());
    has_one_holder(|| Arc::clone(&tier));
}

/// Whether only one at a time can have the bytes of the tiers that `tier` gives.
fn has_one_holder(tier: impl Fn() -> Arc<FastTier>) {
    let ask = || {
        // SAFETY: nothing is loaded nor stored.
        unsafe { TierBytes::new(tier()) }
    };
    let first = ask().unwrap();
    let clone = first.clone();
    assert!(matches!(ask(), Err(DeviceError::Locked { .. })));
    drop(first);
    assert!(matches!(ask(), Err(DeviceError::Locked { .. })), "a clone is left");
    drop(clone);
    drop(ask().unwrap());
}

/// Two tiers over one simulated medium are over the same memory.
#[test]
fn the_bytes_of_a_simulated_medium_have_one_holder() {
    let sim = CrashSim::new(CrashModel::Pages, MIB);
    has_one_holder(|| Arc::new(FastTier::simulated(&sim)));
    // Another medium is other memory.
    let another = FastTier::from_image(&sim.process_kill()).into_bytes();
    has_one_holder(|| Arc::new(FastTier::simulated(&sim)));
    drop(another);
}

fn put(tier: &TierBytes, offset: u64, bytes: &[u8]) {
    tier.write(offset, bytes.len(), |place| place.copy_from_slice(bytes));
}

fn every_medium(scratch: &Scratch) -> Vec<TierBytes> {
    let options = FastTierOptions { bytes_max: 64 * MIB, ..FastTierOptions::default() };
    let emulated_file = EmulatedBase::File(scratch.0.join("emulated"));
    let optane = PersistentMemoryModel::optane();
    vec![
        FastTier::open_file(&scratch.file(), &options, true).unwrap().into_bytes(),
        FastTier::dram(&options).unwrap().into_bytes(),
        FastTier::emulated(EmulatedBase::Dram, optane.clone(), &options).unwrap().into_bytes(),
        FastTier::emulated(emulated_file, optane, &options).unwrap().into_bytes(),
        FastTier::simulated(&CrashSim::new(CrashModel::CacheLines, 64 * MIB)).into_bytes(),
        FastTier::simulated(&CrashSim::new(CrashModel::Pages, 64 * MIB)).into_bytes(),
    ]
}

#[test]
fn every_medium_gives_back_what_it_was_given() {
    let scratch = Scratch::new();
    for tier in every_medium(&scratch) {
        let medium = tier.medium();
        assert_eq!((tier.bytes(), tier.bytes_max()), (0, 64 * MIB), "{medium}");
        tier.grow(MIB).unwrap();
        assert!(tier.read(0, MIB as usize).iter().all(|&byte| byte == 0), "{medium}: new bytes are zero");
        put(&tier, 1_000, b"before growth");
        let early = tier.read(1_000, 13);
        tier.grow(10 * MIB).unwrap();
        tier.populate(5 * MIB + 17, 3 * MIB);
        tier.read_nothing_ahead();
        tier.grow(11 * MIB).unwrap();
        tier.will_need(9 * MIB, MIB);
        assert_eq!(early, b"before growth", "{medium}: slices outlive growth");

        let mut random = Random::from_seed(9);
        let bytes: Vec<u8> = (0..3 * MIB).map(|_| random.next_u64() as u8).collect();
        put(&tier, 5 * MIB + 17, &bytes);
        tier.store_u64(64, u64::MAX - 5);
        tier.persist(64, 8).unwrap();
        tier.persist(5 * MIB + 17, bytes.len() as u64).unwrap();
        tier.persist_all().unwrap();
        // Neither what is durable nor what is not yet may be lost with the pages.
        tier.store_u64(72, 7);
        tier.populate_for_small_syncs(0, 10 * MIB, true);
        tier.populate_for_small_syncs(0, 10 * MIB, false);
        assert_eq!(tier.load_u64(72), 7, "{medium}");
        tier.store_u64(80, 8);
        tier.remap(0, 10 * MIB);
        tier.remap(u64::MAX, 1);
        assert_eq!(tier.load_u64(80), 8, "{medium}: mapped anew before it was persisted");
        tier.store_u64(80, 9);
        assert_eq!(tier.load_u64(80), 9, "{medium}: what was mapped anew can be stored to");
        tier.write_apart(96, b"apart");
        assert_eq!(
            (tier.read(96, 5), tier.load_u64(80)),
            (&b"apart"[..], 9),
            "{medium}: seen at once, alone"
        );
        tier.prefetch(5 * MIB, 64);
        tier.prefetch(u64::MAX, 64);
        assert_eq!(crc32c(0, tier.read(5 * MIB + 17, bytes.len())), crc32c(0, &bytes), "{medium}");
        assert_eq!(tier.load_u64(64), u64::MAX - 5, "{medium}");
        assert_eq!(tier.read(64, 8), (u64::MAX - 5).to_le_bytes(), "{medium}: words are little-endian");
        assert_eq!(tier.write(0, 2, |place| place.len()), 2, "{medium}: write answers what fill answers");
    }
}

#[test]
fn persisting_nothing_or_beyond_the_end_is_harmless() {
    let scratch = Scratch::new();
    for tier in every_medium(&scratch) {
        tier.persist(0, 0).unwrap();
        tier.persist_all().unwrap();
        tier.grow(4096).unwrap();
        tier.persist(100, u64::MAX).unwrap();
        tier.persist(u64::MAX, 5).unwrap();
        tier.populate(0, u64::MAX);
        tier.populate(u64::MAX, 1);
        tier.will_need(u64::MAX, 1);
        tier.will_need(0, u64::MAX);
        tier.populate_for_small_syncs(u64::MAX, 1, true);
    }
}

#[test]
fn a_file_is_found_again() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    tier.grow(3 * MIB).unwrap();
    put(&tier, 2 * MIB, b"still here");
    tier.persist(2 * MIB, 10).unwrap();
    drop(tier);
    let tier = scratch.open();
    assert_eq!(tier.bytes(), 3 * MIB);
    assert_eq!(tier.read(2 * MIB, 10), b"still here");
    assert_eq!(tier.path(), Some(scratch.file().as_path()));
    assert_eq!(tier.boot_id(), boot_id());
}

#[test]
fn what_is_persisted_can_be_read_around_the_mapping() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    tier.grow(MIB).unwrap();
    put(&tier, 4095, b"across");
    tier.persist(4095, 6).unwrap();
    let file = std::fs::read(scratch.file()).unwrap();
    assert_eq!((file.len() as u64, &file[4095..4101]), (MIB, b"across".as_slice()));
}

/// Dirty pages of the page cache in a range of a file, where the kernel can say.
fn dirty_pages(path: &Path, offset: u64, len: u64) -> Option<u64> {
    let file = std::fs::File::open(path).unwrap();
    cached_pages(&file, offset, len).map(|(_, unwritten)| unwritten)
}

#[test]
fn persisting_leaves_no_dirty_page_in_the_range() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    let wide = 64 * page_bytes();
    tier.grow(4 * wide).unwrap();
    tier.persist_all().unwrap();
    if dirty_pages(&scratch.file(), 0, wide) != Some(0) {
        // An old kernel, or a file system in memory, whose pages are never clean.
        return;
    }
    put(&tier, 0, &vec![1; 4 * wide as usize]);
    tier.persist(wide + 1, wide - 2).unwrap();
    assert_eq!(dirty_pages(&scratch.file(), wide, wide), Some(0));
    // The kernel may write others back in its own time, so what is left dirty has no lower bound to assert.
    tier.persist_all().unwrap();
    assert_eq!(dirty_pages(&scratch.file(), 0, 4 * wide), Some(0));
    put(&tier, 3 * wide, b"dirty");
    assert_eq!(dirty_pages(&scratch.file(), 3 * wide, 5), Some(1), "the measure sees a dirty page");
}

#[test]
fn a_missing_file_is_an_error_unless_it_may_be_made() {
    let scratch = Scratch::new();
    let options = FastTierOptions::default();
    let refused = FastTier::open_file(&scratch.file(), &options, false).unwrap_err();
    assert!(matches!(&refused, DeviceError::Io { what: "open", .. }), "{refused}");
    assert!(refused.to_string().contains(scratch.file().to_str().unwrap()), "{refused}");
    assert!(FastTier::open_file_read_only(&scratch.file()).is_err());
    assert!(FastTier::open_file(&scratch.0, &options, false).is_err(), "a directory is no tier");
}

#[test]
fn a_file_cut_short_shows_its_length_and_grows_again() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    tier.grow(MIB).unwrap();
    put(&tier, 9_990, b"0123456789abcdef");
    drop(tier);
    std::fs::OpenOptions::new().write(true).open(scratch.file()).unwrap().set_len(10_000).unwrap();
    let tier = scratch.open();
    assert_eq!(tier.bytes(), 10_000);
    assert!(tier.try_read(9_990, 11).is_none());
    let early = tier.read(9_990, 10);
    tier.grow(MIB).unwrap();
    assert_eq!(early, b"0123456789");
    assert_eq!(tier.read(9_990, 16), b"0123456789\0\0\0\0\0\0");
    put(&tier, 10_000, b"more");
    tier.persist(10_000, 4).unwrap();
    drop(tier);
    assert_eq!(scratch.open().read(9_998, 6), b"89more");
}

#[test]
fn holes_get_their_blocks_when_they_are_asked_for() {
    let scratch = Scratch::new();
    std::fs::File::create(scratch.file()).unwrap().set_len(MIB).unwrap();
    let tier = scratch.open();
    assert_eq!((tier.bytes(), tier.allocated_bytes()), (MIB, Some(0)));
    tier.allocate(0, MIB / 2).unwrap();
    assert!((MIB / 2..MIB).contains(&tier.allocated_bytes().unwrap()));
    tier.allocate(0, u64::MAX).unwrap();
    assert!(tier.allocated_bytes().unwrap() >= MIB);
}

#[test]
fn what_is_released_is_zero_and_takes_no_room() {
    let scratch = Scratch::new();
    let sim = CrashSim::new(CrashModel::Pages, 4 * MIB);
    for tier in [
        scratch.open(),
        FastTier::dram(&FastTierOptions::default()).unwrap().into_bytes(),
        FastTier::simulated(&sim).into_bytes(),
    ] {
        tier.grow(2 * MIB).unwrap();
        put(&tier, 0, &[7; 2 << 20]);
        assert!(tier.release(MIB, MIB / 2), "{}", tier.medium());
        assert_eq!(tier.read(MIB - 1, 2), [7, 0]);
        assert_eq!(tier.read(MIB + MIB / 2 - 1, 2), [0, 7]);
        assert_eq!(tier.bytes(), 2 * MIB);
        if let Some(bytes) = tier.allocated_bytes() {
            assert!(bytes < 2 * MIB - MIB / 2 + 65_536, "{bytes} on {}", tier.medium());
        }
        tier.allocate(MIB, MIB / 2).unwrap();
        put(&tier, MIB, b"again");
        tier.persist_all().unwrap();
        assert_eq!(tier.read(MIB, 6), b"again\0");
        assert!(tier.allocated_bytes().is_none_or(|bytes| bytes >= 2 * MIB));
    }
}

/// Memory is given back by the page: of half a page nothing is, or what lies beside it would go.
#[test]
fn memory_beside_what_is_released_stays() {
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap().into_bytes();
    tier.grow(MIB).unwrap();
    put(&tier, 0, &[7; 1 << 20]);
    assert!(!tier.release(0, 100) && !tier.release(100, MIB));
    assert_eq!(tier.read(0, MIB as usize), [7; 1 << 20]);
    assert!(tier.release(MIB / 2, u64::MAX), "up to the end, which is that of a page");
    assert_eq!(tier.read(MIB / 2 - 1, 2), [7, 0]);
}

#[test]
fn a_simulated_disk_refuses_and_finds_stores_to_what_it_got_back() {
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    sim.limit_disk(2 * MIB);
    let tier = FastTier::simulated(&sim).into_bytes();
    tier.grow(2 * MIB).unwrap();
    assert!(tier.release(MIB, MIB));
    assert_eq!(tier.free_bytes(), Some(MIB));
    tier.grow(3 * MIB).unwrap();
    assert!(matches!(tier.allocate(MIB, MIB), Err(DeviceError::Full { source: Some(_), .. })));
    let tier = std::panic::AssertUnwindSafe(&tier);
    assert!(std::panic::catch_unwind(|| put(*tier, MIB + 5, b"x")).is_err());
}

#[test]
fn growth_ends_at_the_limit() {
    let scratch = Scratch::new();
    let options = FastTierOptions { bytes_max: MIB + 100, ..FastTierOptions::default() };
    for tier in [
        FastTier::open_file(&scratch.file(), &options, true).unwrap().into_bytes(),
        FastTier::dram(&options).unwrap().into_bytes(),
    ] {
        assert_eq!(tier.bytes_max(), MIB, "limits are whole pages");
        tier.grow(MIB - 5).unwrap();
        assert_eq!(tier.bytes(), MIB, "lengths are whole pages");
        let full = tier.grow(MIB + 1).unwrap_err();
        assert!(
            matches!(full, DeviceError::Full { wanted: 1_048_577, limit: 1_048_576, source: None }),
            "{full}"
        );
        assert_eq!(
            full.to_string(),
            "the fast tier is full: 1048577 bytes wanted, the limit is 1048576 bytes"
        );
        tier.grow(5).unwrap();
        assert_eq!(tier.bytes(), MIB, "no growth backwards");
        put(&tier, MIB - 4, b"last");
    }
}

#[test]
fn address_space_limits_growth_too() {
    let options = FastTierOptions { reserve_bytes: MIB, ..FastTierOptions::default() };
    let tier = FastTier::dram(&options).unwrap().into_bytes();
    assert_eq!(tier.bytes_max(), MIB);
    assert!(matches!(tier.grow(2 * MIB), Err(DeviceError::Full { limit: MIB, .. })));
}

/// Where nobody says how much, there is room for all that the disk may ever hold, and the limit counts as it was set.
#[test]
fn address_space_is_set_aside_for_the_disk() {
    const TIB: u64 = 1 << 40;
    let reserved = |bytes_max, disk_bytes| {
        FastTierOptions { bytes_max, ..FastTierOptions::default() }.reserve_on(disk_bytes)
    };
    assert_eq!([None, Some(MIB), Some(4 * TIB)].map(|disk| reserved(u64::MAX, disk)), [TIB, TIB, 8 * TIB]);
    assert_eq!(reserved(3 * TIB, Some(4 * TIB)), 3 * TIB);
    assert_eq!(reserved(9 * TIB, Some(4 * TIB)), 8 * TIB, "the disk is the limit");
    assert_eq!(reserved(u64::MAX, Some(u64::MAX)), u64::MAX, "a file system that says anything");
    let chosen = FastTierOptions { bytes_max: 2 * MIB, reserve_bytes: MIB };
    assert_eq!(chosen.reserve_on(Some(4 * TIB)), MIB);
    assert_eq!(FastTierOptions { reserve_bytes: 0, ..chosen }.reserve_on(Some(MIB)), 0);
}

#[test]
fn reads_out_of_range_are_refused() {
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap().into_bytes();
    assert!(tier.try_read(0, 1).is_none());
    assert_eq!(tier.try_read(0, 0), Some([].as_slice()));
    tier.grow(4096).unwrap();
    assert!(tier.try_read(4095, 1).is_some());
    for (offset, len) in [(4095, 2), (4097, 0), (u64::MAX, 1), (u64::MAX, usize::MAX), (0, usize::MAX)] {
        assert!(tier.try_read(offset, len).is_none(), "{len} bytes at {offset}");
    }
    type Access = fn(&TierBytes);
    let accesses: [Access; 6] = [
        |tier| _ = tier.read(4096, 1),
        |tier| put(tier, 4090, &[0; 7]),
        |tier| _ = tier.load_u64(4092),
        |tier| _ = tier.load_u64(u64::MAX - 7),
        |tier| tier.store_u64(4096, 1),
        |tier| tier.store_u64(12, 1),
    ];
    for access in accesses {
        let tier = std::panic::AssertUnwindSafe(&tier);
        assert!(std::panic::catch_unwind(|| access(*tier)).is_err());
    }
}

#[test]
fn a_reader_changes_nothing_and_shares() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    tier.grow(8192).unwrap();
    put(&tier, 100, b"seen");
    drop(tier);
    let reader = FastTier::open_file_read_only(&scratch.file()).unwrap().into_bytes();
    let second = FastTier::open_file_read_only(&scratch.file()).unwrap().into_bytes();
    assert_eq!((reader.read(100, 4), second.read(100, 4)), (b"seen".as_slice(), b"seen".as_slice()));
    assert_eq!(reader.bytes(), 8192);
    for refused in [reader.grow(MIB), reader.persist(0, 1), reader.persist_all()] {
        assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })));
    }
    let reader = std::panic::AssertUnwindSafe(&reader);
    assert!(std::panic::catch_unwind(|| put(*reader, 0, b"x")).is_err());
    let locked = FastTier::open_file(&scratch.file(), &FastTierOptions::default(), false).unwrap_err();
    assert!(locked.to_string().contains("may be reading"), "{locked}");
}

/// Whatever is called on a copy, the file keeps its bytes, its length and its blocks; and the copy keeps what was stored to it.
#[test]
fn a_copy_is_changed_and_its_file_is_not() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    tier.grow(MIB).unwrap();
    put(&tier, 100, b"seen");
    drop(tier);
    let before = std::fs::read(scratch.file()).unwrap();
    let reader = FastTier::open_file_read_only(&scratch.file()).unwrap().into_bytes();
    let copy = FastTier::open_file_copy(&scratch.file()).unwrap().into_bytes();
    let other = FastTier::open_file_copy(&scratch.file()).unwrap().into_bytes();
    assert_eq!((copy.bytes(), copy.medium()), (MIB, Medium::Dram));
    put(&copy, 100, b"here");
    copy.store_u64(8192, 7);
    copy.write_apart(300, b"apart");
    copy.rewrite(0, MIB);
    copy.rewrite_apart(0, 512);
    copy.start_write_back(0, MIB);
    copy.remap(0, MIB);
    copy.evict(0, MIB);
    copy.populate_for_small_syncs(0, MIB, true);
    copy.persist(0, MIB).unwrap();
    copy.persist_all().unwrap();
    assert!(!copy.release(0, MIB), "disk that is not its own");
    assert_eq!((copy.read(100, 4), copy.load_u64(8192), copy.read(300, 5)), (&b"here"[..], 7, &b"apart"[..]));
    for unchanged in [&reader, &other] {
        assert_eq!((unchanged.read(100, 4), unchanged.load_u64(8192)), (&b"seen"[..], 0));
    }
    for refused in [copy.grow(2 * MIB), copy.allocate(0, MIB)] {
        assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })), "{refused:?}");
    }
    assert!(matches!(
        FastTier::open_file(&scratch.file(), &FastTierOptions::default(), false),
        Err(DeviceError::Locked { .. })
    ));
    drop((copy, reader, other));
    assert!(before == std::fs::read(scratch.file()).unwrap());
    // Whoever writes is alone.
    let _writer = scratch.open();
    assert!(matches!(FastTier::open_file_copy(&scratch.file()), Err(DeviceError::Locked { .. })));
}

#[test]
fn a_second_handle_is_told_who_holds_the_file() {
    let scratch = Scratch::new();
    let tier = scratch.open();
    let options = FastTierOptions::default();
    let wanted = format!("process {} (", std::process::id());
    for refused in
        [FastTier::open_file(&scratch.file(), &options, true), FastTier::open_file_read_only(&scratch.file())]
    {
        match refused.map(|_| ()).unwrap_err() {
            DeviceError::Locked { path, holder } => {
                assert_eq!(path, scratch.file());
                assert!(holder.starts_with(&wanted), "{holder}");
            }
            other => panic!("{other}"),
        }
    }
    drop(tier);
    scratch.open();
}

/// Not a test of its own: the second process of the one below.
#[test]
fn second_process() {
    let Some(path) = std::env::var_os("HEDGEROW_DEVICE_HOLD") else { return };
    let tier = FastTier::open_file(Path::new(&path), &FastTierOptions::default(), true).unwrap().into_bytes();
    tier.grow(MIB).unwrap();
    put(&tier, 10, b"kept after kill");
    std::fs::write(Path::new(&path).with_extension("ready"), b"").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_second_process_holds_the_lock_until_killed_and_loses_nothing() {
    let scratch = Scratch::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fast::tests::second_process"])
        .env("HEDGEROW_DEVICE_HOLD", scratch.file())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !scratch.file().with_extension("ready").exists() {
        assert!(begun.elapsed() < Duration::from_secs(50), "the second process did not open the file");
        std::thread::sleep(Duration::from_millis(5));
    }
    let locked = FastTier::open_file(&scratch.file(), &FastTierOptions::default(), true).unwrap_err();
    assert!(locked.to_string().contains(&format!("in use by process {}", child.id())), "{locked}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scratch.open().read(10, 15), b"kept after kill");
}

/// Not a test of its own: a process that may make no file above 1 MiB.
#[test]
fn limited_process() {
    let Some(path) = std::env::var_os("HEDGEROW_DEVICE_LIMITED") else { return };
    let limit = libc::rlimit { rlim_cur: MIB, rlim_max: MIB };
    // SAFETY: `limit` is a valid rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let tier = FastTier::open_file(Path::new(&path), &FastTierOptions::default(), true).unwrap().into_bytes();
    tier.grow(MIB).unwrap();
    let full = tier.grow(MIB + 1).unwrap_err();
    assert!(matches!(full, DeviceError::Full { limit: MIB, source: Some(_), .. }), "{full}");
    put(&tier, MIB - 4, b"last");
    tier.persist_all().unwrap();
}

#[test]
fn a_file_size_limit_is_full_and_no_signal() {
    let scratch = Scratch::new();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fast::tests::limited_process", "--nocapture"])
        .env("HEDGEROW_DEVICE_LIMITED", scratch.file())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}: {}", child.status, String::from_utf8_lossy(&child.stderr));
    assert_eq!(scratch.open().read(MIB - 4, 4), b"last", "the limited process ran to its end");
}

/// A small file system of its own, if this process may mount one.
struct SmallDisk(Scratch);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<SmallDisk> {
        let scratch = Scratch::new();
        let options = format!("size={bytes}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&scratch.0)
            .stderr(Stdio::null())
            .status();
        mount.is_ok_and(|status| status.success()).then_some(SmallDisk(scratch))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).status();
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_tier_goes_on() {
    // Where mounting is not allowed, the limits above test the same refusal.
    let Some(disk) = SmallDisk::mount(4 * MIB) else { return };
    let tier = disk.0.open();
    tier.grow(2 * MIB).unwrap();
    let full = tier.grow(8 * MIB).unwrap_err();
    match &full {
        DeviceError::Full { wanted, limit, source: Some(source) } => {
            assert_eq!((*wanted, *limit), (8 * MIB, 2 * MIB));
            assert_eq!(source.raw_os_error(), Some(libc::ENOSPC));
        }
        other => panic!("{other}"),
    }
    assert_eq!(tier.bytes(), 2 * MIB);
    put(&tier, 0, &vec![7; 2 * MIB as usize]);
    tier.persist_all().unwrap();
    tier.grow(3 * MIB).unwrap();
    put(&tier, 2 * MIB, &vec![8; MIB as usize]);
    drop(tier);
    // What is not there of a sparse file on a full disk is refused before any store could trap.
    let sparse = disk.0.0.join("sparse");
    std::fs::File::create(&sparse).unwrap().set_len(16 * MIB).unwrap();
    let tier = FastTier::open_file(&sparse, &FastTierOptions::default(), false).unwrap().into_bytes();
    tier.allocate(0, 4096).unwrap();
    let refused = tier.allocate(4096, 16 * MIB).unwrap_err();
    assert!(matches!(refused, DeviceError::Full { source: Some(_), .. }), "{refused}");
}

#[test]
fn readers_go_on_while_the_tier_grows() {
    let scratch = Scratch::new();
    let tier = Arc::new(scratch.open());
    tier.grow(4096).unwrap();
    tier.store_u64(8, 1);
    let (begun, begins) = std::sync::mpsc::channel();
    let reader = {
        let tier = Arc::clone(&tier);
        std::thread::spawn(move || {
            let mut begun = Some(begun);
            while tier.load_u64(0) == 0 {
                assert_eq!(tier.load_u64(8), 1);
                let end = tier.bytes();
                assert_eq!(tier.read(end - 8, 8).len(), 8);
                begun.take().into_iter().for_each(|begun| begun.send(()).unwrap());
            }
        })
    };
    // On a machine that is busy it may be long until the reader has its turn.
    begins.recv().unwrap();
    for pages in 2..600 {
        tier.grow(pages * 4096).unwrap();
        put(&tier, (pages - 1) * 4096, b"grown");
    }
    tier.store_u64(0, 1);
    reader.join().unwrap();
}

#[test]
fn emulated_reads_take_the_modelled_time() {
    let model = PersistentMemoryModel {
        read_latency_ns: 100_081,
        sequential_read_latency_ns: 20_081,
        cache_bytes: 1 << 16,
        ..PersistentMemoryModel::optane()
    };
    let tier =
        FastTier::emulated(EmulatedBase::Dram, model, &FastTierOptions::default()).unwrap().into_bytes();
    tier.grow(4 * MIB).unwrap();
    let timed = |offset: u64, len: usize| {
        let begun = Instant::now();
        std::hint::black_box(tier.read(offset, len));
        begun.elapsed().as_nanos() as u64
    };
    assert!(timed(0, 100) >= 100_000, "the first touch waits");
    // A unit just read is free; the least of many tries leaves out what the machine does meanwhile.
    assert!((0..200).map(|_| timed(100, 100)).min().unwrap() < 50_000, "a unit just read is free");
    assert!(timed(MIB, 1024) >= 160_000, "four units: one random, three in order");
    tier.prefetch(2 * MIB, 64);
    std::thread::sleep(Duration::from_micros(200));
    let hidden = (0..200).map(|n| {
        let offset = 2 * MIB + n * 256;
        tier.prefetch(offset, 64);
        std::thread::sleep(Duration::from_micros(150));
        timed(offset, 256)
    });
    assert!(hidden.min().unwrap() < 50_000, "a prefetch long ago hides the wait");
    assert!(timed(0, 1 << 17) >= 100_000, "more than the cache holds");
    assert!(timed(0, 100) >= 100_000, "so it was evicted");
}

#[test]
fn emulated_writes_keep_to_the_bandwidth() {
    let model = PersistentMemoryModel { write_bandwidth: 100_000_000, ..PersistentMemoryModel::optane() };
    let tier =
        FastTier::emulated(EmulatedBase::Dram, model, &FastTierOptions::default()).unwrap().into_bytes();
    tier.grow(2 * MIB).unwrap();
    tier.populate(0, 2 * MIB);
    let begun = Instant::now();
    put(&tier, 0, &vec![1; MIB as usize]);
    assert!(begun.elapsed() >= Duration::from_millis(10), "1 MiB at 100 MB/s, less the buffer");
    assert_eq!((tier.medium(), tier.flush_is_cheap()), (Medium::Emulated, true));
    tier.persist(0, MIB).unwrap();
}

#[test]
fn only_media_with_system_calls_have_dear_flushes() {
    let scratch = Scratch::new();
    let cheap: Vec<_> =
        every_medium(&scratch).iter().map(|tier| (tier.medium(), tier.flush_is_cheap())).collect();
    let wanted = [
        (Medium::PageCache, false),
        (Medium::Dram, true),
        (Medium::Emulated, true),
        (Medium::Emulated, true),
        (Medium::Simulated, true),
        (Medium::Simulated, false),
    ];
    assert_eq!(cheap, wanted);
}

#[test]
fn writing_back_lines_leaves_their_contents() {
    assert!(flush::can_write_back());
    let bytes: Vec<u8> = (0..1000).map(|n| n as u8).collect();
    // SAFETY: bytes of a vector.
    unsafe { flush::write_back(bytes.as_ptr() as u64 + 3, 700) };
    flush::fence();
    assert!(bytes.iter().enumerate().all(|(n, &byte)| byte == n as u8));
}

#[test]
#[should_panic(expected = "do not lie in a tier")]
fn lines_that_do_not_exist_are_not_waited_for() {
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
    tier.grow(MIB).unwrap();
    tier.await_lines(0, MIB);
    tier.await_lines(MIB - 64, 64);
    tier.await_lines(MIB - 56, 64);
}

#[test]
fn cooled_bytes_are_read_from_the_medium_again() {
    let model = PersistentMemoryModel { read_latency_ns: 50_000_000, ..PersistentMemoryModel::optane() };
    let tier =
        FastTier::emulated(EmulatedBase::Dram, model, &FastTierOptions::default()).unwrap().into_bytes();
    tier.grow(1 << 20).unwrap();
    tier.write(4096, 256, |bytes| bytes.fill(7));
    let clock = Clock::system();
    let timed = || {
        let began = clock.monotonic_ns();
        assert_eq!(tier.read(4096, 256), [7; 256]);
        clock.monotonic_ns() - began
    };
    assert!(timed() < 40_000_000, "just written: in the cache");
    tier.cool(4096, 256);
    assert!(timed() > 40_000_000);
    // And waited for: whoever waits is charged, and has them in the cache then.
    tier.cool(4096, 256);
    let began = clock.monotonic_ns();
    tier.await_lines(4096, 256);
    assert!(clock.monotonic_ns() - began > 40_000_000);
    assert!(timed() < 40_000_000);
    tier.cool(1 << 19, 1 << 30);
    tier.cool(1 << 30, 1);
    assert_eq!(tier.read(4096, 256), [7; 256]);
}
