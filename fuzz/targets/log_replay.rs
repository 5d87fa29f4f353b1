//! A small store's bytes, changed at will: opening and reading end in rows or in an error, never in a panic.
//!
//! The input is a list of changes: where (3 bytes, of the bytes in use), how (1 byte) and what (1 byte). The first byte
//! says whether the store was closed, killed or cut off.
#![no_main]

use std::sync::OnceLock;

use hedgerow::{Db, ErrorKind};
use hedgerow_device::{Clock, CrashSim, FastTier, Image, Survivors};
use hedgerow_sim::{Runner, Setup, Source, Taste, generate};
use libfuzzer_sys::fuzz_target;

/// A closed store, a killed one, and one after a power cut; and the places in it that are in use.
fn images() -> &'static [(Image, Vec<u64>)] {
    static IMAGES: OnceLock<Vec<(Image, Vec<u64>)>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let setup = Setup { log_bytes: usize::MAX, ..Setup::default() };
        let mut runner = Runner::new(setup).expect("an empty store opens");
        let mut source = Source::from_seed(11);
        let taste =
            Taste { keys: 20, value_bytes_max: 300, reads: false, reopens: false, ..Taste::default() };
        for stamp in 0..120 {
            runner.step(&generate(&mut source, &taste, stamp)).expect("the store is like its model");
        }
        let mut walk = runner.sim().walk();
        walk.seek(u64::MAX);
        let killed = walk.image(Survivors::ProcessKill, 0);
        let cut = walk.image(Survivors::Random, 5);
        runner.reopen_and_verify().expect("the store is like its model");
        let closed = runner.sim().process_kill();
        [closed, killed, cut].into_iter().map(|image| (image.clone(), used(&image))).collect()
    })
}

fn used(image: &Image) -> Vec<u64> {
    let words = (0..image.bytes()).step_by(64);
    words.filter(|&at| image.read(at, 64).iter().any(|&b| b != 0)).flat_map(|at| at..at + 64).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let [which, changes @ ..] = bytes else { return };
    let (image, used) = &images()[usize::from(*which) % 3];
    let mut image = image.clone();
    for change in changes.chunks_exact(5).take(64) {
        let place = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize;
        let at = used[place % used.len()];
        let old = image.read(at, 1)[0];
        let new = match change[3] % 4 {
            0 => change[4],
            1 => old ^ change[4],
            2 => old.wrapping_add(change[4]),
            _ => image.read(used[usize::from(change[4]) * 37 % used.len()], 1)[0],
        };
        image.corrupt(at, old ^ new);
    }
    let tier = FastTier::simulated(&CrashSim::from_image(&image));
    let opened = Db::open_at(tier, Setup::default().options(), Clock::manual(1_000_000));
    let db = match opened {
        Ok(db) => db,
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Version),
                "{:?}: {error}",
                error.kind()
            );
            return;
        }
    };
    for name in db.table_names() {
        let Ok(table) = db.table(&name) else { continue };
        for row in table.scan() {
            let Ok(row) = row else { break };
            drop(table.get(row.key()));
        }
        drop(table.put(b"written after all", &[] as &[(&str, hedgerow::Value<'_>)]));
    }
});
