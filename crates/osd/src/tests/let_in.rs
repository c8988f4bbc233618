//! An OSD that waits to be let in, and one that is an older copy (R17, ADR 0012).

use super::rig::{EPOCH, LONG, Rig, pg};
use crate::{Phase, Restart};
use std::time::Duration;
use types::ReplicaId;
use types::codes;
use types::control::{OsdDown, OsdUp, Watermarks};

const WAIT: Duration = Duration::from_secs(10);

fn refused(code: u32) -> OsdDown {
    OsdDown::Refused { code, reason: "no".to_owned() }
}

/// Makes a rig whose first OSD starts again and waits.
fn waiting(seed: u64, after_restore: bool) -> Rig {
    let mut rig = Rig::new(seed, [64, 64, 64]);
    // The peers dial while it waits.
    rig.make_pgs(2);
    rig.run(Duration::from_secs(2));
    rig.kill(0);
    rig.start_waiting(0, WAIT, after_restore);
    rig.run(Duration::from_millis(500));
    rig
}

#[test]
fn nothing_is_served_before_meta_has_let_the_osd_in() {
    let mut rig = waiting(1, false);
    rig.run(Duration::from_secs(9));
    assert_eq!(*rig.osd(0).phase(), Phase::Mounting, "meta has not answered");
    assert!(rig.osd(0).leading().is_empty());
    rig.tell(0, OsdDown::Connected);
    let ups = rig.osd(0).take_reports();
    let Some(OsdUp::Hello(hello)) = ups.first() else { panic!("{ups:?}") };
    assert!(hello.device.mount > 1 && hello.device.log_seq > 0 && !hello.device.restored, "{hello:?}");
    assert_eq!(*rig.osd(0).phase(), Phase::Mounting);
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
}

#[test]
fn an_osd_goes_on_by_itself_when_no_meta_answers() {
    let mut rig = waiting(2, false);
    rig.run(Duration::from_millis(10_100));
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
}

#[test]
fn group_knows_what_the_log_freed_while_its_osd_waited() {
    let first = |rig: &mut Rig| {
        let osd = rig.osd(0);
        let first = osd.engine.first_index(ReplicaId(1));
        (first, osd.pgs.by_pg(pg(0)).and_then(|key| Some(osd.pgs.group(key)?.first_index())))
    };
    let mut freed = 0;
    for seed in 40..44 {
        let mut rig = Rig::new(seed, [16; 3]);
        rig.make_pgs(1);
        // All of it is destaged, and half of the segments are kept.
        rig.fill(pg(0), 8);
        rig.run(Duration::from_secs(12));
        let stats = |rig: &mut Rig| rig.osd(0).engine.stats();
        let kept = stats(&mut rig).segments_in_use;
        // The process dies when a batch has opened a segment more, before one is freed for it.
        for part in 0.. {
            let leader = rig.leader(pg(0));
            let before = rig.answered(leader).0;
            rig.submit(pg(0), 0, part * 128, 128);
            rig.until(LONG, "a batch or an answer", |rig| {
                stats(rig).segments_in_use > kept || rig.answered(leader).0 > before
            });
            if stats(&mut rig).segments_in_use > kept {
                break;
            }
        }
        let (before, _) = first(&mut rig);
        rig.kill(0);
        rig.start_waiting(0, Duration::from_millis(500), false);
        rig.until(LONG, "it goes on by itself", |rig| *rig.osd(0).phase() == Phase::Running);
        let (log, group) = first(&mut rig);
        assert_eq!(group, Some(log), "the group would send entries that are gone");
        freed += u32::from(log > before);
    }
    assert!(freed > 0, "no segment was freed while an OSD waited");
}

#[test]
fn an_older_device_is_refused_at_once_and_never_serves() {
    let mut rig = waiting(3, false);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, refused(codes::DEVICE_BEHIND));
    assert_eq!(rig.osd(0).refusal().map(|(code, _)| code), Some(codes::DEVICE_BEHIND));
    assert_eq!(rig.osd(0).starts_again(), Some(Restart::Marked));
    rig.run(Duration::from_secs(30));
    assert!(matches!(rig.osd(0).phase(), Phase::Stopped(_)));
}

