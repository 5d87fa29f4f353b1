//! Nodes on this machine, all in one thread: between two steps nothing happens.

use std::io::{Read, Write};
use std::net::TcpStream as BlockingStream;
use std::sync::atomic::Ordering;

use hedgerow_device::Random;

use super::accepted::UNSENT_MAX;
use super::frame::{Frame, Parsed};
use super::inbox::DATAGRAMS_MAX;
use super::*;
use crate::fabric::conformance::{Bench, check};
use crate::fabric::{OpResult, PostResult, RemoteOp};
use crate::region::RemoteAddress;

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const M: MemoryNode = MemoryNode(0);
const N: MemoryNode = MemoryNode(1);
const S: SessionId = SessionId(1);
const LIFE: u64 = 7;
/// Turns without anything after which nothing is expected any more.
const QUIET_TURNS: u32 = 25;
const QUICK: TcpOptions = TcpOptions { connections_max: 8, redial_ns: 1_000_000, unreachable_ns: 60_000_000 };

fn at(offset: u32) -> RemoteAddress {
    RemoteAddress { region: 0, offset }
}

fn add(offset: u32) -> Batch {
    vec![RemoteOp::FetchAndAdd(at(offset), 1)]
}

fn life_of(node: NodeId) -> u64 {
    node.as_memory_node().map_or(0, |_| LIFE)
}

struct Net {
    fabrics: BTreeMap<NodeId, TcpFabric>,
    options: TcpOptions,
}

impl Net {
    fn new(options: TcpOptions, nodes: &[NodeId]) -> Net {
        let mut net = Net { fabrics: BTreeMap::new(), options };
        nodes.iter().for_each(|&node| net.start(node, life_of(node), LOOPBACK));
        net.meet_all();
        net
    }

    fn start(&mut self, node: NodeId, life: u64, address: SocketAddr) {
        let mut fabric = TcpFabric::bind(node, life, address, self.options).unwrap();
        if life != 0 {
            fabric.export(0, vec![0; 4096]);
        }
        self.fabrics.insert(node, fabric);
    }

    fn meet_all(&mut self) {
        let places: Vec<_> =
            self.fabrics.iter().map(|(&node, fabric)| (node, fabric.address().unwrap())).collect();
        for (own, fabric) in &mut self.fabrics {
            for &(node, address) in places.iter().filter(|(node, _)| node != own) {
                fabric.meet(node, address, life_of(node));
            }
        }
    }

    fn at(&mut self, node: NodeId) -> &mut TcpFabric {
        self.fabrics.get_mut(&node).unwrap()
    }

    /// Everybody gets a turn; `node` waits for something.
    fn turn(&mut self, node: NodeId) {
        self.fabrics.values_mut().for_each(|fabric| fabric.go_on(Duration::ZERO));
        self.at(node).wait(Duration::from_millis(1));
    }

    fn poll(&mut self, node: NodeId) -> Option<FabricEvent> {
        for _ in 0..QUIET_TURNS {
            if let Some(event) = self.at(node).poll() {
                return Some(event);
            }
            self.turn(node);
        }
        self.at(node).poll()
    }

    /// The end of the batch with this tag, whatever else comes; it may be told late.
    fn end_of(&mut self, node: NodeId, tag: u64) -> PostResult {
        for _ in 0..2000 {
            match self.at(node).poll() {
                Some(FabricEvent::Done(other, result)) if other == tag => return result,
                Some(_) => {}
                None => self.turn(node),
            }
        }
        panic!("{tag} is never done");
    }

    /// The ends of all batches with tags below `count`, by their tags.
    fn ends_of(&mut self, node: NodeId, count: u64) -> Vec<PostResult> {
        let mut ends = BTreeMap::new();
        for _ in 0..5000 {
            match self.at(node).poll() {
                Some(FabricEvent::Done(tag, end)) => assert!(ends.insert(tag, end).is_none(), "{tag} twice"),
                Some(_) => {}
                None if ends.len() as u64 == count => return ends.into_values().collect(),
                None => self.turn(node),
            }
        }
        panic!("{} of {count} are done", ends.len());
    }

