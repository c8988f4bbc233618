//! Planted bugs: plausible mistakes, one or more for each rule, switched on at run time by name.
//!
//! Product code asks [`on`] at the place where the mistake would be made; `cargo xtask planted` plants one bug
//! after another and shows that the simulator finds each. Without the feature `planted`, which the crate `sim`
//! alone forwards, `on` is the constant `false`, and no hook is left in a binary. `cargo xtask tidy`
//! proves that the shipped binary is built without the feature, and that every bug here has its hook.
//!
//! Invariant: at most one bug is planted in a process at a time.

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub bug: Bug,
    /// In kebab-case; what `--bug` takes.
    pub name: &'static str,
    /// The rule of the design that it breaks, the line of the list "what must never happen" (`§7.n`), or the crate whose contract
    /// it breaks.
    pub rule: &'static str,
    /// The mistake that the code makes.
    pub says: &'static str,
}

macro_rules! registry {
    (
        reached { $($bug:ident, $name:literal, $rule:literal, $says:literal;)* }
        unreached { $($new:ident, $new_name:literal, $new_rule:literal, $new_says:literal;)* }
    ) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug { $(#[doc = $says] $bug,)* $(#[doc = $new_says] $new,)* }

        /// Every bug that a run finds, by rule.
        pub const REGISTRY: &[Row] = &[$(Row { bug: Bug::$bug, name: $name, rule: $rule, says: $says },)*];

        /// Bugs with a hook that no run of the simulator can reach yet, in the order of [`Bug`] behind those of [`REGISTRY`]. Unit tests
        /// show them ([`NOT_PLANTED`] names the tests). A build with the feature has the one that the variable `BASALT_PLANTED` of the
        /// environment names.
        pub const UNREACHED: &[Row] =
            &[$(Row { bug: Bug::$new, name: $new_name, rule: $new_rule, says: $new_says },)*];
    };
}

registry! {
    reached {
    DecisionNotCheckpointed, "decision-not-checkpointed", "R1",
        "a checkpoint advances K and keeps the decision state of the checkpoint before";
    StampAtRoundEnd, "stamp-at-round-end", "R1",
        "K becomes the index applied at the end of a round, not the one at its beginning";
    CommitNotLogged, "commit-not-logged", "R2",
        "a round writes home before the log holds a commit index that covers its entries";
    HomeBeforeDurable, "home-before-durable", "R2",
        "a round writes home before its entries are durable in the log";
    CompletedBlockNotLogged, "completed-block-not-logged", "R2",
        "a block that the overlay covers in part is completed from home, and the whole block is not logged";
    FrozenLayerIgnored, "frozen-layer-ignored", "R2",
        "reads during a round consult only the active layer of the overlay";
    PlaceAdoptedInPart, "place-adopted-in-part", "R2",
        "a round adopts an AU of the log that a later write covers in part";
    PromiseIgnored, "promise-ignored", "R3",
        "a follower votes for another although its promise to the leader stands";
    VoteAfterRestart, "vote-after-restart", "R3",
        "a replica votes right after its start, within one promise";
    LeaseWithoutEnd, "lease-without-end", "R3",
        "a lease never expires within its term";
    LeaseKeptAfterRelease, "lease-kept-after-release", "R3",
        "a leader continues to serve reads under a lease that it has released";
    LeaseFromArrival, "lease-from-arrival", "R3",
        "the lease counts from the receipt of the acknowledgement, not from the send time of the renewal";
    ReadWithoutLease, "read-without-lease", "R3",
        "a leader answers reads without a lease and without a read-index query";
    ServedBeforeOwnEntry, "served-before-own-entry", "R3",
        "a new leader serves before an entry of its own term is applied";
    FailureNotLogged, "failure-not-logged", "R4",
        "the log does not record that a replica has failed";
    LeftNotCheckpointed, "left-not-checkpointed", "R4",
        "a checkpoint does not tell that a joint phase has ended without proof";
    OldMajorityCounted, "old-majority-counted", "R4",
        "in a joint phase a majority of the old voters commits alone";
    LearnerCounted, "learner-counted", "R4",
        "the acknowledgements of a learner count for commits";
    ConfigurationUsedEarly, "configuration-used-early", "R4",
        "the new voters commit alone while the end of the joint phase is in the log and not applied";
    PromotedBeforeWhole, "promoted-before-whole", "R4",
        "a learner becomes a voter before it has all contents";
    FailedAcknowledges, "failed-acknowledges", "R4",
        "a failed replica acknowledges the entries that it is sent";
    FloorTooHigh, "floor-too-high", "R4",
        "an OSD is told that it lacks no replica below an id that is one too high";
    OldTermCommitted, "old-term-committed", "R5",
        "a leader commits an entry of an older term by counting replicas";
    CommitBeyondMatch, "commit-beyond-match", "R5",
        "a lease renewal carries a commit index beyond the follower's match index";
    VoteNotDurable, "vote-not-durable", "R5",
        "the log stores terms and no votes";
    VoteReleasedEarly, "vote-released-early", "R5",
        "a vote for another replica leaves before it is durable";
    AckBeforeDurable, "ack-before-durable", "R5",
        "a follower acknowledges entries before they are durable";
    StreamLetInUndurable, "stream-let-in-undurable", "R5",
        "a follower that accepts a stream acknowledges its commit index, which may not be durable";
    OwnLogCountedEarly, "own-log-counted-early", "R5",
        "a leader counts its own entries as durable when it submits them to the disk";
    ConflictHintOff, "conflict-hint-off", "R5",
        "the conflict hint of a rejected append is one entry too high";
    FenceIgnored, "fence-ignored", "R6",
        "a write of an older session or epoch takes effect";
    OpenWithoutFence, "open-without-fence", "R6",
        "an open returns before every PG has committed the new attach record";
    StaleAttachCounts, "stale-attach-counts", "R6",
        "a PG's confirmation of an older attach record counts for a newer one";
    AllocationAfterEpochRose, "allocation-after-epoch-rose", "R6",
        "a segment is allocated to a client whose epoch has passed, and attached under that epoch";
    HoleUnasked, "hole-unasked", "§7.2",
        "a preempted writer answers zeros for unallocated segments without a fence check";
    OverlayReadLate, "overlay-read-late", "§7.2",
        "a read takes the sectors of the overlay as of its end, and those of home as of its lookup";
    DuplicateAppliedTwice, "duplicate-applied-twice", "R7",
        "a late copy of a write takes effect a second time";
    WindowOffByOne, "window-off-by-one", "R7",
        "when the watermark rises, the window moves one position too few";
    WindowNotCheckpointed, "window-not-checkpointed", "R7",
        "checkpoints hold attach records without the windows of their sessions";
    LateReplyBelieved, "late-reply-believed", "R7",
        "the client takes a late reply to a finished part for the reply to the next part";
    // In a destage round this bug is harmless. The blocks that such a round drops are covered whole by zeros, or unmapped, in
    // entries up to the new checkpoint index, which are durable with their commit index before home is touched (R2). After a
    // crash the old checkpoint names allocation units with other bytes, and the log redoes all of their blocks. An installation
    // is not in the log: the old contents count until its checkpoint is durable, while another stream takes their units.
    AuReusedEarly, "au-reused-early", "R8",
        "an allocation unit is free at once when it is dropped, though a checkpoint names it or a write to it is in flight";
    SlotReusedEarly, "slot-reused-early", "R8",
        "a slot is free at once when a round drops it";
    ReadStampLate, "read-stamp-late", "R8",
        "a read of home is checked against the map at its end, not at its lookup";
    PlaceNotClaimed, "place-not-claimed", "R8",
        "a mount leaves the AUs of payloads above the checkpoint index free";
    LogReusedEarly, "log-reused-early", "R9",
        "log segments are freed at the beginning of the round that covers them, not when its checkpoint is durable";
    NoCopyForward, "no-copy-forward", "R9",
        "an uncommitted entry is not copied forward, so the oldest log segment is never freed";
    CopyTruncates, "copy-truncates", "R9",
        "replay treats a copied entry as an append and drops the entries above it";
    ReplayKeepsTruncated, "replay-keeps-truncated", "R9",
        "replay keeps entries that a later append has replaced";
    HardStateSkipped, "hard-state-skipped", "R9",
        "a batch of entries is written without its hard state";
    StateBlockMissing, "state-block-missing", "R9",
        "a new log segment has no state block";
    StateBlockForgetsVotes, "state-block-forgets-votes", "R9",
        "the state block of a log segment holds terms and no votes";
    LogWithoutFlush, "log-without-flush", "R10",
        "a log batch is written to a volatile cache and not flushed";
    HomeWithoutFlush, "home-without-flush", "R10",
        "a checkpoint names pages that were written and not flushed";
    PlaceFlushLinked, "place-flush-linked", "R10",
        "the flush of a batch does not cover payloads at home whose writes end after it began";
    TornBatchBelieved, "torn-batch-believed", "R11",
        "mount accepts a batch by its header and does not verify its payload";
    DamageTakenForTear, "damage-taken-for-tear", "R11",
        "damage below the durable end of the log is cut off as if it were a torn tail";
    UnreadableLogAsZeros, "unreadable-log-as-zeros", "R11",
        "pages of the log that the device cannot read count as zeros, where a log may end";
    ForgedHeaderBelieved, "forged-header-believed", "R11",
        "mount accepts a batch header whose salt is not that of its segment";
    TailNotRewritten, "tail-not-rewritten", "R11",
        "a mount treats the readable end of the log as durable and does not rewrite it";
    PlaceUnverified, "place-unverified", "R11",
        "mount takes a payload at home by its record and does not verify it";
    StreamWithoutDeletions, "stream-without-deletions", "R12",
        "blocks that are zeroed during a stream are not sent";
    StreamForgetsChanges, "stream-forgets-changes", "R12",
        "blocks that are written after a stream has read them are not sent again";
    KeptByFirstBlock, "kept-by-first-block", "R12",
        "a stream keeps old space of which the first block alone is compared";
    DigestsUnanswered, "digests-unanswered", "R12",
        "a stream ends before the follower has answered all digests";
    InstallBeforeStaged, "install-before-staged", "R12",
        "a stream is installed before its last blocks are written";
    FilledFromLate, "filled-from-late", "R16",
        "a stream ends although the follower's log begins behind the last round";
    FillingServes, "filling-serves", "R16",
        "a replica without all its contents serves when it is elected";
    InstallForgetsVote, "install-forgets-vote", "R12",
        "an installation drops the vote of the present term";
    InstallOfNothing, "install-of-nothing", "R12",
        "the staged contents of a stream are evicted before the installation, which continues";
    LogBeginsAnywhere, "log-begins-anywhere", "R9",
        "the log may begin with a segment whose state block a crash cut off";
    GrantCountedTwice, "grant-counted-twice", "R13",
        "a leader counts the space that a write takes from a grant twice";
    WriteErrorIgnored, "write-error-ignored", "R15",
        "a log write that failed is acknowledged";
    FlushErrorIgnored, "flush-error-ignored", "R15",
        "a flush of home that failed counts as done";
    PoisonForgotten, "poison-forgotten", "R15",
        "a poisoned store is mounted without --after-poison";
    RepairFromBehind, "repair-from-behind", "R15",
        "a block repair takes a copy that is older than the checkpoint index";
    RepairOverNewer, "repair-over-newer", "R15",
        "a block repair replaces sectors that the overlay covers";
    ReadErrorAsZeros, "read-error-as-zeros", "R15",
        "sectors that the device cannot read are answered as zeros";
    SearchStopsOthers, "search-stops-others", "§7.6",
        "a client that searches the leader of one PG sends nothing to others";
    LeaderlessStopsOsd, "leaderless-stops-osd", "§7.6",
        "an OSD proposes nothing while one of its PGs has no leader";
    AppendUnchecked, "append-unchecked", "§7.5",
        "a follower takes a payload from the network without verifying it";
    HomeReadUnchecked, "home-read-unchecked", "§7.5",
        "blocks of home are returned without a checksum check";
    AnswerUnchecked, "answer-unchecked", "§7.5",
        "the client returns a reply without a checksum check";
    OlderLetIn, "older-let-in", "R17",
        "the position of a device is not compared with the recorded one";
    MarkForgotten, "mark-forgotten", "R17",
        "a start does not look for the mark of an older copy";
    RevisionNotCompared, "revision-not-compared", "R17",
        "a metadata leader does not compare its records with the watermarks on the OSDs";
    RecoveryKeepsWatermarks, "recovery-keeps-watermarks", "R17",
        "a recovery of the records does not move the next ids";
    CommitUnfenced, "commit-unfenced", "metastore",
        "a transaction does not compare the election key";
    LostCommitRefused, "lost-commit-refused", "metastore",
        "a commit without an answer counts as refused, and the leadership goes on with the records read again";
    LostCommitBelieved, "lost-commit-believed", "metastore",
        "a commit without an answer counts as committed";
    LeaseUnchecked, "lease-unchecked", "control",
        "a leader plans and answers before it has its election confirmed";
    UseOfOthersIgnored, "use-of-others-ignored", "osd",
        "a leader holds the I/O limits of a volume as if no other OSD led a PG of it";
    LimitChangesUntold, "limit-changes-untold", "control",
        "meta tells changes of I/O limits to the holder alone, and to an OSD only when its stream begins";
    FlagsIgnored, "flags-ignored", "placement",
        "PGs of a new pool are placed on OSDs that are out or drained";
    MovesToLeaving, "moves-to-leaving", "placement",
        "replicas move to OSDs that are out or drained";
    ReplacedStaysIn, "replaced-stays-in", "placement",
        "an OSD stays in when another one is registered in its place";
    ReplacedTooEarly, "replaced-too-early", "R4",
        "the replica that is to leave is destroyed when its move begins";
    MergeTakesOlder, "merge-takes-older", "§7.2",
        "a merge overwrites the heir's block";
    MergeDropsOpen, "merge-drops-open", "§7.1",
        "a merge drops an AU of which the heir needs a block";
    MergedWhileDirty, "merged-while-dirty", "R2",
        "a round merges a position that it writes, too";
    HiddenInherited, "hidden-inherited", "§7.2",
        "a chunk that takes the AU of an older generation takes blocks that a younger one hides";
    WrittenInherited, "written-inherited", "R2",
        "a round gives an AU to an heir, and writes it for its own generation, too";
    StreamMissesMerge, "stream-misses-merge", "R12",
        "a merge of generations during a stream is not noted";
    BaseIgnored, "base-ignored", "R6",
        "a head that is to stand on a snapshot stands on nothing";
    CloneLacksSegments, "clone-lacks-segments", "R6",
        "a clone is opened before it has the segments of its parent";
    RollbackKeepsSession, "rollback-keeps-session", "R6",
        "a rollback takes a volume from its client, and leaves it the session";
    DetachTooEarly, "detach-too-early", "§7.1",
        "a flatten ends the kinship of a head while copies are under way";
    TailNotWiped, "tail-not-wiped", "§7.2",
        "a shrink leaves what is behind the new end in the last chunk";
    ReleasedTooEarly, "released-too-early", "R14",
        "meta lets a cut go on when the first PG has its snapshots";
    AbortTakenForRelease, "abort-taken-for-release", "R14",
        "meta counts a PG that has given a cut up as one that has released it";
    HoldEndsWithSnap, "hold-ends-with-snap", "R14",
        "a leader lets changes of a volume go on when its own PG has the snapshots of a cut";
    TimeoutAfterRelease, "timeout-after-release", "R14",
        "the end of a cut by a leader's clock takes effect behind its release";
    CutsNotCheckpointed, "cuts-not-checkpointed", "R1",
        "a checkpoint forgets the open cuts";
    OpenDropsWriters, "open-drops-writers", "R6",
        "an open of a multi-writer volume leaves out the writers that it has";
    CloseFencesWriters, "close-fences-writers", "R6",
        "the close of one writer of a multi-writer volume fences the others";
    FenceKeepsWriter, "fence-keeps-writer", "R6",
        "a PG keeps the writer that an attach record of a multi-writer volume leaves out";
    FenceForgetsThoseLetOut, "fence-forgets-those-let-out", "R6",
        "a command to fence a client that was let out before says that it does not write, while a PG may still take its writes";
    WindowOfAnotherWriter, "window-of-another-writer", "R7",
        "a new writer of a multi-writer volume takes over the window of another one";
    HoleOfAnotherWriter, "hole-of-another-writer", "§7.2",
        "a writer of a multi-writer volume takes segments for holes that another one has filled";
    }
    unreached {
    OldLifeReborn, "old-life-reborn", "R4",
        "a log without a valid batch counts as new, so its replicas restart empty under their old ids";
    FenceAnsweredEarly, "fence-answered-early", "R6",
        "the command that fences a writer is answered before each PG of the volume has the record";
    ShrinkAsksOneWriter, "shrink-asks-one-writer", "R6",
        "a shrink goes on when one of several writers has stopped to use what is behind the new end";
    ShrinkUnasked, "shrink-unasked", "R6",
        "a shrink goes on before the holder of the volume has stopped to use what is behind the new end";
    ShrinkUndone, "shrink-undone", "R6",
        "an attach record from before a shrink lengthens the volume";
    FillOverNewer, "fill-over-newer", "§7.1",
        "a flatten copies bytes over those that a client has written since they were read";
    CopyTrustsHome, "copy-trusts-home", "§7.4",
        "a flatten leaves blocks out that a round of the leader alone has completed";
    WritesJoinedOverGap, "writes-joined-over-gap", "R8",
        "a round on a rotating disk joins two writes with a block between them, so the second one lands a block too low";
    MergeFreesEarly, "merge-frees-early", "R8",
        "the AU of a merged chunk is free before the checkpoint is durable";
    RepairByGeneration, "repair-by-generation", "R15",
        "a bad block is asked for by the generation that has it here, and a peer that has merged it answers zeros";
    AllocationDuringCut, "allocation-during-cut", "R14",
        "a volume comes to a PG during its cut";
    HeadFromRecords, "head-from-records", "R17",
        "a recovery of the records keeps the head that they name";
    ExtentsMissZeros, "extents-miss-zeros", "R14",
        "the changed extents of a snapshot lack what was zeroed since";
    }
}

/// Mistakes that are not planted, with the reason.
pub const NOT_PLANTED: &[(&str, &str)] = &[
    (
        "a log without a valid batch counts as new, so its replicas restart empty under their old ids (R4)",
        "the cluster refuses such an OSD as an older device (R17), so such logs did no harm in 1,000 runs; \
         `a_log_without_any_batch_is_lost_and_not_new` shows it",
    ),
    (
        "the command that fences a writer is answered before each PG of the volume has the record (R6)",
        "no run of 1,300 has found it; `fence_is_answered_when_each_pg_has_it` shows it",
    ),
    (
        "a shrink goes on when one of several writers has stopped to use what is behind the new end (R6)",
        "runs with several writers have no shrink; `shrink_waits_for_each_writer_and_fences_those_that_are_silent` shows it",
    ),
    (
        "a mount rewrites the last batch and not the payloads that it has placed (R11)",
        "it was not hunted yet; `places_of_an_unproved_batch_are_durable_before_a_mount_relies_on_them` shows it",
    ),
    (
        "a round frees the AUs of an entry whose replacement is not durable (R8)",
        "no run met it; `payload_is_held_while_the_truncation_of_its_entry_is_not_durable` shows it",
    ),
    (
        "a new leader does not hold the volumes of an open cut (R14)",
        "no run has found it yet; `three_replicas_keep_every_law_over_streams` shows it",
    ),
    (
        "a leader proposes writes that wait behind the begin of a cut (R14)",
        "no run has found it yet; `write_that_waits_when_a_cut_begins_comes_again_and_is_held` shows it",
    ),
    (
        "the begin of a cut that was given up takes effect when it comes late (R14)",
        "no run has found it yet; `abort_without_its_snap_refuses_the_snap` shows it",
    ),
    (
        "a discard in the head drops blocks without marks, so the parent shows (§7.2)",
        "it was not hunted yet; `reads_through_generations_equal_a_model_in_every_life` shows it",
    ),
    (
        "blocks are hashed with the generation, so a merged block fails (R11)",
        "it was not hunted yet; the tests of home have a family that is no generation",
    ),
    (
        "a shrink goes on before the holder of the volume has stopped to use what is behind the new end (R6)",
        "a client of the simulator sends nothing any more when its volume is taken; `pgs_take_a_shorter_length_only_when_the_holder_has_stopped` shows it",
    ),
    (
        "an attach record from before a shrink lengthens the volume (R6)",
        "no run has found it yet; `shorter_length_drops_chunks_and_no_older_record_brings_them_back` shows it",
    ),
    (
        "a read ends at the map of the head (§7.2)",
        "it was not hunted yet; `reads_through_generations_equal_a_model_in_every_life` shows it",
    ),
    (
        "the overlay of the parent is asked before home of the head (§7.2)",
        "it was not hunted yet; `mended_block_of_a_snapshot_does_not_cover_that_of_the_head` shows it",
    ),
    (
        "a volume that was shortened and lengthened shows old data (§7.2)",
        "it was not hunted yet; `volume_that_was_shorter_shows_nothing_of_its_snapshot_behind_its_end` shows it",
    ),
    (
        "a block that is covered in part is completed with zeros instead of the parent's bytes (R2)",
        "it was not hunted yet; `partial_block_is_completed_from_the_parent` shows it",
    ),
    (
        "the list of dissolved generations is not in the checkpoint (R1)",
        "no run has found it yet; `dissolved_generation_in_the_log_is_completed_through_its_heir` shows it",
    ),
    (
        "the AU of a merged chunk is free before the checkpoint is durable (R8)",
        "no run has found it yet; `merge_frees_nothing_before_its_flip` shows it",
    ),
    (
        "a peer that has merged a generation answers zeros for its blocks (R15)",
        "no run has found it yet; `member_that_has_merged_repairs_one_that_has_not` shows it",
    ),
    (
        "a volume comes to a PG during its cut (R14)",
        "no run has found it yet; `ready_snapshots_are_in_all_pgs_in_any_storm` shows it",
    ),
    (
        "a recovery of the records keeps the head that they name (R17)",
        "no run has found it yet; `older_records_give_a_volume_a_head_above_its_lost_snapshots` shows it",
    ),
    (
        "the changed extents of a snapshot lack what was zeroed since (R14)",
        "no run asks for them yet; `changed_blocks_miss_no_difference` shows it",
    ),
    (
        "a checkpoint forgets the ids that aborted cuts named (R1)",
        "no run has found it yet; `decision_whose_head_is_no_node_is_refused` reads such an id again",
    ),
    (
        "a lease is kept over a change of the members (R3)",
        "an acknowledgement is the promise of one replica, and majorities of adjacent memberships share one",
    ),
    (
        "a replica campaigns with a committed membership step that it has not applied (R4)",
        "a replica applies an entry in the turn in which it learns that the entry is committed",
    ),
    (
        "a start does not raise the commit index to the membership step that a later one proves (R4)",
        "the commit index on disk is seldom that old; `step_in_the_log_proves_the_step_before_it_committed` shows it",
    ),
    (
        "a replica that has failed keeps its group (R4)",
        "the engine asserts that a failed replica neither appends nor applies, so the first entry ends the process",
    ),
    (
        "the failure of a kept replica ends before its forced step is in the log (R4)",
        "no run keeps a failed replica; `crash_before_the_step_is_durable_finds_a_replica_failed_with_its_past` shows it",
    ),
    (
        "a replica carries out a forced recovery without a fence that its log does not justify (R4)",
        "meta judges the same by its records before each order, and the two differ only when an order is very late",
    ),
    ("a removed replica's tombstone is ignored (R4)", "the messages of meta to one OSD keep their order"),
    ("the end of a read under a lease is not checked (R3)", "the data of the reply was looked up while the lease held"),
    (
        "an attach record with an old order is applied (R6)",
        "the leader of a PG receives the records of one metadata server in order",
    ),
    (
        "a batch of an earlier life of a segment is accepted without its mount number or offset (R11)",
        "the other field and the segment number still distinguish it",
    ),
    (
        "a log segment counts as having a whole state block before the block ends (ADR 0015)",
        "half of the segments are never freed, so a segment with a whole block stays in the log",
    ),
    (
        "old space that a round has written since it was compared is kept all the same (R12)",
        "a follower behind the log applies nothing; `kept_space_that_a_round_has_written_is_not_installed` shows it",
    ),
    (
        "the copied records of one batch count for all batches that are missing before them (R11)",
        "replicas notice the missing entries; `loss_of_two_neighbouring_headers_is_a_gap` shows it",
    ),
    ("replay keeps the log from before an installation (R12)", "the kept entries do not reach S"),
    (
        "a block repair takes a copy that is newer than the applied index (R15)",
        "the replica applies the missing entries, with the same contents; `partly_covered_bad_block_takes_any_copy_from_its_checkpoint_on` shows it",
    ),
];

impl Bug {
    pub fn row(self) -> &'static Row {
        let at = self as usize;
        REGISTRY.get(at).unwrap_or_else(|| &UNREACHED[at - REGISTRY.len()])
    }

    /// Returns the bug of this name.
    pub fn named(name: &str) -> Option<Bug> {
        REGISTRY.iter().chain(UNREACHED).find(|row| row.name == name).map(|row| row.bug)
    }
}

