//! Commands on connections: handshake, authentication, and what clients say and learn about themselves and each other.

use std::collections::HashSet;

use super::is_word;
use super::server::REDIS_VERSION;
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::limits;
use crate::serve::number;
use crate::serve::resp::Args;
use crate::serve::server::{Context, Pause};
use crate::serve::session::{ReplyMode, Session};

/// PING [message]
pub fn ping(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    match args.len() {
        1 => context.reply.status("PONG"),
        2 => context.reply.bulk(args.at(1)),
        _ => return Err(Failure::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

/// ECHO message
pub fn echo(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    context.reply.bulk(args.at(1));
    Ok(())
}

/// QUIT
pub fn quit(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.session().is_closing = true;
    context.reply.ok();
    Ok(())
}

/// RESET
pub fn reset(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let stranger_since = context.server.strangers_since();
    context.server.unwatch(context.client);
    context.session().reset(stranger_since);
    context.reply.set_resp3(false);
    context.reply.status("RESET");
    Ok(())
}

/// SELECT index
pub fn select(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let index = number::parse_i64(args.at(1)).ok_or(Failure::NOT_AN_INTEGER)?;
    let index = usize::try_from(index).ok().filter(|index| *index < limits::DATABASES);
    context.session().db = index.ok_or(Failure::DB_INDEX)?;
    context.reply.ok();
    Ok(())
}

const WRONG_PASSWORD: Failure =
    Failure::text("WRONGPASS invalid username-password pair or user is disabled.");

fn authenticate(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> Outcome<()> {
    // The comparison runs for every user name, so that time does not tell which names exist.
    let is_right = context.server.settings.is_password(password);
    if !is_right || user != b"default" {
        return Err(WRONG_PASSWORD);
    }
    context.session().stranger_since = None;
    Ok(())
}

/// AUTH [username] password
pub fn auth(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (user, password) = match args.len() {
        2 => (&b"default"[..], args.at(1)),
        3 => (args.at(1), args.at(2)),
        _ => return Err(Failure::SYNTAX),
    };
    if args.len() == 2 && context.server.settings.password.is_none() {
        return Err(Failure::text(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ));
    }
    authenticate(context, user, password)?;
    context.reply.ok();
    Ok(())
}

/// Refuses what can be no part of a line of CLIENT LIST, which has `what` there.
fn check_printable(what: &str, text: &[u8]) -> Outcome<()> {
    if text.len() > limits::CLIENT_NAME_BYTES_MAX {
        let (max, len) = (limits::CLIENT_NAME_BYTES_MAX, text.len());
        return Err(Failure::new(format!(
            "ERR {what} cannot have more than {max} bytes; this one has {len}"
        )));
    }
    match text.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(()),
        false => {
            Err(Failure::new(format!("ERR {what} cannot contain spaces, newlines or special characters.")))
        }
    }
}

/// What [`check_printable`] calls names.
const NAMES: &str = "Client names";

/// HELLO [protover [AUTH username password] [SETNAME clientname]]
pub fn hello(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let mut resp3 = context.session().resp3;
    if let Some(version) = args.get(1) {
        resp3 = match number::parse_i64(version) {
            None => return Err(Failure::text("ERR Protocol version is not an integer or out of range")),
            Some(2) => false,
            Some(3) => true,
            Some(_) => return Err(Failure::text("NOPROTO unsupported protocol version")),
        };
    }
    let (mut name, mut index) = (None, 2);
    while let Some(word) = args.get(index) {
        if is_word(word, "AUTH") && args.len() > index + 2 {
            authenticate(context, args.at(index + 1), args.at(index + 2))?;
            index += 3;
        } else if is_word(word, "SETNAME") && args.len() > index + 1 {
            name = Some(args.at(index + 1));
            index += 2;
        } else {
            return Err(Failure::new(format!("ERR Syntax error in HELLO option '{}'", quote(word))));
        }
    }
    if !context.session().is_authenticated() {
        return Err(Failure::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
             the same time",
        ));
    }
    if let Some(name) = name {
        check_printable(NAMES, name)?;
        context.session().name = name.to_vec();
    }
    context.session().resp3 = resp3;
    context.reply.set_resp3(resp3);
    let id = context.session().id as i64;
    let reply = &mut context.reply;
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", if resp3 { 3 } else { 2 }), ("id", id)] {
        reply.bulk(name.as_bytes());
        reply.integer(value);
    }
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

/// CLIENT ID
pub fn client_id(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let id = context.session().id as i64;
    context.reply.integer(id);
    Ok(())
}

/// CLIENT GETNAME
pub fn client_getname(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let name = context.session().name.clone();
    match name.is_empty() {
        true => context.reply.null(),
        false => context.reply.bulk(&name),
    }
    Ok(())
}

/// CLIENT SETNAME connection-name
pub fn client_setname(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    check_printable(NAMES, args.at(2))?;
    context.session().name = args.at(2).to_vec();
    context.reply.ok();
    Ok(())
}

/// CLIENT SETINFO <LIB-NAME libname | LIB-VER libver>
pub fn client_setinfo(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (what, value) = (args.at(2), args.at(3));
    let is_name = is_word(what, "LIB-NAME");
    if !is_name && !is_word(what, "LIB-VER") {
        return Err(Failure::new(format!("ERR Unrecognized option '{}'", quote(what))));
    }
    check_printable(if is_name { "lib-name" } else { "lib-ver" }, value)?;
    let session = context.session();
    match is_name {
        true => session.library = value.to_vec(),
        false => session.library_version = value.to_vec(),
    }
    context.reply.ok();
    Ok(())
}

/// Bytes of the arguments of a command.
fn argument_bytes(args: Args<'_>) -> usize {
    args.iter().map(<[u8]>::len).sum()
}

/// CLIENT INFO
pub fn client_info(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let now = context.server.keyspace.now_ms();
    let line = context.session().describe(now, argument_bytes(args));
    context.reply.verbatim(format!("{line}\n").as_bytes());
    Ok(())
}

/// CLIENT LIST [TYPE type] [ID client-id [client-id ...]]
pub fn client_list(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let mut ids: Option<HashSet<u64>> = None;
    let mut shows_normal = true;
    match (args.get(2), args.get(3)) {
        (None, _) => {}
        (Some(word), Some(kind)) if is_word(word, "TYPE") && args.len() == 4 => {
            let known = ["normal", "master", "replica", "slave", "pubsub"];
            if !known.iter().any(|known| is_word(kind, known)) {
                return Err(Failure::new(format!("ERR Unknown client type '{}'", quote(kind))));
            }
            shows_normal = is_word(kind, "normal");
        }
        (Some(word), Some(_)) if is_word(word, "ID") => {
            let parsed = args.from(3).iter().map(|id| {
                number::parse_u64(id).filter(|id| *id > 0).ok_or(Failure::text("ERR Invalid client ID"))
            });
            ids = Some(parsed.collect::<Outcome<_>>()?);
        }
        _ => return Err(Failure::SYNTAX),
    }
    let now = context.server.keyspace.now_ms();
    let mut sessions: Vec<&Session> = context.server.sessions.iter().map(|(_, session)| session).collect();
    sessions.sort_by_key(|session| session.id);
    let mut text = String::new();
    for session in sessions {
        if shows_normal && ids.as_ref().is_none_or(|ids| ids.contains(&session.id)) {
            let is_me = context.server.sessions[context.client].id == session.id;
            text.push_str(&session.describe(now, if is_me { argument_bytes(args) } else { 0 }));
            text.push('\n');
        }
    }
    context.reply.verbatim(text.as_bytes());
    Ok(())
}

/// Which clients CLIENT KILL means.
#[derive(Default)]
struct KillFilter<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    includes_me: bool,
    never: bool,
    age_s: Option<u64>,
}

fn kill_filter(args: Args<'_>) -> Outcome<KillFilter<'_>> {
    let mut filter = KillFilter::default();
    let mut index = 2;
    while let Some(word) = args.get(index) {
        let value = args.get(index + 1).ok_or(Failure::SYNTAX)?;
        match word {
            _ if is_word(word, "ID") => {
                let id = number::parse_u64(value).filter(|id| *id > 0);
                filter.id = Some(id.ok_or(Failure::text("ERR client-id should be greater than 0"))?);
            }
            _ if is_word(word, "ADDR") => filter.address = Some(value),
            _ if is_word(word, "LADDR") => filter.local_address = Some(value),
            _ if is_word(word, "MAXAGE") => {
                let age = number::parse_i64(value);
                let age = age.ok_or(Failure::text("ERR maxage is not an integer or out of range"))?;
                let age = u64::try_from(age).ok().filter(|age| *age > 0);
                filter.age_s = Some(age.ok_or(Failure::text("ERR maxage should be greater than 0"))?);
            }
            _ if is_word(word, "USER") => {
                if value != b"default" {
                    return Err(Failure::new(format!("ERR No such user '{}'", quote(value))));
                }
            }
            _ if is_word(word, "TYPE") => match value {
                _ if is_word(value, "normal") => {}
                _ if ["master", "replica", "slave", "pubsub"].iter().any(|known| is_word(value, known)) => {
                    filter.never = true;
                }
                _ => return Err(Failure::new(format!("ERR Unknown client type '{}'", quote(value)))),
            },
            _ if is_word(word, "SKIPME") => match value {
                _ if is_word(value, "yes") => filter.includes_me = false,
                _ if is_word(value, "no") => filter.includes_me = true,
                _ => return Err(Failure::SYNTAX),
            },
            _ => return Err(Failure::SYNTAX),
        }
        index += 2;
    }
    Ok(filter)
}

/// CLIENT KILL <old-addr | filters>
pub fn client_kill(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let is_old_form = args.len() == 3;
    let filter = match is_old_form {
        true => KillFilter { address: Some(args.at(2)), includes_me: true, ..KillFilter::default() },
        false => kill_filter(args)?,
    };
    let now = context.server.keyspace.now_ms();
    let me = context.client;
    let chosen: Vec<usize> = context
        .server
        .sessions
        .iter()
        .filter(|(key, session)| {
            let age = now.saturating_sub(session.connected_ms) / 1000;
            !filter.never
                && (filter.includes_me || *key != me)
                && filter.id.is_none_or(|id| id == session.id)
                && filter.address.is_none_or(|address| address == session.address.as_bytes())
                && filter.local_address.is_none_or(|address| address == session.local_address.as_bytes())
                && filter.age_s.is_none_or(|limit| age >= limit)
        })
        .map(|(key, _)| key)
        .collect();
    for &key in &chosen {
        // Of what it has sent nothing more is done. The client itself still gets its reply.
        context.server.sessions[key].is_closing = true;
        if key != me {
            context.server.kills.push(key);
        }
    }
    match (is_old_form, chosen.is_empty()) {
        (true, true) => return Err(Failure::text("ERR No such client")),
        (true, false) => context.reply.ok(),
        (false, _) => context.reply.integer(chosen.len() as i64),
    }
    Ok(())
}

fn on_or_off(word: &[u8]) -> Outcome<bool> {
    match word {
        _ if is_word(word, "ON") => Ok(true),
        _ if is_word(word, "OFF") => Ok(false),
        _ => Err(Failure::SYNTAX),
    }
}

/// CLIENT NO-EVICT <ON | OFF>
pub fn client_no_evict(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    context.session().no_evict = on_or_off(args.at(2))?;
    context.reply.ok();
    Ok(())
}

/// CLIENT NO-TOUCH <ON | OFF>
pub fn client_no_touch(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    context.session().no_touch = on_or_off(args.at(2))?;
    context.reply.ok();
    Ok(())
}

/// CLIENT REPLY <ON | OFF | SKIP>
pub fn client_reply(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let word = args.at(2);
    let mode = context.session().reply_mode;
    context.session().reply_mode = match word {
        _ if is_word(word, "ON") => ReplyMode::On,
        _ if is_word(word, "OFF") => ReplyMode::Off,
        // Where nothing is answered, there is nothing to be left out.
        _ if is_word(word, "SKIP") && mode == ReplyMode::Off => ReplyMode::Off,
        _ if is_word(word, "SKIP") => ReplyMode::SkipNext,
        _ => return Err(Failure::SYNTAX),
    };
    context.reply.ok();
    Ok(())
}

/// CLIENT PAUSE timeout [WRITE | ALL]
pub fn client_pause(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let timeout = number::parse_i64(args.at(2));
    let timeout = timeout.ok_or(Failure::text("ERR timeout is not an integer or out of range"))?;
    let timeout = u64::try_from(timeout).map_err(|_| Failure::text("ERR timeout is negative"))?;
    let writes_only = match args.get(3) {
        None => false,
        Some(word) if is_word(word, "ALL") && args.len() == 4 => false,
        Some(word) if is_word(word, "WRITE") && args.len() == 4 => true,
        Some(_) => return Err(Failure::text("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let until_ms = context.server.keyspace.now_ms().saturating_add(timeout);
    context.server.pause(Pause { until_ms, writes_only });
    context.reply.ok();
    Ok(())
}

/// CLIENT UNPAUSE
pub fn client_unpause(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    // A second one in the same turn takes nothing back.
    context.server.resumes |= context.server.paused.take().is_some();
    context.reply.ok();
    Ok(())
}

/// CLIENT UNBLOCK client-id [TIMEOUT | ERROR]
pub fn client_unblock(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    number::parse_i64(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    context.reply.integer(0);
    Ok(())
}

/// CLIENT GETREDIR
pub fn client_getredir(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.reply.integer(-1);
    Ok(())
}

/// CLIENT TRACKINGINFO
pub fn client_trackinginfo(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.reply.map(3);
    context.reply.bulk(b"flags");
    context.reply.set(1);
    context.reply.bulk(b"off");
    context.reply.bulk(b"redirect");
    context.reply.integer(-1);
    context.reply.bulk(b"prefixes");
    context.reply.array(0);
    Ok(())
}

/// CLIENT TRACKING <ON | OFF>, CLIENT CACHING <YES | NO>
pub fn client_tracking(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if is_word(args.at(2), "OFF") {
        context.reply.ok();
        return Ok(());
    }
    Err(Failure::text("ERR client tracking is not supported by this server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clients_are_printable() {
        assert!(check_printable(NAMES, b"worker-1").is_ok());
        assert!(check_printable(NAMES, b"").is_ok());
        assert!(check_printable(NAMES, &[b'a'; limits::CLIENT_NAME_BYTES_MAX]).is_ok());
        let refused = |name: &[u8]| check_printable(NAMES, name).unwrap_err().as_str().to_owned();
        let special = "ERR Client names cannot contain spaces, newlines or special characters.";
        assert_eq!(refused(b"two words"), special);
        assert_eq!(refused(b"line\nbreak"), special);
        let long = refused(&[b' '; limits::CLIENT_NAME_BYTES_MAX + 1]);
        assert_eq!(long, "ERR Client names cannot have more than 1024 bytes; this one has 1025");
    }
}