    fn ask(&mut self, node: NodeId, session: SessionId, batch: Batch) -> PostResult {
        self.at(node).post(session, M, batch, 99);
        self.end_of(node, 99)
    }

    fn word(&mut self, offset: usize) -> u64 {
        let memory = self.at(NodeId::agent(M)).memory(0).unwrap();
        u64::from_le_bytes(memory[offset..offset + 8].try_into().unwrap())
    }
}

struct NetPort<'n>(&'n mut Net, NodeId);

impl Fabric for NetPort<'_> {
    fn post(&mut self, session: SessionId, to: MemoryNode, batch: Batch, tag: u64) {
        self.0.at(self.1).post(session, to, batch, tag);
    }

    fn send(&mut self, to: NodeId, bytes: Vec<u8>) {
        self.0.at(self.1).send(to, bytes);
    }

    fn fence(&mut self, session: SessionId, tag: u64) {
        self.0.at(self.1).fence(session, tag);
    }

    fn poll(&mut self) -> Option<FabricEvent> {
        self.0.poll(self.1)
    }
}

impl Bench for Net {
    fn port(&mut self, node: NodeId) -> Box<dyn Fabric + '_> {
        Box::new(NetPort(self, node))
    }
}

const ALL: [NodeId; 5] = [A, B, NodeId(0x4000), NodeId(0x4001), NodeId::MANAGER];

#[test]
fn the_fabric_over_tcp_keeps_the_contract() {
    check(&mut |_| Box::new(Net::new(TcpOptions::default(), &ALL)));
}

/// A peer that says what it likes.
struct Stranger(BlockingStream);

impl Stranger {
    fn new(net: &mut Net) -> Stranger {
        let stream = BlockingStream::connect(net.at(NodeId::agent(M)).address().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Stranger(stream)
    }

    fn say(&mut self, net: &mut Net, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => net.turn(NodeId::agent(M)),
                Err(_) => return,
            }
        }
        net.turn(NodeId::agent(M));
    }

    fn say_frames(&mut self, net: &mut Net, frames: &[Frame]) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.append_to(&mut bytes));
        self.say(net, &bytes);
    }

    /// All that it is told until it is told no more, or nothing comes.
    fn hear(&mut self, net: &mut Net) -> (Vec<Frame>, bool) {
        let (mut heard, mut quiet, mut is_over) = (Vec::new(), 0, false);
        while quiet < QUIET_TURNS && !is_over {
            let mut bytes = vec![0; 1 << 20];
            match self.0.read(&mut bytes) {
                Ok(0) => is_over = true,
                Ok(count) => {
                    heard.extend_from_slice(&bytes[..count]);
                    quiet = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => quiet += 1,
                Err(_) => is_over = true,
            }
            net.turn(NodeId::agent(M));
        }
        let (mut frames, mut rest) = (Vec::new(), &heard[..]);
        while let Ok(Parsed::Whole(frame, bytes)) = Parsed::of(rest) {
            frames.push(frame);
            rest = &rest[bytes..];
        }
        assert!(rest.is_empty(), "half a frame");
        (frames, is_over)
    }
}

fn hello(life: u64) -> Frame {
    Frame::Hello { from: B, to: NodeId::agent(M), life }
}

