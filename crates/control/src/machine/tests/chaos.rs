//! Clients that open, clients that preempt, and metas that die, in an order drawn from a seed. The
//! observer sits in [`World`](super::world::World): what an opener was told is true in the PGs, and
//! stays true.

use super::world::{Death, World};
use super::*;
use types::control::{AttachRefusal, SegmentPlace};

/// A client process that repeats its request until it holds the volume.
struct Insister {
    client: u64,
    name: &'static str,
    asked: Option<ClientReq>,
    held: Option<Opened>,
    opens: usize,
    places: usize,
}

impl Insister {
    fn next(&mut self, world: &mut World) -> ClientAsk {
        match &self.held {
            None => open(self.name, true, world.rng.chance(1, 2)),
            Some(held) => match world.rng.below(10) {
                0 => ClientAsk::Close { volume: held.volume, session: held.session },
                1 => ClientAsk::Keepalive {
                    volume: held.volume,
                    session: held.session,
                    unreached: Vec::new(),
                    len_epoch: 0,
                    len_bytes: 0,
                },
                _ => {
                    let at = world.rng.below(60) as u32;
                    segments(held, at..at + 4, true)
                }
            },
        }
    }

    fn take(
        &mut self,
        answer: ClientAnswer,
        placed: &mut BTreeMap<(VolumeId, SegmentIndex), Vec<PgId>>,
        world: &World,
    ) {
        match answer {
            ClientAnswer::Opened(held) => {
                held.segments.iter().for_each(|place| remember(placed, held.volume, place));
                self.held = Some(held);
                self.opens += 1;
            }
            ClientAnswer::Segments { segments, .. } => {
                let held = self.held.as_ref().expect("only holders ask");
                for place in &segments {
                    remember(placed, held.volume, place);
                    for pg in &place.pgs {
                        let attach = world.attached.get(&(*pg, held.volume));
                        let attach = attach.expect("a placed segment may be written: its PGs are attached");
                        assert!(attach.epoch >= held.epoch);
                    }
                }
                self.places += 1;
            }
            ClientAnswer::Alive { .. } => {}
            ClientAnswer::Closed => self.held = None,
            ClientAnswer::Refused(refusal) => match refusal.code {
                codes::SESSION_FENCED => self.held = None,
                codes::VOLUME_HELD => assert!(self.held.is_none()),
                // No majority of the OSDs confirmed the change in time: it may have been made or not.
                codes::NO_MAJORITY => {}
                _ => panic!("{refusal}"),
            },
            ClientAnswer::Refreshed(_) => panic!("no client asked for it"),
        }
    }
}

fn remember(placed: &mut BTreeMap<(VolumeId, SegmentIndex), Vec<PgId>>, volume: VolumeId, place: &SegmentPlace) {
    assert!(!place.pgs.is_empty(), "it was allocated");
    let before = placed.insert((volume, place.segment), place.pgs.clone());
    assert!(
        before.as_ref().is_none_or(|before| *before == place.pgs),
        "segment {} of {volume} moved from {before:?} to {:?}",
        place.segment,
        place.pgs
    );
}

/// Delivers one random message of those on the way; some are lost, some are answered with a refusal.
fn deliver_some(world: &mut World) {
    if world.queue.is_empty() {
        return;
    }
    let at = world.rng.below(world.queue.len() as u64) as usize;
    let (stream, down) = world.queue.remove(at).expect("it is in range");
    match (&down, world.rng.below(12)) {
        (OsdDown::Attach { .. }, 0) => {}
        (OsdDown::Attach { pg, attach }, 1) => {
            let refusal = if world.rng.chance(1, 2) {
                AttachRefusal::Busy
            } else {
                AttachRefusal::NotLeader { hint: Some(OsdId(1 + world.rng.below(3) as u32)) }
            };
            let up = OsdUp::Attached { pg: *pg, order: attach.order, result: Err(refusal) };
            world.control.handle_osd(world.now, stream, up);
        }
        (OsdDown::Attach { pg, attach }, 2) => {
            // The OSD gets the message twice, as after a resend.
            world.queue.push_back((stream, OsdDown::Attach { pg: *pg, attach: *attach }));
            world.arrive(stream, down);
        }
        _ => world.arrive(stream, down),
    }
}

fn turn(world: &mut World, people: &mut [Insister], placed: &mut BTreeMap<(VolumeId, SegmentIndex), Vec<PgId>>) {
    let deaths = world.deaths;
    for who in people.iter_mut() {
        if who.asked.is_none() && world.rng.chance(1, 3) {
            let ask = who.next(world);
            let req = world.req(who.client, ask);
            who.asked = Some(req.clone());
            world.control.handle_client(req);
        }
    }
    world.step();
    for _ in 0..world.rng.below(6) {
        deliver_some(world);
    }
    if world.deaths != deaths {
        // A new leader: OSDs connect to it, and requests without an answer are sent again.
        world.hold = true;
        world.connect_all();
        for who in people.iter_mut() {
            if let Some(asked) = &mut who.asked
                && !world.answers.contains_key(&asked.token)
            {
                asked.token = world.fresh_token();
                world.control.handle_client(asked.clone());
            }
        }
    }
    for who in people.iter_mut() {
        let token = who.asked.as_ref().map(|asked| asked.token);
        if let Some(answer) = token.and_then(|token| world.answers.remove(&token)) {
            who.asked = None;
            who.take(answer, placed, world);
        }
    }
    world.now.mono = world.now.mono + Duration::from_millis(world.rng.below(200));
}

#[test]
fn granted_open_stays_valid_across_steals_and_meta_crashes() {
    let (mut opens, mut places, mut deaths) = (0, 0, 0);
    for seed in 1..=60 {
        let mut world = World::new(seed, 3);
        world.make_pool("p", 3, 8);
        world.make_volume("p/a", 64 * SEGMENT);
        world.make_striped("p/b", 64 * SEGMENT, Stripe::with_count(1 << (seed % 4)).expect("a power of two"));
        let person = |(client, name)| Insister { client, name, asked: None, held: None, opens: 0, places: 0 };
        let mut people: Vec<Insister> = [(1, "p/a"), (2, "p/a"), (3, "p/b")].into_iter().map(person).collect();
        let mut placed = BTreeMap::new();
        world.hold = true;
        world.death = Death::OneIn(12);
        for _ in 0..500 {
            turn(&mut world, &mut people, &mut placed);
        }
        // Without faults every request is answered, and both volumes can be removed without a trace.
        world.death = Death::Never;
        world.hold = false;
        world.connect_all();
        for who in &mut people {
            if let Some(asked) = who.asked.take() {
                let token = world.fresh_token();
                let answer = world.answer_to(ClientReq { token, ..asked });
                who.take(answer, &mut placed, &world);
            }
            opens += who.opens;
            places += who.places;
        }
        deaths += world.deaths;
        for name in ["p/a", "p/b"] {
            world
                .admin(AdminAsk::VolumeRemove(VolumeRemove {
                    name: name.into(),
                    force: true,
                    now: true,
                    snapshots: false,
                    detach: false,
                }))
                .expect("removed");
        }
        assert!(!world.store.keys().any(|k| k.starts_with("segment/") || k.starts_with("volume/")), "seed {seed}");
        assert!(world.attached.values().all(|a| a.chunk_count == 0), "seed {seed}: every PG dropped what it held");
    }
    assert!(opens > 500 && places > 1000 && deaths > 500, "{opens} opens, {places} placements, {deaths} deaths");
}
