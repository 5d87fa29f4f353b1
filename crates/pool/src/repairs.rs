//! Which repairs of the published protocols are in force.
//!
//! Owns the list. All are, but in tests that show what each is for: the switches can be turned by this crate's tests only.

/// What is done beyond what the papers print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Repairs {
    /// A new key claims its slot, and looks again, before it stores. Without: the value is stored into the free slot at once.
    pub(crate) claim: bool,
    /// Freed memory waits. Without: it is used again at once.
    pub(crate) quarantine: bool,
    /// What was read of an address that was learnt too long ago is thrown away.
    pub(crate) late_reads: bool,
    /// Losers wait for the primary to change. Without: they answer at once.
    pub(crate) losers_wait: bool,
    /// Losers count as done before a winner without a condition only. Without: before any.
    pub(crate) absorb_unconditional: bool,
    /// Objects are verified by their checksum.
    pub(crate) checksum: bool,
    /// Sessions that are given up are fenced before slots are repaired.
    pub(crate) fence: bool,
    /// Clients wait for their posts before they say that they are prepared.
    pub(crate) drain: bool,
    /// A repair that is begun again waits for the posts of the one before.
    pub(crate) settle: bool,
    /// Slots whose copies differ are made one when a node is given up.
    pub(crate) align_copies: bool,
    /// Clients are told what became of their doubtful changes. Without: they do them again.
    pub(crate) verdicts: bool,
    /// A session that was given up while it was quiet is told so. Without: it never posts, so that no fence tells it.
    pub(crate) tells_given_up: bool,
    /// Only blocks into which no slot leads are taken back. Without: all of sessions that are gone.
    pub(crate) reclaim_unreferenced: bool,
    /// A proxy answers words only while its lease holds, and the manager waits for its end.
    pub(crate) lease: bool,
    /// A proxy changes a slot for one request at a time.
    pub(crate) slot_lock: bool,
    /// A proxy changes slots for one request at a time that found the same key absent.
    pub(crate) hash_lock: bool,
    /// A proxy compares the words that a writer saw of an absent key's fingerprint with those that are there.
    pub(crate) negative_set: bool,
    /// A proxy executes a request once, however often it comes.
    pub(crate) once: bool,
    /// A proxy answers writers that are combined after the one that is done. Without: before.
    pub(crate) absorb_after: bool,
    /// A proxy passes over requests of earlier epochs.
    pub(crate) rpc_epoch: bool,
    /// A proxy answers from a word, and says that it is done, only once all copies have it.
    pub(crate) write_through: bool,
    /// A proxy grants nothing of a slot that is being changed.
    pub(crate) grant_unlocked: bool,
    /// A proxy changes a word only once all caches have dropped the pair. Without: they are told and not waited for.
    pub(crate) invalidate: bool,
    /// What was granted before a cache was told to drop the pair does not come into it after that.
    pub(crate) taint: bool,
    /// The parts of a value are on all copies before a slot leads to the object that lists them.
    pub(crate) parts_first: bool,
    /// A part has the generation and the number by which it is listed. Without: any part will do.
    pub(crate) parts_bound: bool,
    /// Freed parts wait, as the object that listed them does.
    pub(crate) parts_quarantine: bool,
    /// Blocks that have parts of what slots lead to are not taken back.
    pub(crate) reclaim_sees_parts: bool,
}

impl Repairs {
    pub(crate) const ALL: Repairs = Repairs {
        claim: true,
        quarantine: true,
        late_reads: true,
        losers_wait: true,
        absorb_unconditional: true,
        checksum: true,
        fence: true,
        drain: true,
        settle: true,
        align_copies: true,
        verdicts: true,
        tells_given_up: true,
        reclaim_unreferenced: true,
        lease: true,
        slot_lock: true,
        hash_lock: true,
        negative_set: true,
        once: true,
        absorb_after: true,
        rpc_epoch: true,
        write_through: true,
        grant_unlocked: true,
        invalidate: true,
        taint: true,
        parts_first: true,
        parts_bound: true,
        parts_quarantine: true,
        reclaim_sees_parts: true,
    };
}
