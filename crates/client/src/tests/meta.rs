//! Opening, keeping and closing, answer by answer.

use crate::{AskId, Client, ClientConfig, ClientEvent, ClientTuning, VolumeKey};
use device::{Completion, Request};
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, MapView, Opened, Refusal};
use types::faults::{Fault, FaultEffect, ToldFault};
use types::{ClusterId, Epoch, Errno, Incarnation, QosLimits, RateLimit, SessionId, Stripe, Time, VolumeId};

fn config() -> ClientConfig {
    let incarnation = Incarnation(77);
    ClientConfig {
        owner: 1,
        incarnation,
        holder: "test".into(),
        timeout: None,
        full_wait: std::time::Duration::ZERO,
        on_unavailable: crate::OnUnavailable::Freeze,
        tuning: ClientTuning::default(),
        seed: 1,
    }
}

fn opened(cluster: u8, write: bool) -> ClientAnswer {
    ClientAnswer::Opened(Opened {
        snapshot: None,
        cluster: ClusterId([cluster; 16]),
        volume: VolumeId(1),
        session: SessionId(u64::from(write)),
        epoch: Epoch(1),
        len_epoch: 0,
        len_bytes: 1 << 30,
        stripe: Stripe::NONE,
        limits: QosLimits::NONE,
        faults: Vec::new(),
        when_full: types::WhenFull::Client,
        multi_writer: false,
        write,
        segments: Vec::new(),
        view: MapView::default(),
    })
}

fn alive_with(len_bytes: u64) -> ClientAnswer {
    let (limits, faults, when_full) = (QosLimits::NONE, Vec::new(), types::WhenFull::Client);
    ClientAnswer::Alive { len_epoch: 0, len_bytes, limits, faults, when_full }
}

fn refused(code: u32) -> ClientAnswer {
    ClientAnswer::Refused(Refusal { code, message: "no".into() })
}

struct Bench {
    client: Client,
    now: Time,
}

impl Bench {
    fn new() -> Bench {
        Bench { client: Client::new(config()), now: Time(1_000_000_000) }
    }

    /// Runs a turn; returns the requests to meta.
    fn turn(&mut self) -> Vec<(AskId, ClientAsk)> {
        let (mut ops, mut asks) = (Vec::new(), Vec::new());
        self.client.end_turn(self.now, &mut ops);
        assert!(ops.is_empty(), "there is no OSD to dial");
        self.client.take_asks(&mut asks);
        asks
    }

    fn sleep(&mut self) -> Vec<(AskId, ClientAsk)> {
        let deadline = self.client.next_deadline();
        assert!(deadline > self.now && deadline < Time::NEVER, "{deadline:?} at {:?}", self.now);
        self.now = deadline;
        self.turn()
    }

    fn answer(&mut self, id: AskId, answer: ClientAnswer) {
        self.client.handle_meta(self.now, id, answer);
    }

    fn events(&mut self) -> Vec<ClientEvent> {
        let mut events = Vec::new();
        self.client.take_events(&mut events);
        events
    }

