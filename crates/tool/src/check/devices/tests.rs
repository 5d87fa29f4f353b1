use hedgerow_kvssd::{AckMode, DeviceView};
use hedgerow_row::backend::{Answer, Backend, Command, Expect, pair_key};

use super::*;
use crate::kvssd_store;
use crate::store_url::KvssdUrl;

/// Files of devices, in a directory that goes with them.
struct Devices {
    directory: PathBuf,
    files: Vec<PathBuf>,
}

impl Drop for Devices {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

fn value_of(n: u32) -> Vec<u8> {
    format!("value {n:06} ").repeat(24).into_bytes()
}

impl Devices {
    /// An array of two, of 8 MiB each, with so many pairs: some blocks of 256 KiB are full.
    fn new(name: &str, pairs: u32) -> Devices {
        let directory = std::env::temp_dir().join(format!("hedgerow-{name}-{}", std::process::id()));
        hedgerow_device::create_directories(&directory).unwrap();
        let files = vec![directory.join("a"), directory.join("b")];
        let devices = Devices { directory, files };
        let url = KvssdUrl { files: devices.files.clone(), bytes: Some(8 << 20), copies: None, alone: false };
        let backend = kvssd_store::open(&url, AckMode::Buffered).unwrap();
        let mut session = backend.session().unwrap();
        let mut answered = Vec::new();
        for n in 0..pairs {
            let (key, value) = (pair_key(1, &n.to_be_bytes()), value_of(n));
            session.start(Command::Put { key: &key, value: &value, expect: Expect::Any }).unwrap();
            while answered.len() <= n as usize {
                session.poll(&mut answered);
            }
        }
        assert!(answered.iter().all(|(_, answer)| matches!(answer, Ok(Answer::Stored(_)))));
        drop(session);
        backend.close().unwrap();
        devices
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.files.iter().map(|file| std::fs::read(file).unwrap()).collect()
    }

    /// What `check` and `inspect` say of files; that no byte of any changed is made sure of.
    fn told(&self, files: &[PathBuf], is_array: bool) -> (FilesReport, String) {
        let before = self.bytes();
        let report = examine(files, is_array, |_, _, _| ());
        let mut out = Vec::new();
        let ended = crate::inspect::devices::overview(files, is_array, &mut out);
        let text = String::from_utf8(out).unwrap() + &ended.err().unwrap_or_default();
        assert!(before == self.bytes(), "looking changed a file");
        (report, text)
    }