#[test]
fn who_is_not_welcome_is_told_why() {
    let batch = || Frame::Batch(1, S, add(8));
    let elsewhere = Frame::Hello { from: B, to: NodeId::agent(N), life: LIFE };
    let mut flipped = Vec::new();
    hello(LIFE).append_to(&mut flipped);
    flipped[20] ^= 1;
    let bytes_of = |frames: &[Frame]| {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.append_to(&mut bytes));
        bytes
    };
    let own = NodeId::agent(M);
    for (said, refusal) in [
        (bytes_of(&[Frame::ForeignHello(2)]), FabricRefusal::Version(1)),
        (bytes_of(&[elsewhere]), FabricRefusal::OtherNode(own)),
        (bytes_of(&[hello(LIFE + 1), batch()]), FabricRefusal::OtherLife(LIFE)),
        (bytes_of(&[batch()]), FabricRefusal::Malformed),
        (bytes_of(&[Frame::Datagram(vec![1])]), FabricRefusal::Malformed),
        (flipped, FabricRefusal::Malformed),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), FabricRefusal::Malformed),
    ] {
        let mut net = Net::new(TcpOptions::default(), &[own]);
        let mut stranger = Stranger::new(&mut net);
        stranger.say(&mut net, &said);
        assert_eq!(stranger.hear(&mut net), (vec![Frame::Refused(refusal)], true), "{said:?}");
        assert_eq!(net.word(8), 0);
    }
    // After a greeting, too: what came before was done, what comes after is not.
    for wrong in [hello(LIFE), Frame::Welcome(LIFE), Frame::Answer(1, Ok(Vec::new()))] {
        let mut net = Net::new(TcpOptions::default(), &[own]);
        let mut stranger = Stranger::new(&mut net);
        stranger.say_frames(&mut net, &[hello(LIFE), batch(), wrong, batch()]);
        let answer = Frame::Answer(1, Ok(vec![OpResult::Before(0)]));
        let refused = Frame::Refused(FabricRefusal::Malformed);
        assert_eq!(stranger.hear(&mut net), (vec![Frame::Welcome(LIFE), answer, refused], true));
        assert_eq!(net.word(8), 1);
    }
}

#[test]
fn there_are_only_so_many_connections() {
    let mut net = Net::new(TcpOptions { connections_max: 3, ..QUICK }, &[A, NodeId::agent(M)]);
    let mut strangers: Vec<Stranger> = (0..3).map(|_| Stranger::new(&mut net)).collect();
    net.turn(NodeId::agent(M));
    let mut fourth = Stranger::new(&mut net);
    net.turn(NodeId::agent(M));
    assert_eq!(fourth.hear(&mut net), (vec![Frame::Refused(FabricRefusal::Busy(3))], true));
    // Who does not say who he is leaves room for who does.
    assert!((0..20).any(|_| strangers.iter_mut().all(|stranger| stranger.hear(&mut net).1)));
    assert!(net.ask(A, S, add(8)).is_ok());
    assert!(net.at(NodeId::agent(M)).counters().busy > 0);
}

#[test]
fn nothing_that_is_sent_brings_a_node_down() {
    let mut net = Net::new(QUICK, &[A, NodeId::agent(M)]);
    let mut random = Random::from_seed(5);
    for round in 0..200 {
        let mut stranger = Stranger::new(&mut net);
        let frames = [
            hello(LIFE),
            Frame::Datagram(vec![9; random.below(100) as usize]),
            Frame::Batch(
                random.next_u64() as u32,
                SessionId(2 + random.below(3) as u16),
                vec![
                    RemoteOp::Read(
                        RemoteAddress { region: random.below(2) as u16, offset: random.next_u64() as u32 },
                        random.next_u64() as u32,
                    ),
                    RemoteOp::Write(at(random.below(5000) as u32), vec![1; random.below(100) as usize]),
                ],
            ),
        ];
        let mut bytes = Vec::new();
        (0..4).for_each(|_| frames[random.below(3) as usize].append_to(&mut bytes));
        if round % 2 == 0 {
            let mut greeting = Vec::new();
            hello(LIFE).append_to(&mut greeting);
            bytes.splice(..0, greeting);
        }
        if round % 3 > 0 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
        stranger.say(&mut net, &bytes);
    }
    assert!(net.ask(A, S, add(4088)).is_ok());
    assert!(net.at(NodeId::agent(M)).counters().accepted > 200);
}

#[test]
fn who_does_not_read_is_served_no_further() {
    let mut net = Net::new(TcpOptions::default(), &[A, NodeId::agent(M)]);
    let mut slow = Stranger::new(&mut net);
    slow.say_frames(&mut net, &[hello(LIFE)]);
    let read = vec![RemoteOp::Read(at(0), 4096); 64];
    let answer_bytes = 64 * (4096 + 8) + 24;
    let batches = 80;
    for number in 0..batches {
        slow.say_frames(&mut net, &[Frame::Batch(number, SessionId(2), read.clone())]);
    }
    slow.say_frames(&mut net, &[Frame::Batch(batches, SessionId(2), add(16))]);
    for _ in 0..100 {
        net.turn(NodeId::agent(M));
    }
    let unsent = net.at(NodeId::agent(M)).most_unsent();
    assert!((UNSENT_MAX..UNSENT_MAX + answer_bytes).contains(&unsent), "{unsent} bytes wait");
    assert_eq!(net.word(16), 0, "a batch was executed before the answers to earlier ones had room");
    // Others do not wait for it.
    assert!(net.ask(A, S, add(8)).is_ok());
    let (heard, is_over) = slow.hear(&mut net);
    let numbers: Vec<u32> = heard[1..]
        .iter()
        .map(|frame| if let Frame::Answer(number, Ok(_)) = frame { *number } else { u32::MAX })
        .collect();
    assert_eq!((numbers, is_over), ((0..=batches).collect(), false));
    assert_eq!(net.word(16), 1);
}