    fn open(&mut self, write: bool) -> VolumeKey {
        let ask = self.client.open("p/v", write, false);
        self.turn();
        self.answer(ask, opened(1, write));
        match &self.events()[..] {
            [ClientEvent::Opened { volume, info, .. }] => {
                assert_eq!((info.len_bytes, info.read_only), (1 << 30, !write));
                *volume
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_open_asks_meta_and_a_refusal_reaches_the_owner() {
    let mut b = Bench::new();
    let ask = b.client.open("p/v", true, true);
    let asks = b.turn();
    assert!(
        matches!(&asks[..], [(id, ClientAsk::Open { name, write: true, steal: true, holder })] if *id == ask && name == "p/v" && holder == "test")
    );
    b.answer(ask, refused(codes::VOLUME_HELD));
    let why = Refusal { code: codes::VOLUME_HELD, message: "no".into() };
    assert_eq!(b.events(), [ClientEvent::OpenRefused { ask, why }]);
    b.answer(ask, opened(1, true));
    assert_eq!(b.events(), [], "a second answer is nobody's");
}

#[test]
fn volumes_of_two_clusters_are_not_held_by_one_client() {
    let mut b = Bench::new();
    b.open(true);
    let ask = b.client.open("q/w", true, false);
    b.answer(ask, opened(2, true));
    assert!(matches!(&b.events()[..], [ClientEvent::OpenRefused { why: Refusal { code: 5005, .. }, .. }]));
}

#[test]
fn holder_sends_keepalives_and_is_fenced_when_meta_says_so() {
    let mut b = Bench::new();
    let volume = b.open(true);
    let began = b.now;
    for n in 1..3 {
        let asks = b.sleep();
        assert_eq!(b.now, began + Duration::from_secs(2 * n));
        assert!(matches!(asks[..], [(_, ClientAsk::Keepalive { volume: VolumeId(1), session: SessionId(1), .. })]));
        b.answer(asks[0].0, alive_with(0));
    }
    let asks = b.sleep();
    b.answer(asks[0].0, refused(codes::META_UNAVAILABLE));
    let asks = b.sleep();
    b.answer(asks[0].0, refused(codes::SESSION_FENCED));
    b.turn();
    assert_eq!(b.events(), [ClientEvent::Failed { volume, errno: Errno::Fenced }]);
    assert_eq!(b.client.next_deadline(), Time::NEVER, "a fenced holder sends no keepalive");
    let (now, mut done) = (b.now, Vec::new());
    let device = b.client.device(volume).expect("still to be closed");
    device.submit(now, Request::Flush, 3).expect("not busy");
    device.completions(&mut done);
    assert_eq!(done, [Completion { token: 3, result: Err(Errno::Fenced) }]);
}

#[test]
fn holder_learns_a_longer_length_and_uses_it_without_an_open() {
    let mut b = Bench::new();
    let volume = b.open(true);
    let len = b.client.device(volume).expect("open").info().len_bytes;
    let reads = |b: &mut Bench| {
        let (now, mut done) = (b.now, Vec::new());
        let device = b.client.device(volume).expect("open");
        device.submit(now, Request::Read { offset: len, len: 512 }, 1).expect("not busy");
        device.completions(&mut done);
        done.first().map(|c| c.result.clone().err())
    };
    assert_eq!(reads(&mut b), Some(Some(Errno::Invalid)), "behind the end");
    // No length, one that the volume has, a shorter one, and three that no volume has change nothing.
    for told in [0, len, len - 512, len + 1, (64 << 40) + 512, u64::MAX] {
        let asks = b.sleep();
        b.answer(asks[0].0, alive_with(told));
        assert_eq!(b.events(), []);
        assert_eq!(b.client.device(volume).expect("open").info().len_bytes, len);
    }
    let (asks, len_bytes) = (b.sleep(), len + (5 << 30));
    b.answer(asks[0].0, alive_with(len_bytes));
    assert_eq!(b.events(), [ClientEvent::Resized { volume, len_bytes }]);
    assert_eq!(b.client.device(volume).expect("open").info().len_bytes, len_bytes);
    assert_eq!(b.client.stats().volumes[0].len_bytes, len_bytes);
    assert_eq!(reads(&mut b), None, "it waits for meta to say whether that segment is a hole");
    let asks = b.turn();
    assert!(asks.iter().any(|(_, ask)| matches!(ask, ClientAsk::Segments { .. })), "{asks:?}");
}

#[test]
fn holder_of_a_shorter_volume_fails_what_is_behind_and_says_so() {
    let mut b = Bench::new();
    let volume = b.open(true);
    let len = b.client.device(volume).expect("open").info().len_bytes;
    let used = |asks: &[(AskId, ClientAsk)]| match asks {
        [(id, ClientAsk::Keepalive { len_epoch, len_bytes, .. })] => (*id, (*len_epoch, *len_bytes)),
        other => panic!("{other:?}"),
    };
    // A request behind the end that will be: it waits for the place of its segment.
    let now = b.now;
    let device = b.client.device(volume).expect("open");
    device.submit(now, Request::Trim { offset: len - 512, len: 512 }, 1).expect("not busy");
    device.submit(now, Request::Read { offset: 0, len: 512 }, 2).expect("not busy");
    let alive = |len_epoch, len_bytes| ClientAnswer::Alive {
        len_epoch,
        len_bytes,
        limits: QosLimits::NONE,
        faults: Vec::new(),
        when_full: types::WhenFull::Client,
    };
    b.now = b.now + Duration::from_secs(2);
    let asks: Vec<_> = b.turn().into_iter().filter(|(_, ask)| matches!(ask, ClientAsk::Keepalive { .. })).collect();
    let (id, said) = used(&asks);
    assert_eq!(said, (0, len));
    b.answer(id, alive(1, len / 2));
    assert_eq!(b.events(), [ClientEvent::Resized { volume, len_bytes: len / 2 }]);
    // It answers at once, and says no length while a request is behind the end.
    let asks: Vec<_> = b.turn().into_iter().filter(|(_, ask)| matches!(ask, ClientAsk::Keepalive { .. })).collect();
    let (id, said) = used(&asks);
    assert_eq!(said, (1, 0));
    // A metadata server that leads no longer knows the older length.
    b.answer(id, alive(0, len));
    assert_eq!(b.events(), []);
    let now = b.now;
    let device = b.client.device(volume).expect("open");
    device.submit(now, Request::Trim { offset: len / 2, len: 512 }, 3).expect("not busy");
    let mut done = Vec::new();
    device.completions(&mut done);
    assert!(done.iter().any(|c| c.token == 3 && c.result.is_err()), "{done:?}");
    // It grows again under a later epoch.
    b.now = b.now + Duration::from_secs(2);
    let asks: Vec<_> = b.turn().into_iter().filter(|(_, ask)| matches!(ask, ClientAsk::Keepalive { .. })).collect();
    b.answer(used(&asks).0, alive(3, len));
    assert_eq!(b.events(), [ClientEvent::Resized { volume, len_bytes: len }]);
}

#[test]
fn an_unanswered_keepalive_is_repeated_and_stops_no_io() {
    let mut b = Bench::new();
    let volume = b.open(true);
    let began = b.now;
    assert_eq!(b.sleep().len(), 1);
    assert_eq!(b.sleep().len(), 1);
    assert_eq!(b.now, began + Duration::from_secs(12));
    let (now, mut done) = (b.now, Vec::new());
    let device = b.client.device(volume).expect("open");
    device.submit(now, Request::Read { offset: 0, len: 512 }, 1).expect("not busy");
    let asks = b.turn();
    assert!(matches!(asks[..], [(_, ClientAsk::Segments { allocate: false, .. })]), "nothing exists: {asks:?}");
    b.answer(asks[0].0, ClientAnswer::Segments { segments: Vec::new(), pending: Vec::new(), view: Default::default() });
    b.client.device(volume).expect("open").completions(&mut done);
    assert!(done[0].result.is_ok());
}

#[test]
fn a_close_tells_meta_until_it_knows() {
    let mut b = Bench::new();
    let volume = b.open(true);
    let (now, mut done) = (b.now, Vec::new());
    let device = b.client.device(volume).expect("open");
    device.submit(now, Request::Flush, 1).expect("not busy");
    b.client.close(volume);
    assert!(b.turn().is_empty(), "a completion has not been taken");
    let device = b.client.device(volume).expect("closing");
    device.submit(now, Request::Flush, 2).expect("not busy");
    device.completions(&mut done);
    let late = done.iter().find(|c| c.token == 2).expect("answered");
    assert_eq!((done.len(), &late.result), (2, &Err(Errno::Shutdown)));
    let asks = b.turn();
    assert!(matches!(asks[..], [(_, ClientAsk::Close { volume: VolumeId(1), session: SessionId(1) })]), "{asks:?}");
    b.answer(asks[0].0, refused(codes::META_UNAVAILABLE));
    let asks = b.sleep();
    assert!(matches!(asks[..], [(_, ClientAsk::Close { .. })]));
    b.answer(asks[0].0, ClientAnswer::Closed);
    assert_eq!(b.events(), [ClientEvent::Closed { volume }]);
    assert!(b.client.device(volume).is_none());
    assert_ne!(b.open(false), volume, "a key is never used again");
}

#[test]
fn a_reader_closes_without_a_word_to_meta() {
    let mut b = Bench::new();
    let volume = b.open(false);
    assert_eq!(b.client.next_deadline(), Time::NEVER, "and keeps nothing alive");
    b.client.close(volume);
    assert!(b.turn().is_empty());
    assert_eq!(b.events(), [ClientEvent::Closed { volume }]);
}

#[test]
fn limits_of_a_volume_change_with_a_keepalive() {
    let iops = |rate| QosLimits { iops: Some(RateLimit { rate, burst: 0, burst_seconds: 0 }), ..QosLimits::NONE };
    let mut b = Bench::new();
    let key = b.open(true);
    for limits in [iops(500), iops(70), QosLimits::NONE] {
        let keepalive = loop {
            b.now = b.now + Duration::from_millis(500);
            if let Some((id, _)) = b.turn().into_iter().find(|(_, ask)| matches!(ask, ClientAsk::Keepalive { .. })) {
                break id;
            }
        };
        b.answer(
            keepalive,
            ClientAnswer::Alive {
                len_epoch: 0,
                len_bytes: 0,
                limits,
                faults: Vec::new(),
                when_full: types::WhenFull::Client,
            },
        );
        assert_eq!(b.client.find(key).expect("it is open").volume.limits(), limits);
    }
}

#[test]
fn pause_comes_with_a_keepalive_and_the_next_keepalives_go_on() {
    let pause = Fault { effect: FaultEffect::Pause, percent: 100, reads: true, writes: true };
    let mut b = Bench::new();
    let key = b.open(true);
    let device = |b: &mut Bench| -> Vec<Completion> {
        let (mut done, now) = (Vec::new(), b.now);
        let device = b.client.device(key).expect("it is open");
        device.submit(now, Request::Read { offset: 0, len: 512 }, 1).expect("not busy");
        device.completions(&mut done);
        done
    };
    for told in [vec![ToldFault { id: 1, fault: pause, left_ms: 60_000 }], Vec::new()] {
        let keepalive = loop {
            b.now = b.now + Duration::from_millis(500);
            if let Some((id, _)) = b.turn().into_iter().find(|(_, ask)| matches!(ask, ClientAsk::Keepalive { .. })) {
                break id;
            }
        };
        b.answer(
            keepalive,
            ClientAnswer::Alive {
                len_epoch: 0,
                len_bytes: 0,
                limits: QosLimits::NONE,
                faults: told.clone(),
                when_full: types::WhenFull::Client,
            },
        );
        let in_force: Vec<ToldFault> = b.client.find(key).expect("it is open").volume.faults().copied().collect();
        assert_eq!(in_force, told);
        assert_eq!(device(&mut b), []);
    }
}
