//! What a crash leaves of an array: of each device a prefix of its commands, and what the mode promises.

use super::*;

/// A change of a key, as it was answered.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// What ran on an array: per device its changes, in their order, with the log's length before and after each, and how many of them were durable by then.
struct Script {
    sims: Vec<CrashSim>,
    options: KvssdOptions,
    /// Of each device.
    changes: Vec<Vec<(u64, Change)>>,
    persisted: Vec<Vec<(u64, usize)>>,
}

impl Script {
    fn run(ack: AckMode, seed: u64, commands: usize) -> Script {
        let (sims, options) = (sims(2), options(ack));
        let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
        let mut session = backend.session().unwrap();
        let mut random = Random::from_seed(seed);
        let (mut changes, mut persisted) = (vec![Vec::new(); 2], vec![vec![(0, 0)]; 2]);
        let begin: Vec<u64> = sims.iter().map(CrashSim::ops).collect();
        persisted.iter_mut().zip(&begin).for_each(|(of, &ops)| of.push((ops, 0)));
        for n in 0..commands {
            let key = key(random.below(30));
            let device = owner(&backend, &key);
            let value = vec![n as u8; random.below(1_500) as usize];
            let seen = get(&mut *session, &key).unwrap();
            let expect = seen.as_ref().map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
            match random.below(12) {
                0..=7 => {
                    put(&mut *session, &key, &value, expect).unwrap();
                    changes[device].push((sims[device].ops(), (key, Some(value))));
                }
                8..=10 => {
                    let deleted = answer(&mut *session, Command::Delete { key: &key, expect: Expect::Any });
                    if deleted.unwrap() == Answer::Deleted(true) {
                        changes[device].push((sims[device].ops(), (key, None)));
                    }
                }
                _ => {
                    answer(&mut *session, Command::Persist).unwrap();
                    for device in 0..2 {
                        persisted[device].push((sims[device].ops(), changes[device].len()));
                    }
                }
            }
        }
        Script { sims, options, changes, persisted }
    }

    /// Opens what a crash of one device left, beside the other as it was in the end, and compares.
    fn check(&self, device: usize, op: u64, kind: Survivors, seed: u64) {
        let (crashed, whole) = (crashed(&self.sims[device], op, kind, seed), copied(&self.sims[1 - device]));
        let sims = if device == 0 { [crashed, whole] } else { [whole, crashed] };
        let backend = KvssdBackend::open(&media(&sims), &self.options)
            .unwrap_or_else(|error| panic!("device {device} at {op}, {kind:?}: {error}"));
        let found: BTreeMap<Vec<u8>, Vec<u8>> = walk(&mut *backend.session().unwrap(), GROUP, 50)
            .into_iter()
            .filter(|pair| owner(&backend, &pair.key) == device)
            .map(|pair| (pair.key.to_vec(), pair.value.to_vec()))
            .collect();
        let begun = self.changes[device].iter().filter(|(ops, _)| *ops <= op).count();
        let is_kept = self.options.device.ack == AckMode::Immediate
            || matches!(kind, Survivors::All | Survivors::ProcessKill);
        let persisted = self.persisted[device].iter().filter(|(ops, _)| *ops <= op).map(|(_, n)| *n).max();
        let least = if is_kept { begun } else { persisted.unwrap_or(0) };
        let mut state = BTreeMap::new();
        let mut fits = false;
        for (n, (_, (key, value))) in self.changes[device].iter().enumerate() {
            fits |= n >= least && state == found;
            // One more may be whole though its answer had not come.
            if n > begun {
                break;
            }
            match value {
                Some(value) => drop(state.insert(key.clone(), value.clone())),
                None => drop(state.remove(key)),
            }
        }
        fits |= state == found;
        assert!(fits, "device {device} at {op}, {kind:?}: no prefix of {least} to {begun} changes is there");
    }

    fn sweep(&self, kinds: &[Survivors]) {
        for device in 0..2 {
            // From when the array was made.
            let (first, last) = (self.persisted[device][1].0, self.sims[device].ops());
            assert!(self.changes[device].len() > 50);
            for n in 0..60 {
                let op = first + (last - first) * n / 59;
                for (at, &kind) in kinds.iter().enumerate() {
                    self.check(device, op, kind, n * 31 + at as u64);
                }
            }
        }
    }
}

const POWER_CUTS: [Survivors; 6] = [
    Survivors::None,
    Survivors::Random,
    Survivors::LastStore,
    Survivors::AllButLastStore,
    Survivors::HeadersOnly,
    Survivors::BodiesOnly,
];

/// With a capacitor, and where a process is killed, all that was acknowledged is there.
#[test]
fn with_a_capacitor_nothing_acknowledged_is_lost() {
    Script::run(AckMode::Buffered, 1, 400).sweep(&[Survivors::All, Survivors::ProcessKill]);
}

/// Without one it is a prefix, with all that was made durable.
#[test]
fn without_one_a_prefix_is_left_with_all_that_was_persisted() {
    Script::run(AckMode::Buffered, 2, 400).sweep(&POWER_CUTS);
}

#[test]
fn what_is_acknowledged_when_it_is_durable_is_never_lost() {
    Script::run(AckMode::Immediate, 3, 300).sweep(&POWER_CUTS);
}
