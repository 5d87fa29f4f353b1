//! Commands over a store of pairs: the steps of their attempts.
//!
//! Owns what is asked for at the end of a turn, and what becomes of commands whose steps have ended. Promises that what the store has at once is waited for by nobody. Must not know how steps are done.

use super::{EventLoop, SWEEP_REST, list};
use crate::serve::attempts::{Advanced, Attempts};
use crate::serve::keyspace::Keyspace;
use crate::serve::keyspace::pairs::attempt::{Attempt, Ended, Step};
use crate::serve::reader::Client;
use crate::serve::session::Session;

impl EventLoop {
    /// Has the commands given again, or answered, whose attempts have gone a step on.
    pub(super) fn finish_steps(&mut self) {
        let ended = self.attempts.as_ref().map(Attempts::ended);
        for Advanced { client, attempt, step, before, ended } in ended.into_iter().flatten() {
            for (client, attempt) in before {
                self.take_up(client, attempt, (step, ended.clone()));
            }
            self.take_up(client, attempt, (step, ended));
        }
    }

    /// Has the attempts of this turn's commands go on. For what the store has at once, as far as there is room for it, nobody waits.
    pub(super) fn request_steps(&mut self) {
        let Keyspace::Pairs(keys) = &self.server.keyspace else { return };
        let (db, bytes_max) = (keys.db().clone(), self.server.settings.client_bytes_max);
        let mut lacking = Vec::new();
        for mut job in self.server.group_commit.take_steps() {
            let may_be_cached = job.step == Step::Fetch && db.bytes_at_hand() < bytes_max;
            match may_be_cached.then(|| job.attempt.fetch_cached()).flatten() {
                Some(ended) => self.take_up(job.client, job.attempt, (job.step, ended)),
                None => lacking.push(job),
            }
        }
        if let Some(attempts) = &self.attempts {
            attempts.set_bytes_max(bytes_max);
            if !lacking.is_empty() {
                attempts.request(lacking);
            }
        }
    }

    /// Has the commands given again that waited for others which write their rows, once those are done.
    pub(super) fn begin_waiting(&mut self) {
        let sessions = &self.server.sessions;
        let is_there = |(key, id): Client| sessions.get(key).is_some_and(|session| session.id == id);
        for job in self.server.group_commit.begin_waiting(is_there) {
            self.take_up(job.client, job.attempt, (job.step, Ended::Well));
        }
    }

    fn take_up(&mut self, (key, id): Client, attempt: Box<Attempt>, (step, ended): (Step, Ended)) {
        let waits = |s: &Session| s.id == id && s.waits_for_store();
        if !self.server.sessions.get(key).is_some_and(waits) {
            return;
        }
        self.server.take_up(key, attempt, step, ended);
        if let Some(connection) = self.connections.get_mut(key) {
            list(&mut self.next, connection, key);
        }
    }

    /// Has the sweep of a store of pairs go on, which rests after each round.
    pub(super) fn sweep_pairs(&mut self) {
        let now = self.server.keyspace.uptime();
        let Some(attempts) = &self.attempts else { return };
        if now.saturating_sub(self.swept.1) < SWEEP_REST && self.swept.0 > 0 {
            return;
        }
        let rounds = attempts.sweep();
        if rounds > self.swept.0 {
            self.swept = (rounds, now);
        }
    }
}