    /// What the first file says with a byte changed, which is put right again.
    fn told_with(&self, offset: usize) -> (FilesReport, String) {
        let sound = std::fs::read(&self.files[0]).unwrap();
        let mut spoiled = sound.clone();
        spoiled[offset] ^= 0x10;
        std::fs::write(&self.files[0], &spoiled).unwrap();
        let told = self.told(&self.files, true);
        std::fs::write(&self.files[0], &sound).unwrap();
        told
    }
}

#[test]
fn sound_devices_are_shown_and_verified_and_not_changed() {
    let devices = Devices::new("devices-sound", 3000);
    let (report, text) = devices.told(&devices.files, true);
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.verified.len(), 2);
    let pairs = |line: &String| -> u32 {
        line.split(", ").last().unwrap().strip_suffix(" pairs").unwrap().parse().unwrap()
    };
    // Each has the map of the array, too.
    assert_eq!(report.verified.iter().map(pairs).sum::<u32>(), 3002, "{:?}", report.verified);
    for said in [
        "closed in order",
        "device 1 of 2 of array",
        "device 2 of 2",
        "hedgerow.rows",
        "0 damaged",
        "8.0 MiB in 32 blocks",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(text.matches("damage: opening finds none").count(), 2, "{text}");
    // One of them alone is looked at as it is.
    let (report, text) = devices.told(&devices.files[1..], false);
    assert!(report.problems.is_empty() && text.contains("device 2 of 2"), "{report:?} {text}");
}

#[test]
fn an_array_that_is_not_given_as_it_is_is_a_problem() {
    let devices = Devices::new("devices-order", 10);
    let [a, b] = [devices.files[0].clone(), devices.files[1].clone()];
    let told = |files: &[PathBuf], said: &str| {
        let (report, text) = devices.told(files, true);
        assert!(report.problems.iter().any(|problem| problem.contains(said)), "{said}: {report:?}");
        assert!(text.contains(said), "{said}: {text}");
    };
    told(&[b.clone(), a.clone()], "give them in their order");
    told(std::slice::from_ref(&a), "the array has 2 devices, and 1 were given");
    // A copy of before the last openings.
    let older = devices.directory.join("older");
    std::fs::copy(&a, &older).unwrap();
    let url = KvssdUrl { files: devices.files.clone(), bytes: None, copies: None, alone: false };
    kvssd_store::open(&url, AckMode::Buffered).unwrap().close().unwrap();
    told(&[older, b.clone()], "is older than the others");
    let missing = devices.directory.join("none");
    // The other one is gone through all the same, wherever it stands.
    for files in [[a.clone(), missing.clone()], [missing, a]] {
        let report = examine(&files, true, |_, _, _| ());
        assert!(report.problems.iter().any(|one| one.contains("none can not be opened")), "{report:?}");
        assert_eq!(report.verified.len(), 1, "{report:?}");
    }
}

#[test]
fn each_kind_of_damage_is_told_and_no_byte_is_changed() {
    let devices = Devices::new("devices-damage", 3000);
    let sound = std::fs::read(&devices.files[0]).unwrap();
    let blocks = open(&devices.files[0]).unwrap().device().blocks_in_use();
    let is_full = |end: u64| &sound[end as usize - 28..end as usize - 24] == b"KVFT";
    let full = blocks.iter().map(|(range, _)| range.clone()).find(|range| is_full(range.end)).unwrap();
    let open_block = blocks.iter().map(|(range, _)| range.clone()).find(|range| !is_full(range.end)).unwrap();
    // The second value of a block: its record begins 24 bytes of header, 8 of key and 8 of mark before it.
    let value_in = |range: &std::ops::Range<u64>| {
        let within = &sound[range.start as usize..range.end as usize];
        let first = within.windows(6).position(|six| six == b"value ").unwrap();
        let second = within[first + 300..].windows(6).position(|six| six == b"value ").unwrap();
        range.start as usize + first + 300 + second
    };
    let in_full = value_in(&full);
    assert_eq!(&sound[in_full..in_full + 6], b"value ");
    let in_open = value_in(&open_block);
    let cases = [
        (full.end as usize - 20, "the footer of block", "1 footers of blocks"),
        (in_full + 5, "a value of key", "opening finds none"),
        (in_full - 40 + 9, "the header or the key of a record", "opening finds none"),
        (in_open + 5, "a value of key", "1 values cannot be read"),
        (in_open - 40 + 9, "records are lost", "may show what they had before"),
        (20, "byte 0: the superblock", "opening finds none"),
        (4096 + 20, "byte 4096: the superblock", "opening finds none"),
        (8192 + 3, "the word of block 0", "opening finds none"),
    ];
    for (offset, checked, inspected) in cases {
        let (report, text) = devices.told_with(offset);
        assert!(report.problems.iter().any(|problem| problem.contains(checked)), "{checked}: {report:?}");
        assert!(report.problems.iter().all(|problem| problem.contains("/a: ")), "{report:?}");
        assert!(text.contains(inspected), "{inspected}: {text}");
    }
    // Without any superblock, or its end, there is no device; the other one is gone through all the same.
    let mut none = sound.clone();
    (none[20], none[4096 + 20]) = (none[20] ^ 1, none[4096 + 20] ^ 1);
    for (spoiled, said) in [(&none[..], "both superblocks"), (&sound[..sound.len() - 5000], "the medium has")]
    {
        std::fs::write(&devices.files[0], spoiled).unwrap();
        let (report, text) = devices.told(&devices.files, true);
        let [problem] = &report.problems[..] else { panic!("{report:?}") };
        assert!(problem.contains("can not be opened") && problem.contains(said), "{problem}");
        assert!(
            report.verified.len() == 1 && text.contains(said) && text.contains("device 2 of 2"),
            "{text}"
        );
    }
}

#[test]
fn a_device_in_use_is_not_looked_at() {
    let devices = Devices::new("devices-used", 3);
    let url = KvssdUrl { files: devices.files.clone(), bytes: None, copies: None, alone: false };
    let backend = kvssd_store::open(&url, AckMode::Buffered).unwrap();
    let report = examine(&devices.files, true, |_, _, _| ());
    let is_told = |one: &String| one.contains("is in use") && one.contains("stop it first");
    assert!(report.problems.len() == 2 && report.problems.iter().all(is_told), "{report:?}");
    backend.close().unwrap();
    // Several may look at once.
    let _view: DeviceView = open(&devices.files[0]).unwrap();
    assert!(examine(&devices.files, true, |_, _, _| ()).problems.is_empty());
}

#[test]
fn what_fails_is_an_error_and_what_is_sound_is_none() {
    let devices = Devices::new("devices-verdict", 3);
    let bar = ProgressBar::hidden();
    assert_eq!(run(&devices.files, true, &bar), Ok(()));
    let reversed = [devices.files[1].clone(), devices.files[0].clone()];
    assert_eq!(run(&reversed, true, &bar), Err("2 problems found".into()));
}