#[test]
fn datagrams_that_nobody_takes_are_lost() {
    let mut net = Net::new(QUICK, &[A, B]);
    // One at a time: what waits on the way is bounded, too.
    for _ in 0..DATAGRAMS_MAX + 50 {
        net.at(A).send(B, vec![1; 8]);
        net.fabrics.values_mut().for_each(|fabric| fabric.go_on(Duration::ZERO));
    }
    net.turn(A);
    let dropped = net.at(B).counters().datagrams_dropped;
    assert!(dropped > 0);
    let mut taken = 0;
    while net.at(B).poll().is_some() {
        taken += 1;
    }
    assert!(taken >= DATAGRAMS_MAX, "{taken} came");
    // To who is not there they are lost, and nothing waits for ever.
    let address = net.at(B).address().unwrap();
    net.fabrics.remove(&B);
    (0..3).for_each(|_| net.turn(A));
    for _ in 0..2000 {
        net.at(A).send(B, vec![1; 8]);
    }
    let dropped = net.at(A).counters().datagrams_dropped;
    assert!(dropped >= 1700, "{dropped}");
    // It comes back, and is reached again.
    net.start(B, 0, address);
    let came = (0..500).any(|_| {
        net.at(A).send(B, vec![2; 8]);
        net.turn(B);
        std::iter::from_fn(|| net.at(B).poll()).any(|event| event == FabricEvent::Received(vec![2; 8]))
    });
    assert!(came);
}

/// Posts until some batches are on their way, and cuts the connection at any point.
fn post_and_cut(net: &mut Net, random: &mut Random, session: SessionId) -> Vec<PostResult> {
    let batches = 1 + random.below(20);
    for tag in 0..batches {
        net.at(A).post(session, M, add(8), tag);
        match random.below(4) {
            0 => net.at(A).go_on(Duration::ZERO),
            1 => net.at(NodeId::agent(M)).go_on(Duration::ZERO),
            _ => {}
        }
    }
    match random.below(3) {
        0 => net.at(A).flush(),
        1 => net.turn(A),
        _ => {}
    }
    net.at(A).cut(NodeId::agent(M));
    net.ends_of(A, batches)
}

#[test]
fn a_connection_that_is_cut_ends_its_session() {
    let mut random = Random::from_seed(3);
    let (mut done, mut fenced, mut executed_unseen) = (0, 0, 0);
    let mut net =
        Net::new(TcpOptions { redial_ns: 100_000, ..TcpOptions::default() }, &[A, NodeId::agent(M)]);
    for session in (1..150).map(SessionId) {
        let before = net.word(8);
        // The connection is there, and the session known.
        assert!(net.ask(A, session, add(8)).is_ok());
        let ends = post_and_cut(&mut net, &mut random, session);
        let was_done = ends.iter().filter(|end| end.is_ok()).count() as u64;
        assert!(ends[was_done as usize..].iter().all(|end| *end == Err(PostError::Fenced)), "{ends:?}");
        done += was_done;
        fenced += ends.len() as u64 - was_done;
        // What was told is all that there is: nothing comes late.
        let after = net.word(8);
        assert!((before + 1 + was_done..=before + 1 + ends.len() as u64).contains(&after));
        executed_unseen += after - before - 1 - was_done;
        assert_eq!(net.ask(A, session, add(8)), Err(PostError::Fenced), "the session goes on");
        for _ in 0..3 {
            net.turn(A);
        }
        assert_eq!(net.word(8), after);
    }
    assert!(done > 20 && fenced > 100 && executed_unseen > 20, "{done}, {fenced}, {executed_unseen}");
    assert!(net.at(NodeId::agent(M)).counters().sessions_ended >= 149);
}

