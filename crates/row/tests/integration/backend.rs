//! A backend of another crate, as a device or a pool is: all that it must answer can be made outside of the crate of rows.

use std::time::Duration;

use hedgerow_row::backend::{
    Answer, Backend, Capabilities, Command, Cursor, Expect, Mark, Pair, Session, Ticket, pair_key,
};
use hedgerow_row::{Error, ErrorKind, Result};

/// Has one pair, which nobody can change.
struct Fixed;

/// What was answered, and how many tickets were given.
struct FixedSession(Vec<(Ticket, Result<Answer>)>, u64);

const CAPABILITIES: Capabilities = Capabilities {
    name: "fixed",
    key_bytes_max: 64,
    value_bytes_max: 64,
    depth_max: 8,
    persists: false,
    batch_bytes_max: 0,
};

impl Backend for Fixed {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(FixedSession(Vec::new(), 0)))
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

fn pair() -> Pair {
    Pair { key: pair_key(7, b"key").into(), value: b"value".as_slice().into(), mark: Mark::new(1) }
}

impl Session for FixedSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        let answer = match command {
            Command::Get { key } => Ok(Answer::Got(Some(pair()).filter(|pair| *pair.key == *key))),
            Command::Walk { from, .. } if from.place().is_some() => Ok(Answer::Walked(vec![pair()], None)),
            Command::Walk { .. } => Ok(Answer::Walked(Vec::new(), Some(Cursor::at(b"on".as_slice().into())))),
            Command::Count { .. } => Ok(Answer::Counted(1)),
            _ => Err(Error::new(ErrorKind::Conflict, "it is fixed")),
        };
        self.1 += 1;
        let ticket = Ticket::new(self.1);
        self.0.push((ticket, answer));
        Ok(ticket)
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        answered.append(&mut self.0);
    }

    fn wait(&mut self, _timeout: Duration) -> Result<()> {
        Ok(())
    }
}

#[test]
fn another_crate_can_be_a_backend() {
    let backend: Box<dyn Backend> = Box::new(Fixed);
    let mut session = backend.session().unwrap();
    let key = pair_key(7, b"key");
    let get = session.start(Command::Get { key: &key }).unwrap();
    let walk = session.start(Command::Walk { group: 7, from: Cursor::START, pairs: 1 }).unwrap();
    let delete = Command::Delete { key: &key, expect: Expect::Same(Mark::new(1)) };
    let delete = session.start(delete).unwrap();
    let mut answered = Vec::new();
    session.wait(Duration::ZERO).unwrap();
    session.poll(&mut answered);
    assert_eq!(answered.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [get, walk, delete]);
    assert_eq!(answered[0].1.as_ref().unwrap(), &Answer::Got(Some(pair())));
    let Ok(Answer::Walked(pairs, Some(next))) = &answered[1].1 else { panic!("an empty step of a walk") };
    assert!(pairs.is_empty());
    let rest = Command::Walk { group: 7, from: next.clone(), pairs: 1 };
    assert!(session.start(rest).unwrap() > delete, "a ticket is given once");
    answered.clear();
    session.poll(&mut answered);
    assert!(matches!(&answered[0].1, Ok(Answer::Walked(pairs, None)) if pairs.len() == 1));
}
