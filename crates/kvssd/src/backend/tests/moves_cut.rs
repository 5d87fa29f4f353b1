//! What a crash leaves at each operation of a move of shards, of whichever device, with changes between its steps.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::array_device::WATCHER;
use super::*;

const KEYS: u64 = 80;

std::thread_local! {
    /// Openings without a device that was lost.
    pub(super) static LOOKS_WITHOUT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A change of a key: what it has then, with the mark, or nothing.
type Change = (Vec<u8>, Option<(Vec<u8>, Mark)>);

/// Which devices there are, by their numbers among the media: as they may be by now.
type Sets = Vec<Vec<usize>>;

/// A moment of the run. Until the next one at most one device does anything.
#[derive(Clone)]
struct Moment {
    ops: Vec<u64>,
    /// Changes that were acknowledged, that were begun, and that were durable for sure.
    acked: usize,
    begun: usize,
    persisted: usize,
    sets: Sets,
}

pub(super) struct Scene {
    pub(super) sims: Vec<CrashSim>,
    options: KvssdOptions,
    pub(super) backend: KvssdBackend,
    session: Box<dyn Session>,
    random: Random,
    changes: Vec<Change>,
    moments: Rc<RefCell<Vec<Moment>>>,
    now: Rc<RefCell<Moment>>,
}

/// Where rows are.
fn pairs_on(backend: &KvssdBackend, place: usize) -> u64 {
    backend.with_device(place, |device| device.info().logical_bytes).unwrap()
}

impl Scene {
    fn new(ack: AckMode, devices: usize, more: usize, seed: u64) -> Scene {
        Scene::of(options(ack), devices, more, seed)
    }

    pub(super) fn of(options: KvssdOptions, devices: usize, more: usize, seed: u64) -> Scene {
        let sims = sims(devices + more);
        let backend = KvssdBackend::open(&media(&sims[..devices]), &options).unwrap();
        let session = backend.session().unwrap();
        let sets = vec![(0..devices).collect()];
        let now = Moment { ops: Vec::new(), acked: 0, begun: 0, persisted: 0, sets };
        let (now, moments) = (Rc::new(RefCell::new(now)), Rc::new(RefCell::new(Vec::new())));
        let mut scene = Scene {
            sims,
            options,
            backend,
            session,
            random: Random::from_seed(seed),
            changes: Vec::new(),
            moments,
            now,
        };
        (0..150).for_each(|_| scene.change());
        scene.persist();
        scene.watch();
        scene
    }

    fn watch(&self) {
        let (now, moments, sims) = (Rc::clone(&self.now), Rc::clone(&self.moments), self.sims.clone());
        let tell = move || {
            let ops = sims.iter().map(CrashSim::ops).collect();
            moments.borrow_mut().push(Moment { ops, ..now.borrow().clone() });
        };
        WATCHER.set(Some(Box::new(tell)));
    }

    pub(super) fn change(&mut self) {
        let key = key(self.random.below(KEYS));
        let is_delete = self.random.below(3) == 0;
        self.now.borrow_mut().begun += 1;
        // What is under way has no mark that is known.
        let change = match is_delete {
            true => {
                answer(&mut *self.session, Command::Delete { key: &key, expect: Expect::Any }).unwrap();
                None
            }
            false => {
                let value = vec![self.changes.len() as u8; self.random.below(500) as usize];
                let seen = get(&mut *self.session, &key).unwrap();
                let expect = seen.map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
                let mark = put(&mut *self.session, &key, &value, expect).unwrap();
                Some((value, mark))
            }
        };
        self.changes.push((key, change));
        self.now.borrow_mut().acked += 1;
        assert_eq!(self.now.borrow().acked, self.changes.len());
    }

    pub(super) fn persist(&mut self) {
        answer(&mut *self.session, Command::Persist).unwrap();
        let mut now = self.now.borrow_mut();
        now.persisted = now.acked;
    }

    pub(super) fn sets(&self, sets: &[&[usize]]) {
        self.now.borrow_mut().sets = sets.iter().map(|set| set.to_vec()).collect();
    }

    /// Runs a move, with changes between its steps.
    pub(super) fn run(&mut self, mover: Mover) -> MoveProgress {
        let mut mover = mover.with_step_pairs(1);
        while mover.step().unwrap() {
            self.change();
            if self.random.below(8) == 0 {
                self.persist();
            }
        }
        mover.progress()
    }

    pub(super) fn add(&mut self, number: usize) {
        self.backend.add_device(&ArrayMedium::Simulated(self.sims[number].clone())).unwrap();
    }

    /// Looks at what crashes leave at every operation since the scene began, of each kind.
    fn sweep(self, kinds: &[Survivors]) {
        let (cuts, unfinished) = self.sweep_counted(kinds);
        assert!(cuts > 300 && unfinished >= 50, "{cuts} cuts, {unfinished} of them within the move");
    }

    /// The same; at how many operations, and how many of what was left had a move to go on with.
    pub(super) fn sweep_counted(self, kinds: &[Survivors]) -> (usize, usize) {
        WATCHER.set(None);
        let moments = self.moments.take();
        let (mut cuts, mut unfinished) = (0usize, 0usize);
        for pair in moments.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            let device = (0..self.sims.len()).find(|&n| before.ops[n] != after.ops[n]).unwrap_or(0);
            let others = (0..self.sims.len()).filter(|&n| n != device);
            assert!(others.clone().all(|n| before.ops[n] == after.ops[n]), "one device at a time");
            for op in before.ops[device]..after.ops[device] {
                let mut ops = before.ops.clone();
                ops[device] = op;
                // What runs between the two was begun by the second.
                let moment = Moment { ops, begun: after.begun.max(before.begun), ..before.clone() };
                // Of six every other one, by turns.
                // Two copies take longer: of each operation one.
                let step =
                    if self.options.copies == Some(2) { kinds.len() } else { (kinds.len() / 3).max(1) };
                for &kind in kinds.iter().skip(op as usize % step).step_by(step) {
                    unfinished += usize::from(self.look(&moment, kind, cuts as u64, None));
                    cuts += 1;
                    if self.options.copies == Some(2) && cuts % 3 == 0 {
                        let lost = cuts / 3 % self.sims.len();
                        self.look(&moment, kind, cuts as u64, Some(lost));
                    }
                }
            }
        }
        (cuts, unfinished)
    }

    /// Whether there was something left to do. Where there are two copies one of the devices may be lost with the crash.
    fn look(&self, moment: &Moment, kind: Survivors, seed: u64, lost: Option<usize>) -> bool {
        let at = format!("{kind:?} at {:?} without {lost:?}", moment.ops);
        let crashed: Vec<CrashSim> = (0..self.sims.len())
            .map(|n| match lost == Some(n) {
                true => CrashSim::new(CrashModel::Pages, SMALL.bytes() + (1 << 20)),
                false => crashed(&self.sims[n], moment.ops[n], kind, seed + n as u64),
            })
            .collect();
        let mut refused = Vec::new();
        let mut open = |set: &Vec<usize>| {
            let media: Vec<_> = set.iter().map(|&n| ArrayMedium::Simulated(copied(&crashed[n]))).collect();
            let opened = KvssdBackend::open(&media, &self.options);
            opened.map_err(|error| refused.push(error)).ok()
        };
        let Some((set, backend)) = moment.sets.iter().find_map(|set| Some((set, open(set)?))) else {
            // Of shards with one copy that may be lost.
            let is_lost = |error: &ArrayError| {
                matches!(error, ArrayError::NoCopy { .. } | ArrayError::Undecided { .. })
            };
            assert!(lost.is_some() && refused.iter().any(is_lost), "{at}: {refused:?}");
            return false;
        };
        let is_without = lost.is_some_and(|lost| set.contains(&lost));
        LOOKS_WITHOUT.set(LOOKS_WITHOUT.get() + usize::from(is_without));
        if self.options.copies == Some(2) {
            copies::same_copies(&backend, &at);
        }
        let session = &mut *backend.session().unwrap();
        let is_kept = self.options.device.ack == AckMode::Immediate
            || matches!(kind, Survivors::All | Survivors::ProcessKill);
        let found = self.found(session);
        match is_kept {
            true => self.fits(&found, moment, &at),
            false => self.fits_persisted(&found, moment, &at),
        }
        let counted = answer(session, Command::Count { group: GROUP }).unwrap();
        assert_eq!(counted, Answer::Counted(found.len() as u64), "{at}");
        let left = backend.unfinished_move().unwrap();
        let is_left = left.is_some();
        if let Some(mut left) = left {
            left.run().unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        assert_eq!(self.found(session), found, "{at}: after the move went on");
        if self.options.copies == Some(2) {
            copies::same_copies(&backend, &at);
            return is_left;
        }
        // Each pair is on one device, and nowhere else.
        let bytes: usize = found.iter().map(|(key, (value, _))| key.len() + 8 + value.len()).sum();
        let devices = map_of(&backend).members.len();
        let own = b"map".len() + map_of(&backend).encode().len();
        let there: u64 = (0..devices).map(|place| pairs_on(&backend, place)).sum();
        assert_eq!(there, (bytes + devices * own) as u64, "{at}: pairs are on two devices, or left behind");
        is_left
    }

    fn found(&self, session: &mut dyn Session) -> Model {
        let walked = walk(session, GROUP, 50);
        let pairs = walked.len();
        let found: Model =
            walked.into_iter().map(|pair| (pair.key.to_vec(), (pair.value.to_vec(), pair.mark))).collect();
        assert_eq!(found.len(), pairs, "each once");
        for n in 0..KEYS {
            let got = get(session, &key(n)).unwrap().map(|pair| (pair.value.to_vec(), pair.mark));
            assert_eq!(got.as_ref(), found.get(&key(n)));
        }
        found
    }

    /// All that was acknowledged is there, and nothing else but what was begun.
    fn fits(&self, found: &Model, moment: &Moment, at: &str) {
        let mut state = Model::new();
        let mut fits = false;
        for n in 0..=moment.begun {
            fits |= n >= moment.acked && state == *found;
            match self.changes.get(n) {
                Some((key, Some(there))) => drop(state.insert(key.clone(), there.clone())),
                Some((key, None)) => drop(state.remove(key)),
                None => {}
            }
        }
        assert!(fits, "{at}: not as after {} to {} changes", moment.acked, moment.begun);
    }

    /// Each key is as it was when all was made durable, or as one of its changes since left it.
    fn fits_persisted(&self, found: &Model, moment: &Moment, at: &str) {
        for n in 0..KEYS {
            let key = key(n);
            let of = |range: std::ops::Range<usize>| {
                let changes = &self.changes[range.start..range.end.min(self.changes.len())];
                changes
                    .iter()
                    .filter(|(of, _)| *of == key)
                    .map(|(_, change)| change.clone())
                    .collect::<Vec<_>>()
            };
            let last = of(0..moment.persisted).pop().flatten();
            let mut may = of(moment.persisted..moment.begun);
            may.push(last);
            assert!(may.contains(&found.get(&key).cloned()), "{at}: key {n}");
        }
    }
}

pub(super) const POWER_CUTS: [Survivors; 6] = [
    Survivors::None,
    Survivors::Random,
    Survivors::LastStore,
    Survivors::AllButLastStore,
    Survivors::HeadersOnly,
    Survivors::BodiesOnly,
];
pub(super) const CAPACITOR: [Survivors; 2] = [Survivors::All, Survivors::ProcessKill];

/// The third device comes and has its share.
fn add_and_rebalance(ack: AckMode, kinds: &[Survivors]) {
    let mut scene = Scene::new(ack, 2, 1, 1);
    scene.sets(&[&[0, 1, 2], &[0, 1]]);
    scene.add(2);
    scene.sets(&[&[0, 1, 2]]);
    let mover = scene.backend.rebalance().unwrap();
    let progress = scene.run(mover);
    assert_eq!((progress.shards, progress.shards_done), (341, 341));
    assert!(progress.pairs_copied > 3 && progress.pairs_deleted > 3, "{progress:?}");
    scene.sweep(kinds);
}

/// The first of three goes.
fn remove(ack: AckMode, kinds: &[Survivors]) {
    let mut scene = Scene::new(ack, 3, 0, 2);
    scene.sets(&[&[0, 1, 2], &[1, 2]]);
    let mover = scene.backend.remove_device(0).unwrap();
    let progress = scene.run(mover);
    assert_eq!((progress.shards, progress.shards_done), (342, 342));
    scene.sets(&[&[1, 2]]);
    (0..5).for_each(|_| scene.change());
    scene.sweep(kinds);
}

/// A move is left in its middle, and another thing is done.
fn change_of_mind(ack: AckMode, kinds: &[Survivors]) {
    let mut scene = Scene::new(ack, 2, 1, 3);
    scene.sets(&[&[0, 1, 2], &[0, 1]]);
    scene.add(2);
    scene.sets(&[&[0, 1, 2]]);
    let mut mover = scene.backend.rebalance().unwrap().with_step_pairs(1);
    while mover.progress().pairs_copied < 3 {
        assert!(mover.step().unwrap());
        scene.change();
    }
    drop(mover);
    (0..5).for_each(|_| scene.change());
    scene.sets(&[&[0, 1, 2], &[1, 2]]);
    let mover = scene.backend.remove_device(0).unwrap();
    scene.run(mover);
    scene.sets(&[&[1, 2]]);
    (0..5).for_each(|_| scene.change());
    scene.sweep(kinds);
}

#[test]
fn a_device_that_comes_loses_nothing_with_a_capacitor() {
    add_and_rebalance(AckMode::Buffered, &CAPACITOR);
}

#[test]
fn a_device_that_comes_loses_nothing_that_was_durable() {
    add_and_rebalance(AckMode::Immediate, &POWER_CUTS);
    add_and_rebalance(AckMode::Buffered, &POWER_CUTS);
}

#[test]
fn a_device_that_goes_loses_nothing_with_a_capacitor() {
    remove(AckMode::Buffered, &CAPACITOR);
}

#[test]
fn a_device_that_goes_loses_nothing_that_was_durable() {
    remove(AckMode::Immediate, &POWER_CUTS);
    remove(AckMode::Buffered, &POWER_CUTS);
}

#[test]
fn a_move_that_is_left_for_another_loses_nothing() {
    change_of_mind(AckMode::Buffered, &CAPACITOR);
    change_of_mind(AckMode::Immediate, &POWER_CUTS);
}