#[test]
fn an_older_device_waits_until_meta_fails_its_replicas() {
    let mut rig = waiting(10, false);
    let held = rig.osd(0).replicas();
    let again = |rig: &mut Rig, behind, after_restore| {
        rig.kill(0);
        rig.mark_behind(0, behind);
        rig.start_waiting(0, WAIT, after_restore);
        rig.run(Duration::from_secs(1));
    };
    again(&mut rig, true, false);
    for _ in 0..3 {
        rig.tell(0, OsdDown::Connected);
        let ups = rig.osd(0).take_reports();
        let Some(OsdUp::Hello(hello)) = ups.first() else { panic!("{ups:?}") };
        assert!(hello.device.behind && !hello.device.restored, "{hello:?}");
        rig.tell(0, refused(codes::DEVICE_BEHIND));
        rig.tell(0, OsdDown::Behind { reason: "the records, too".to_owned(), hold: false });
        rig.run(Duration::from_secs(30));
        let osd = rig.osd(0);
        assert_eq!((osd.phase(), osd.starts_again()), (&Phase::Mounting, None), "it asks again");
    }
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::FailReplicas { reason: "it is older".to_owned(), mount: 70 });
    assert_eq!(rig.osd(0).starts_again(), Some(Restart::Restored { mount_above: 70 }));
    again(&mut rig, true, true);
    rig.tell(0, OsdDown::Connected);
    let ups = rig.osd(0).take_reports();
    assert!(matches!(ups.first(), Some(OsdUp::Hello(hello)) if hello.device.restored), "{ups:?}");
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
    assert_eq!(rig.osd(0).quarantined().len(), held.len(), "every replica has failed");
}

#[test]
fn an_osd_whose_replicas_have_failed_asks_again_until_its_order_comes() {
    let mut rig = waiting(11, true);
    for phase in [Phase::Mounting, Phase::Running] {
        for _ in 0..2 {
            rig.tell(0, OsdDown::Connected);
            assert!(matches!(rig.osd(0).take_reports().first(), Some(OsdUp::Hello(hello)) if hello.device.restored));
            rig.tell(0, refused(codes::DEVICE_BEHIND));
            let osd = rig.osd(0);
            assert_eq!((osd.phase(), osd.starts_again()), (&phase, None), "the records are not trusted");
        }
        // It goes on with its failed replicas, which answer their peers.
        rig.run(WAIT);
    }
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::FailReplicas { reason: "no new number".to_owned(), mount: 70 });
    assert_eq!(rig.osd(0).starts_again(), Some(Restart::Restored { mount_above: 70 }));
}

#[test]
fn a_run_that_was_let_in_and_whose_device_goes_back_gets_the_mark() {
    let mut rig = waiting(12, true);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, refused(codes::DEVICE_BEHIND));
    assert_eq!(rig.osd(0).starts_again(), Some(Restart::Marked));
    assert!(matches!(rig.osd(0).phase(), Phase::Stopped(_)));
}

#[test]
fn new_process_waits_for_the_one_that_meta_believes_alive() {
    for lives in [false, true] {
        let mut rig = waiting(4, false);
        for _ in 0..4 {
            rig.tell(0, OsdDown::Connected);
            rig.tell(0, refused(codes::OSD_OTHER_LIFE));
            assert_eq!(*rig.osd(0).phase(), Phase::Mounting);
            rig.run(Duration::from_millis(2_800));
            assert_eq!(*rig.osd(0).phase(), Phase::Mounting, "it never goes on by itself beside another process");
        }
        match lives {
            true => {
                rig.run(Duration::from_secs(1));
                assert_eq!(rig.osd(0).refusal().map(|(code, _)| code), Some(codes::OSD_OTHER_LIFE));
            }
            false => {
                rig.tell(0, OsdDown::Connected);
                rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
                assert_eq!(*rig.osd(0).phase(), Phase::Running);
            }
        }
    }
}

#[test]
fn a_newcomer_that_heard_of_another_process_ends_when_meta_falls_silent() {
    let mut rig = waiting(6, false);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, refused(codes::OSD_OTHER_LIFE));
    rig.run(Duration::from_secs(11));
    assert_eq!(*rig.osd(0).phase(), Phase::Mounting);
    rig.run(Duration::from_millis(1_200));
    assert_eq!(rig.osd(0).refusal().map(|(code, _)| code), Some(codes::OSD_OTHER_LIFE));
}

#[test]
fn an_osd_that_serves_unchecked_ends_at_once_beside_another_process() {
    let mut rig = waiting(7, false);
    rig.run(Duration::from_millis(10_100));
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, refused(codes::OSD_OTHER_LIFE));
    assert_eq!(rig.osd(0).refusal().map(|(code, _)| code), Some(codes::OSD_OTHER_LIFE));
}

#[test]
fn an_osd_that_starts_waits_for_the_recovery_of_a_store_that_is_behind() {
    let mut rig = waiting(8, false);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::Behind { reason: "it is older".to_owned(), hold: true });
    rig.run(Duration::from_secs(60));
    assert_eq!(*rig.osd(0).phase(), Phase::Mounting, "its device may have gone back with the store");
    rig.tell(1, OsdDown::Behind { reason: "it is older".to_owned(), hold: true });
    assert_eq!(*rig.osd(1).phase(), Phase::Running, "an OSD that serves goes on");
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
}