/// Whether this bug is planted: never, in a build without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn on(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use chosen::{hits, on, plant};

#[cfg(feature = "planted")]
mod chosen {
    use super::Bug;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    const NONE: usize = usize::MAX;
    static CHOSEN: LazyLock<AtomicUsize> = LazyLock::new(|| {
        let named = option_env!("BASALT_PLANTED").and_then(Bug::named);
        AtomicUsize::new(named.map_or(NONE, |bug| bug as usize))
    });
    static HITS: AtomicU64 = AtomicU64::new(0);

    /// Plants one bug in this process, or none, and resets its count of hits.
    pub fn plant(bug: Option<Bug>) {
        CHOSEN.store(bug.map_or(NONE, |bug| bug as usize), Ordering::SeqCst);
        HITS.store(0, Ordering::SeqCst);
    }

    /// Whether this bug is planted. Each yes counts as a hit, so hooks ask last, when every other condition for the mistake
    /// holds.
    #[inline]
    pub fn on(bug: Bug) -> bool {
        let planted = CHOSEN.load(Ordering::Relaxed) == bug as usize;
        if planted {
            HITS.fetch_add(1, Ordering::Relaxed);
        }
        planted
    }

    /// Returns how often the planted bug has struck.
    pub fn hits() -> u64 {
        HITS.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn registry_names_each_bug_once_and_covers_every_implemented_rule() {
        let all = || REGISTRY.iter().chain(UNREACHED);
        let names: BTreeSet<&str> = all().map(|row| row.name).collect();
        assert_eq!(names.len(), all().count(), "a name is used twice");
        for row in all() {
            assert_eq!((row.bug.row(), Bug::named(row.name)), (row, Some(row.bug)));
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", row.name);
        }
        // R14 comes with snapshots.
        for n in (1..=17).filter(|n| *n != 14) {
            assert!(REGISTRY.iter().any(|row| row.rule == format!("R{n}")), "no bug breaks R{n}");
        }
    }

    #[test]
    #[cfg(not(feature = "planted"))]
    fn without_the_feature_no_bug_is_ever_planted() {
        assert!(REGISTRY.iter().chain(UNREACHED).all(|row| !on(row.bug)));
    }
}
