//! All orders of what can happen in a small pool.
//!
//! Owns the search: from a state, every step that is possible, depth first, no state twice. Promises to try every order of the steps that `world.rs` calls choices; steps that commute with all others are taken at once
//! (persistent sets of one step: Godefroid 1996). States are known by a hash of 64 bits, so that of ten million one in a million searches may pass over a state. Must not know what steps do.

use std::collections::HashSet;
use std::rc::Rc;

use super::world::{Choice, World};

/// How a state was come to.
struct Path {
    choice: Choice,
    before: Option<Rc<Path>>,
}

/// What a search came to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Explored {
    /// States with a choice, or the end of a run.
    pub(super) states: u64,
    /// Ends of runs, every history of which was checked.
    pub(super) ends: u64,
    /// Runs given up because they came to no end.
    pub(super) endless: u64,
}

/// What is wrong, and the way there.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) what: String,
    pub(super) way: Vec<Choice>,
}

/// Choices on one way at most: more is a run without an end, as of somebody who waits for what never comes.
const CHOICES_MAX: usize = 400;

/// Explores all orders from a state.
///
/// # Panics
/// If there are more than `states_max` states: a set-up is to be small.
pub(super) fn explore(from: World, states_max: u64) -> Result<Explored, Wrong> {
    let mut seen = HashSet::new();
    let mut explored = Explored::default();
    let mut stack: Vec<(World, Option<Rc<Path>>, usize)> = vec![(from, None, 0)];
    while let Some((mut world, path, depth)) = stack.pop() {
        let wrong = |what: String| Wrong { what, way: way(path.as_ref()) };
        world.settle_what_commutes().map_err(wrong)?;
        if !seen.insert(world.hash()) {
            continue;
        }
        explored.states += 1;
        if depth > CHOICES_MAX {
            explored.endless += 1;
            continue;
        }
        assert!(explored.states <= states_max, "{explored:?} is more than the bound of {states_max} states");
        let choices = world.choices();
        if choices.is_empty() {
            explored.ends += 1;
            world.check_end().map_err(wrong)?;
            continue;
        }
        let mut choices = choices.into_iter().rev();
        let last = choices.next_back();
        let mut go = |mut next: World, choice: Choice| {
            let path = Some(Rc::new(Path { choice, before: path.clone() }));
            match next.take(choice) {
                Ok(()) => {
                    stack.push((next, path, depth + 1));
                    Ok(())
                }
                Err(what) => Err(Wrong { what, way: way(path.as_ref()) }),
            }
        };
        for choice in choices {
            go(world.clone(), choice)?;
        }
        if let Some(choice) = last {
            go(world, choice)?;
        }
    }
    Ok(explored)
}

fn way(mut path: Option<&Rc<Path>>) -> Vec<Choice> {
    let mut choices = Vec::new();
    while let Some(here) = path {
        choices.push(here.choice);
        path = here.before.as_ref();
    }
    choices.reverse();
    choices
}