#[test]
fn the_next_connection_of_a_node_ends_what_the_last_one_left() {
    let mut net = Net::new(TcpOptions::default(), &[NodeId::agent(M)]);
    // The first one is alive, and its batch is on its way when the second one greets.
    let mut first = Stranger::new(&mut net);
    first.say_frames(&mut net, &[hello(LIFE), Frame::Batch(1, S, add(8))]);
    let mut second = Stranger::new(&mut net);
    second.say_frames(&mut net, &[hello(LIFE)]);
    assert_eq!(second.hear(&mut net), (vec![Frame::Welcome(LIFE)], false));
    first.say_frames(&mut net, &[Frame::Batch(2, S, add(8))]);
    assert!(first.hear(&mut net).1);
    second.say_frames(&mut net, &[Frame::Batch(1, S, add(8)), Frame::Batch(2, SessionId(2), add(8))]);
    let fenced = Frame::Answer(1, Err(PostError::Fenced));
    let done = Frame::Answer(2, Ok(vec![OpResult::Before(1)]));
    assert_eq!(second.hear(&mut net), (vec![fenced, done], false));
}

#[test]
fn what_the_pool_posts_for_itself_outlives_a_connection() {
    let mut random = Random::from_seed(4);
    let mut net = Net::new(
        TcpOptions { redial_ns: 100_000, ..TcpOptions::default() },
        &[NodeId::MANAGER, NodeId::agent(M)],
    );
    let own = SessionId::OF_THE_POOL;
    for round in 1..60u64 {
        for tag in 0..10 {
            let write = RemoteOp::Write(at(8 * tag as u32), (round * 100 + tag).to_le_bytes().to_vec());
            net.at(NodeId::MANAGER).post(own, M, vec![write], tag);
        }
        net.at(NodeId::MANAGER).post(own, M, vec![RemoteOp::Read(at(0), 80)], 10);
        net.at(NodeId::MANAGER).post(own, M, add(800), 11);
        for _ in 0..random.below(3) {
            net.fabrics.values_mut().for_each(|fabric| fabric.go_on(Duration::ZERO));
        }
        net.at(NodeId::MANAGER).cut(NodeId::agent(M));
        let ends = net.ends_of(NodeId::MANAGER, 12);
        assert!(ends[..10].iter().all(|end| *end == Ok(vec![OpResult::Written])), "{ends:?}");
        let all: Vec<u8> = (0..10).flat_map(|tag| (round * 100 + tag).to_le_bytes()).collect();
        assert_eq!(ends[10], Ok(vec![OpResult::Bytes(all)]));
        // This is not done twice.
        assert!(ends[11].is_ok() || ends[11] == Err(PostError::Lost), "{ends:?}");
        assert!(net.word(800) <= round);
    }
}

#[test]
fn a_memory_node_that_is_gone_is_lost_for_ever() {
    let mut net = Net::new(QUICK, &[A, NodeId::agent(M), NodeId::agent(N)]);
    assert!(net.ask(A, S, add(8)).is_ok());
    net.at(A).post(S, M, add(8), 1);
    net.at(A).flush();
    let address = net.at(NodeId::agent(M)).address().unwrap();
    net.fabrics.remove(&NodeId::agent(M));
    assert_eq!(net.end_of(A, 1), Err(PostError::Lost));
    assert_eq!(net.ask(A, S, add(8)), Err(PostError::Lost));
    // Elsewhere the session goes on.
    net.at(A).post(S, N, add(8), 2);
    assert_eq!(net.end_of(A, 2), Ok(vec![OpResult::Before(0)]));
    // Another process there has other memory, whoever looks first.
    net.start(NodeId::agent(M), LIFE + 1, address);
    assert_eq!(net.ask(A, S, add(8)), Err(PostError::Lost));
    net.start(B, 0, LOOPBACK);
    net.at(B).meet(NodeId::agent(M), address, LIFE);
    assert_eq!(net.ask(B, SessionId(2), add(8)), Err(PostError::Lost));
    assert_eq!(net.at(B).refusal(NodeId::agent(M)), Some(FabricRefusal::OtherLife(LIFE + 1)));
}