#[test]
fn an_osd_on_hold_goes_on_when_meta_ends_the_hold() {
    let mut rig = waiting(8, false);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::Behind { reason: "it is older".to_owned(), hold: true });
    rig.run(Duration::from_secs(60));
    assert_eq!(*rig.osd(0).phase(), Phase::Mounting);
    rig.tell(0, refused(codes::OSD_OTHER_LIFE));
    // Meta has accepted its Hello since: the other process is gone.
    rig.tell(0, OsdDown::Behind { reason: "it is older".to_owned(), hold: false });
    rig.run(Duration::from_millis(9_800));
    assert_eq!(*rig.osd(0).phase(), Phase::Mounting, "others may still show that it is not current");
    rig.run(Duration::from_millis(400));
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
}

#[test]
fn a_run_of_a_restored_device_leaves_no_old_memory_to_the_next_one() {
    let told = Watermarks { revision: 7, next_volume: 9, ..Watermarks::default() };
    let again = |rig: &mut Rig, after_restore| {
        rig.kill(0);
        rig.start_waiting(0, WAIT, after_restore);
        rig.run(Duration::from_millis(500));
    };
    let mut rig = waiting(9, false);
    rig.tell(0, OsdDown::Connected);
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    rig.tell(0, OsdDown::Remember(told));
    rig.until(LONG, "it keeps that", |rig| rig.osd(0).watermarks_for_tools() == told);
    again(&mut rig, true);
    rig.tell(0, OsdDown::Connected);
    rig.run(Duration::from_secs(1));
    let ups = rig.osd(0).take_reports();
    assert!(matches!(ups.first(), Some(OsdUp::Hello(hello)) if hello.seen == told), "evidence all the same: {ups:?}");
    // The OSD ends before it was let in, and is started without the flag.
    again(&mut rig, false);
    assert_eq!(rig.osd(0).watermarks_for_tools(), Watermarks::default());
    // Once let in, it remembers again.
    again(&mut rig, true);
    rig.tell(0, OsdDown::Connected);
    rig.run(Duration::from_secs(1));
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    rig.tell(0, OsdDown::Remember(told));
    rig.until(LONG, "it keeps that", |rig| rig.osd(0).watermarks_for_tools() == told);
    again(&mut rig, false);
    assert_eq!(rig.osd(0).watermarks_for_tools(), told);
}

#[test]
fn restored_device_says_so_once_it_is_durable_that_its_replicas_failed() {
    let mut rig = waiting(5, true);
    rig.tell(0, OsdDown::Connected);
    rig.run(Duration::from_secs(1));
    let ups = rig.osd(0).take_reports();
    let Some(OsdUp::Hello(hello)) = ups.first() else { panic!("{ups:?}") };
    assert!(hello.device.restored);
    rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
    assert_eq!(*rig.osd(0).phase(), Phase::Running);
    assert!(
        rig.osd(0).engine.may_have_been_here(ReplicaId(1000)),
        "a replica that is made now may have been here before"
    );
}

#[test]
fn an_osd_that_the_records_cannot_judge_waits_for_their_recovery() {
    for current in [true, false] {
        let mut rig = waiting(6, false);
        for _ in 0..3 {
            rig.tell(0, OsdDown::Connected);
            rig.tell(0, OsdDown::Behind { reason: "it is older".to_owned(), hold: true });
            rig.run(Duration::from_secs(10));
            assert_eq!(*rig.osd(0).phase(), Phase::Mounting, "it neither ends nor goes on by itself");
        }
        rig.tell(0, OsdDown::Connected);
        match current {
            true => {
                rig.tell(0, OsdDown::Welcome { map_epoch: EPOCH, osds: Vec::new() });
                assert_eq!(*rig.osd(0).phase(), Phase::Running);
                // An OSD that serves goes on serving, also when the records go back later.
                rig.tell(0, OsdDown::Behind { reason: "it is older".to_owned(), hold: true });
                assert_eq!(*rig.osd(0).phase(), Phase::Running);
                rig.osd(0).take_reports();
                rig.tell(0, OsdDown::Connected);
                let ups = rig.osd(0).take_reports();
                let Some(OsdUp::Hello(hello)) = ups.first() else { panic!("{ups:?}") };
                assert!(hello.device.let_in, "{hello:?}");
            }
            false => {
                rig.tell(0, refused(codes::DEVICE_BEHIND));
                assert_eq!(rig.osd(0).refusal().map(|(code, _)| code), Some(codes::DEVICE_BEHIND));
            }
        }
    }
}
