//! Requests to meta: the pending ones and their volumes, keepalives, and the close of a volume.
//!
//! A carrier answers each request once, with its id. When meta cannot be reached it answers `Refused` with
//! `META_UNAVAILABLE`, after as many retries as it likes. Only two kinds of I/O wait for an answer: the first
//! write to a segment, and a reader's first read of a segment that it does not know.

use crate::client::{Client, ClientEvent};
use crate::open::{OpenVolume, Stage, VolumeKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, KEEPALIVE_MS, MapView, PGS_PER_ASK_MAX, Refusal, UNREACHED_MAX};
use types::{Errno, OsdId, Time};

/// Interval of a holder's keepalives.
pub(crate) const KEEPALIVE: Duration = Duration::from_millis(KEEPALIVE_MS);

/// Id of a request to meta.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AskId(pub u64);

impl fmt::Display for AskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ask{}", self.0)
    }
}

/// Requests to meta without an answer. Bounded: a volume has at most a handful at a time, and a lost one is
/// replaced by its repetition.
#[derive(Default)]
pub(crate) struct Asks {
    next: u64,
    queue: VecDeque<(AskId, ClientAsk)>,
    out: BTreeMap<AskId, (Option<VolumeKey>, ClientAsk)>,
    where_at: Time,
}

impl Asks {
    fn add(&mut self, volume: Option<VolumeKey>, ask: ClientAsk) -> AskId {
        // A repetition means that the volume no longer waits for the first of its kind.
        let kind = std::mem::discriminant(&ask);
        self.out.retain(|_, (v, a)| volume.is_none() || *v != volume || std::mem::discriminant(a) != kind);
        self.next += 1;
        let id = AskId(self.next);
        self.queue.push_back((id, ask.clone()));
        self.out.insert(id, (volume, ask));
        id
    }