#[test]
fn who_was_never_reached_has_done_nothing() {
    let mut net = Net::new(QUICK, &[A, NodeId::agent(M)]);
    let address = net.at(NodeId::agent(M)).address().unwrap();
    net.fabrics.remove(&NodeId::agent(M));
    assert_eq!(net.ask(A, S, add(8)), Err(PostError::Lost));
    // It may come later.
    net.at(A).post(S, M, add(8), 1);
    net.turn(A);
    net.start(NodeId::agent(M), LIFE, address);
    assert_eq!(net.end_of(A, 1), Ok(vec![OpResult::Before(0)]));
}

#[test]
fn who_cannot_be_reached_any_more_may_be_up() {
    let mut net = Net::new(QUICK, &[A, NodeId::MANAGER, NodeId::agent(M)]);
    assert!(net.ask(A, S, add(8)).is_ok());
    assert!(net.ask(NodeId::MANAGER, SessionId::OF_THE_POOL, vec![RemoteOp::Read(at(8), 8)]).is_ok());
    // It hangs: it neither answers nor greets.
    let hung = net.fabrics.remove(&NodeId::agent(M)).unwrap();
    net.at(A).post(S, M, add(8), 1);
    net.at(A).flush();
    net.at(A).cut(NodeId::agent(M));
    assert_eq!(net.end_of(A, 1), Err(PostError::Fenced));
    net.at(NodeId::MANAGER).post(SessionId::OF_THE_POOL, M, vec![RemoteOp::Read(at(8), 8)], 1);
    net.at(NodeId::MANAGER).cut(NodeId::agent(M));
    assert_eq!(net.end_of(NodeId::MANAGER, 1), Err(PostError::Lost));
    // When it goes on, nothing of the session is done there that was not before.
    net.fabrics.insert(NodeId::agent(M), hung);
    assert_eq!(net.ask(A, S, add(8)), Err(PostError::Fenced));
    assert!(net.word(8) <= 2);
    assert!(net.ask(A, SessionId(2), add(8)).is_ok());
}

#[test]
fn what_is_posted_and_not_done_is_bounded() {
    let mut net = Net::new(TcpOptions::default(), &[A, NodeId::agent(M)]);
    // Nobody takes a turn, so nothing is done.
    let write = || vec![RemoteOp::Write(at(0), vec![0; 1 << 20])];
    (0..70).for_each(|tag| net.at(A).post(S, M, write(), tag));
    let ends: Vec<PostResult> = (63..70).map(|tag| net.end_of(A, tag)).collect();
    assert!(ends.iter().all(|end| *end == Err(PostError::Fenced)), "{ends:?}");
}

/// Whoever wakes a node after it looked for work and before it waits is not missed: a poll in between sees the wake, and the wait ends at once.
#[test]
fn a_wake_that_a_poll_saw_ends_the_next_wait() {
    let mut fabric = TcpFabric::bind(A, 0, LOOPBACK, QUICK).unwrap();
    let clock = Clock::system();
    fabric.waker().wake();
    assert_eq!(fabric.poll(), None);
    let start = clock.monotonic_ns();
    fabric.wait(Duration::from_secs(60));
    assert!(clock.monotonic_ns() - start < 30_000_000_000, "it slept over a wake");
}