    pub fn put(&mut self, volume: VolumeKey, ask: ClientAsk) -> AskId {
        self.add(Some(volume), ask)
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Client {
    /// Asks meta to open `pool/volume`; `steal` fences the present holder. The answer comes as
    /// [`ClientEvent::Opened`] or [`ClientEvent::OpenRefused`].
    pub fn open(&mut self, name: &str, write: bool, steal: bool) -> AskId {
        let holder = self.config.holder.clone();
        self.asks.add(None, ClientAsk::Open { name: name.into(), write, steal, holder })
    }

    /// Takes the requests for meta.
    pub fn take_asks(&mut self, out: &mut Vec<(AskId, ClientAsk)>) {
        out.extend(self.asks.queue.drain(..));
    }

    /// Handles the answer to a request. An answer to a request that is no longer pending is ignored.
    pub fn handle_meta(&mut self, now: Time, id: AskId, answer: ClientAnswer) {
        let Some((key, ask)) = self.asks.out.remove(&id) else { return };
        match &answer {
            ClientAnswer::Segments { view, .. } | ClientAnswer::Refreshed(view) => self.learn_addresses(view),
            _ => {}
        }
        let Some(key) = key else { return self.open_answered(now, id, ask, answer) };
        let Some(open) = self.find(key) else { return };
        match &ask {
            ClientAsk::Segments { .. } | ClientAsk::Refresh { .. } => {
                open.volume.handle_meta(now, &ask, answer);
                self.wanted_stale = true;
            }
            ClientAsk::Keepalive { .. } => {
                open.keepalive = None;
                match answer {
                    ClientAnswer::Refused(why) if why.code == codes::SESSION_FENCED => open.volume.fail(Errno::Fenced),
                    ClientAnswer::Refused(why) if why.code == codes::VOLUME_UNKNOWN => open.volume.fail(Errno::Gone),
                    ClientAnswer::Alive { len_epoch, len_bytes, limits, faults, when_full } => {
                        open.set_faults(now, &faults);
                        if open.volume.set_limits(now, limits) {
                            tracing::info!(name = open.info.name, ?limits, "the volume has other I/O limits");
                        }
                        if open.volume.set_when_full(when_full) {
                            tracing::info!(name = open.info.name, %when_full, "writes to a full pool have another policy");
                        }
                        if open.volume.set_length(len_epoch, len_bytes) {
                            // Meta may wait for the answer of a volume that is to get shorter.
                            open.keepalive_at = now;
                            open.info.len_bytes = len_bytes;
                            let (volume, name) = (open.key, open.info.name.clone());
                            tracing::info!(name, len_bytes, "the volume has another length");
                            self.events.push(ClientEvent::Resized { volume, len_bytes });
                        }
                    }
                    _ => {}
                }
            }
            ClientAsk::Close { .. } => self.parted(now, key, &answer),
            ClientAsk::Open { .. } => unreachable!("an open belongs to no volume yet"),
        }
    }

    fn open_answered(&mut self, now: Time, id: AskId, ask: ClientAsk, answer: ClientAnswer) {
        let ClientAsk::Open { name, .. } = ask else { unreachable!("only an open belongs to no volume") };
        match answer {
            ClientAnswer::Opened(opened) => self.opened(id, name, now, &opened),
            ClientAnswer::Refused(why) => self.events.push(ClientEvent::OpenRefused { ask: id, why }),
            other => {
                let message = format!("meta answered an open of {name} with {other:?}");
                let why = Refusal { code: codes::META_UNAVAILABLE, message };
                self.events.push(ClientEvent::OpenRefused { ask: id, why });
            }
        }
    }

    pub(crate) fn learn_addresses(&mut self, view: &MapView) {
        let Some((_, bus)) = &mut self.bus else { return };
        for osd in &view.osds {
            bus.set_osd_addr(osd.osd, osd.addr);
        }
        self.wanted_stale = true;
    }

    /// Asks meta for the address of an OSD that cannot be reached: it may have come back at another one.
    pub(crate) fn ask_where(&mut self, now: Time, osd: OsdId) {
        if now < self.asks.where_at {
            return;
        }
        for open in self.volumes.iter().flatten() {
            let pgs: Vec<_> = open.volume.pgs_on(osd).take(PGS_PER_ASK_MAX).collect();
            if !pgs.is_empty() {
                self.asks.where_at = now + self.config.tuning.where_pause;
                self.asks.put(open.key, ClientAsk::Refresh { pgs });
                return;
            }
        }
    }

    /// Sends the keepalive of a volume's holder when it is due.
    pub(crate) fn keep_alive(&mut self, now: Time, slot: usize) {
        let patience = self.config.tuning.keepalive_patience;
        let Some(open) = self.volumes[slot].as_deref_mut() else { return };
        let waiting = open.keepalive.is_some_and(|(_, since)| now < since + patience);
        if !open.holds() || now < open.keepalive_at || waiting {
            return;
        }
        let (volume, session) = (open.volume.id(), open.volume.session());
        let unreached = open.volume.osds().collect::<BTreeSet<_>>();
        let unreached = self.lost.keys().copied().filter(|osd| unreached.contains(osd)).take(UNREACHED_MAX).collect();
        let (len_epoch, len_bytes) = open.volume.used();
        let keepalive = ClientAsk::Keepalive { volume, session, unreached, len_epoch, len_bytes };
        let id = self.asks.put(open.key, keepalive);
        open.keepalive = Some((id, now));
        open.keepalive_at = now + KEEPALIVE;
    }

    /// Takes a closing volume one step further when it can go on.
    pub(crate) fn part(&mut self, now: Time, slot: usize) {
        let tuning = self.config.tuning;
        let Some(open) = self.volumes[slot].as_deref_mut() else { return };
        let due = match open.stage {
            Stage::Open => false,
            Stage::Closing => open.is_quiet(),
            Stage::Parting { at, .. } => now >= at,
        };
        if !due {
            return;
        }
        let tries = if let Stage::Parting { tries, .. } = open.stage { tries } else { 0 };
        if !open.holds() || tries >= tuning.parting_tries_max {
            return self.forget(slot);
        }
        let (volume, session) = (open.volume.id(), open.volume.session());
        open.stage = Stage::Parting { tries: tries + 1, at: now + tuning.keepalive_patience };
        self.asks.put(open.key, ClientAsk::Close { volume, session });
    }

    /// Tells meta at once that a closing volume has no holder any more. Requests in flight do not delay this: their user is gone.
    /// [`ClientEvent::Closed`] follows as after [`Client::close`].
    pub fn abandon(&mut self, now: Time, key: VolumeKey) {
        let patience = self.config.tuning.keepalive_patience;
        let Some(open) = self.find(key) else { return };
        if open.stage != Stage::Closing {
            return;
        }
        if !open.holds() {
            return self.forget(usize::from(key.slot));
        }
        let (volume, session) = (open.volume.id(), open.volume.session());
        open.stage = Stage::Parting { tries: 1, at: now + patience };
        self.asks.put(key, ClientAsk::Close { volume, session });
    }

    fn parted(&mut self, now: Time, key: VolumeKey, answer: &ClientAnswer) {
        let pause = self.config.tuning.parting_pause;
        let Some(open) = self.find(key) else { return };
        if let (ClientAnswer::Refused(why), Stage::Parting { at, .. }) = (answer, &mut open.stage)
            && why.code == codes::META_UNAVAILABLE
        {
            *at = now + pause;
            return;
        }
        self.forget(usize::from(key.slot));
    }

    fn forget(&mut self, slot: usize) {
        let open = self.volumes[slot].take().expect("it is open until now");
        self.serial = self.serial.max(open.volume.serial());
        self.asks.out.retain(|_, (volume, _)| *volume != Some(open.key));
        self.wanted_stale = true;
        self.events.push(ClientEvent::Closed { volume: open.key });
    }

    /// Returns the time of the volume's next message to meta.
    pub(crate) fn deadline_of(&self, open: &OpenVolume) -> Time {
        let patience = self.config.tuning.keepalive_patience;
        let keepalive = match (open.holds(), open.keepalive) {
            (false, _) => Time::NEVER,
            (true, None) => open.keepalive_at,
            (true, Some((_, since))) => open.keepalive_at.max(since + patience),
        };
        match open.stage {
            Stage::Open => keepalive,
            Stage::Closing if open.is_quiet() => Time::ZERO,
            Stage::Closing => keepalive,
            Stage::Parting { at, .. } => keepalive.min(at),
        }
    }
}