#[test]
fn who_meets_a_node_again_forgets_nothing() {
    let mut net = Net::new(QUICK, &[A, NodeId::agent(M)]);
    let address = net.at(NodeId::agent(M)).address().unwrap();
    // No news: what is under way is done, whether it was sent or not.
    net.at(A).post(S, M, add(8), 1);
    net.at(A).meet(NodeId::agent(M), address, LIFE);
    assert_eq!(net.end_of(A, 1), Ok(vec![OpResult::Before(0)]));
    net.at(A).post(S, M, add(8), 2);
    net.at(A).flush();
    net.at(A).meet(NodeId::agent(M), address, LIFE);
    assert_eq!(net.end_of(A, 2), Ok(vec![OpResult::Before(1)]));
    // It is somewhere else now: whether this was executed nobody can say.
    net.at(A).post(S, M, add(8), 3);
    net.at(A).flush();
    let moved = net.fabrics.remove(&NodeId::agent(M)).unwrap();
    net.start(NodeId::agent(M), LIFE + 1, LOOPBACK);
    let elsewhere = net.at(NodeId::agent(M)).address().unwrap();
    net.at(A).meet(NodeId::agent(M), elsewhere, LIFE + 1);
    assert_eq!(net.end_of(A, 3), Err(PostError::Fenced));
    assert_eq!(net.ask(A, SessionId(2), add(8)), Ok(vec![OpResult::Before(0)]));
    drop(moved);
    // Who is gone for good stays so where the same is told again.
    net.fabrics.remove(&NodeId::agent(M));
    assert_eq!(net.ask(A, SessionId(2), add(8)), Err(PostError::Lost));
    net.at(A).meet(NodeId::agent(M), elsewhere, LIFE + 1);
    net.start(NodeId::agent(M), LIFE + 1, elsewhere);
    assert_eq!(net.ask(A, SessionId(2), add(8)), Err(PostError::Lost));
}

#[test]
fn an_open_connection_that_brings_nothing_is_cut() {
    let mut net = Net::new(QUICK, &[A, NodeId::MANAGER, NodeId::agent(M)]);
    assert!(net.ask(A, S, add(8)).is_ok());
    assert!(net.ask(NodeId::MANAGER, SessionId::OF_THE_POOL, vec![RemoteOp::Read(at(8), 8)]).is_ok());
    // It stands still with its connections open, as where its process is stopped or its power is gone.
    let still = net.fabrics.remove(&NodeId::agent(M)).unwrap();
    net.at(A).post(S, M, add(8), 1);
    net.at(A).flush();
    net.at(NodeId::MANAGER).post(SessionId::OF_THE_POOL, M, vec![RemoteOp::Read(at(8), 8)], 1);
    assert_eq!(net.end_of(A, 1), Err(PostError::Fenced));
    assert_eq!(net.end_of(NodeId::MANAGER, 1), Err(PostError::Lost));
    net.fabrics.insert(NodeId::agent(M), still);
    assert_eq!(net.ask(A, S, add(8)), Err(PostError::Fenced), "the session goes on");
    assert!(net.ask(A, SessionId(2), add(8)).is_ok());
}

#[test]
fn who_stood_still_himself_reads_before_he_cuts() {
    let mut net = Net::new(QUICK, &[A, NodeId::agent(M)]);
    assert!(net.ask(A, S, add(8)).is_ok());
    for round in 0..3 {
        net.at(A).post(S, M, add(8), 1);
        net.at(A).go_on(Duration::ZERO);
        (0..5).for_each(|_| net.at(NodeId::agent(M)).go_on(Duration::from_millis(1)));
        std::thread::sleep(Duration::from_nanos(2 * QUICK.unreachable_ns));
        assert_eq!(net.end_of(A, 1), Ok(vec![OpResult::Before(round + 1)]));
    }
    // Nor is a connection cut on which nothing is under way.
    (0..100).for_each(|_| net.turn(A));
    assert!(net.ask(A, S, add(8)).is_ok());
    assert_eq!(net.at(NodeId::agent(M)).counters().accepted, 1);
}

#[test]
fn who_is_out_of_its_lease_answers_no_more() {
    let mut net = Net::new(QUICK, &[A, B, NodeId::agent(M)]);
    let until = Arc::new(AtomicU64::new(u64::MAX));
    net.at(NodeId::agent(M)).serve_until(Arc::clone(&until));
    assert!(net.ask(A, S, add(8)).is_ok());
    assert!(!net.at(NodeId::agent(M)).is_out_of_lease());
    until.store(0, Ordering::Release);
    assert_eq!(net.ask(A, S, add(8)), Err(PostError::Lost));
    // Neither over a new connection, nor when somebody moves the time on: it was called lost.
    until.store(u64::MAX, Ordering::Release);
    assert_eq!(net.ask(B, SessionId(2), add(8)), Err(PostError::Lost));
    assert!(net.at(NodeId::agent(M)).is_out_of_lease());
}
