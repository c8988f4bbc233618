//! The metadata servers in the simulator: the real `control` over a store that survives crashes.
//!
//! Either one server runs alone, on a store without elections, or one to three servers run over a modelled etcd. The process of
//! a server is the product's [`Leader`] and, with etcd, its [`control::etcd::Session`]. This module carries their requests, and
//! does what the services of a server do: it knows the role, the streams and the waiting clients.
//!
//! A transaction is in the store from the moment it is committed. If a server dies before it hears of that, the next one
//! finds the transaction.

mod etcd;
mod server;
mod store;
mod strikes;

pub use etcd::Copy;
pub use server::finder;
pub use store::Fate;
pub use strikes::Fallen;

use crate::check::leaders::Leaders;
use crate::mail::{Mail, Post};
use control::admin::{AdminAsk, OsdRegister};
use control::find::{CLIENT_RETRY_AFTER, Finder, NAMED_AFTER, patience};
use control::lead::{Leader, Step};
use control::{ClientReq, Control, ControlAction, ControlConfig, Records, Standing, StreamId, Token};
use etcd::Etcd;
use server::{Server, Waiting, address, number};
use std::collections::BTreeMap;
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdUp, Refusal};
use types::cut::{CutEnd, SnapshotOrder};
use types::{ClusterId, OsdId, OsdUuid, Time};

/// Time after which a connection to a server that is silent breaks, or is not made.
const SILENCE: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A client's request under way.
pub struct Asked {
    pub client: usize,
    pub life: u32,
    pub id: u64,
    /// When the client asked first.
    pub since: Time,
}

/// Answer of a server to an OSD that opens a stream.
pub enum Dialed {
    Open,
    /// It does not lead; it may name the leader.
    Follows(Option<String>),
    Silent(Duration),
}

/// All metadata servers and their store.
pub struct Metas {
    cluster: ClusterId,
    config: ControlConfig,
    servers: Vec<Server>,
    /// The store is an etcd, and the servers elect a leader.
    elects: bool,
    etcd: Etcd,
    /// Requests to the store and their replies take no time: the first election.
    at_once: bool,
    /// Fault of the next commit of a server.
    fates: BTreeMap<usize, Fate>,
    pub(super) doomed: Option<usize>,
    laws: Leaders,
    finders: BTreeMap<usize, Finder>,
    next_token: u64,
    /// Commands that are followed, with the times of their answers and the codes of refusals.
    followed: BTreeMap<u64, Option<(Time, Option<u32>)>>,
    pauses: u64,
}

impl Metas {
    /// Returns servers that do not run. `over_etcd`: how many elect a leader through an etcd; `None`: one runs alone.
    pub fn new(cluster: ClusterId, config: ControlConfig, over_etcd: Option<usize>) -> Metas {
        let mut etcd = Etcd::default();
        assert!(etcd.commit(&control::new_cluster(cluster, 0)), "an empty store takes everything");
        Metas {
            cluster,
            config,
            servers: (0..over_etcd.unwrap_or(1)).map(|_| Server::new()).collect(),
            elects: over_etcd.is_some(),
            etcd,
            at_once: false,
            fates: BTreeMap::new(),
            doomed: None,
            laws: Leaders::default(),
            finders: BTreeMap::new(),
            next_token: 0,
            followed: BTreeMap::new(),
            pauses: 0,
        }
    }

    /// Whether the servers elect their leader.
    pub fn elects(&self) -> bool {
        self.elects
    }

    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Starts the servers that do not run.
    pub fn start(&mut self, now: Time, post: &mut Post) {
        for n in 0..self.servers.len() {
            if self.servers[n].leader.is_some() {
                continue;
            }
            let address = self.elects.then(|| address(n));
            let leader = Leader::new(self.config, address.as_deref().unwrap_or_default(), self.cluster, self.elects);
            self.servers[n].begin(leader, address.as_deref());
            self.at_once = self.elects && self.laws.counts().0 == 0;
            self.drive(n, now, post);
            self.at_once = false;
        }
    }

    /// Whether a process of any server runs.
    pub fn is_up(&self) -> bool {
        self.servers.iter().any(|server| server.leader.is_some())
    }

    /// Returns the server that leads by the store, or else one that takes itself for the leader.
    pub fn leader(&self) -> Option<usize> {
        let believes = || self.servers.iter().position(|server| server.leads);
        self.elected().or_else(believes)
    }

    /// Returns the server that leads by the store, and knows that.
    fn elected(&self) -> Option<usize> {
        if !self.elects {
            return self.servers[0].control().map(|_| 0);
        }
        let fence = self.etcd.election()?;
        let (n, life) = self.laws.winner(fence)?;
        let server = &self.servers[n];
        let election = server.session.as_ref()?.election()?;
        (server.leads && server.life == life && election.fence == fence).then_some(n)
    }

    /// Returns the control plane of the elected server.
    pub fn control(&self) -> Option<&Control> {
        self.servers[self.elected()?].control()
    }

    /// Returns a copy of the store.
    pub fn copy(&self) -> Copy {
        self.etcd.copy()
    }

    /// Replaces the store by an earlier copy. No meta runs.
    pub fn restore(&mut self, copy: Copy) {
        assert!(!self.is_up(), "a store is exchanged under no running process");
        self.etcd.restore(copy);
        self.laws.replaced(self.stored_revision());
    }

    /// Returns the revision of the records; 0 when no meta leads.
    pub fn revision(&self) -> u64 {
        self.control().map_or(0, |control| control.records().counters.revision)
    }

    /// Whether the leader would move no replica now.
    pub fn plans_no_move(&self, now: Time) -> bool {
        let Some(n) = self.elected() else { return false };
        self.control().is_some_and(|control| control.plans_no_move(self.servers[n].moment(now)))
    }

    /// Returns the leader's judgement of its records; `None` when no meta leads.
    pub fn standing(&self) -> Option<Standing> {
        self.control().map(Control::standing)
    }

    /// Returns the committed records; `None` while a transaction is on its way, or no meta leads.
    pub fn records(&self) -> Option<&Records> {
        self.control().filter(|c| !c.is_committing()).map(Control::records)
    }

    /// Returns how many elections were won, and how many transactions of elected servers took effect.
    pub fn counts(&self) -> (u64, u64) {
        self.laws.counts()
    }

    /// Checks the laws of the election.
    ///
    /// # Errors
    /// The first violation.
    pub fn laws_hold(&mut self) -> Result<(), String> {
        if self.elects
            && let Some(n) = self.elected()
            && let Some(control) = self.servers[n].control().filter(|control| !control.is_committing())
        {
            self.laws.knows((n, self.servers[n].life), control.records().counters.revision);
        }
        self.laws.failure.clone().map_or(Ok(()), Err)
    }

    /// Lets an OSD try to open a stream.
    pub fn dial(&self, address: &str, osd: usize) -> Dialed {
        let server = &self.servers[number(address)];
        if server.cut.osds.contains(&osd) {
            Dialed::Silent(CONNECT_TIMEOUT)
        } else if server.paused.is_some() {
            Dialed::Silent(SILENCE)
        } else if server.leads {
            Dialed::Open
        } else {
            Dialed::Follows(server.named.clone())
        }
    }

    pub fn open_stream(&mut self, address: &str, stream: u64, osd: usize) {
        self.servers[number(address)].streams.insert(stream, osd);
    }

    fn of_stream(&self, stream: u64) -> Option<usize> {
        self.servers.iter().position(|server| server.streams.contains_key(&stream))
    }

    /// Whether messages on this stream arrive.
    pub fn carries(&self, stream: u64) -> bool {
        !self.servers.iter().any(|server| server.broken.contains(&stream))
    }

    pub fn osd(&mut self, now: Time, osd: usize, stream: u64, up: OsdUp, post: &mut Post) {
        let Some(n) = self.of_stream(stream).filter(|_| self.carries(stream)) else { return };
        let server = &mut self.servers[n];
        if server.paused.is_some() {
            return server.held.push(Mail::ToMeta { osd, stream, up });
        }
        let moment = server.moment(now);
        if let Some(control) = server.leader.as_mut().and_then(Leader::control_mut) {
            control.handle_osd(moment, StreamId(stream), up);
            self.drive(n, now, post);
        }
    }

    pub fn stream_gone(&mut self, now: Time, stream: u64, post: &mut Post) {
        let Some(n) = self.of_stream(stream) else { return };
        let server = &mut self.servers[n];
        if server.paused.is_some() {
            return server.held.push(Mail::StreamGone { stream });
        }
        server.streams.remove(&stream);
        server.broken.remove(&stream);
        if let Some(control) = server.leader.as_mut().and_then(Leader::control_mut) {
            control.handle_osd_gone(StreamId(stream));
            self.drive(n, now, post);
        }
    }

    /// Takes a client's request at the server that the client tries now, or refuses it.
    pub fn ask(&mut self, now: Time, asked: Asked, ask: ClientAsk, post: &mut Post) {
        if !self.elects {
            return match self.servers[0].control().is_some() {
                true => self.take_ask(0, now, asked, ask, post),
                false => refuse(now, &asked, "no meta answers", post),
            };
        }
        if patience(&ask).is_some_and(|limit| now >= asked.since + limit) {
            return refuse(now, &asked, "no metadata server gave an answer", post);
        }
        let servers = self.servers.len();
        let finder = self.finders.entry(asked.client).or_insert_with(|| finder(servers));
        let n = number(&finder.take().expect("there are servers"));
        let server = &mut self.servers[n];
        let Asked { client, life, id, since } = asked;
        let again = Mail::Ask { client, life, id, ask: ask.clone(), since };
        if server.cut.clients {
            post.put(now + CONNECT_TIMEOUT, again);
        } else if server.paused.is_some() {
            finder.failed(Some(address(n)));
            server.held.push(again);
        } else if server.leads {
            // The connection to the leader stays.
            finder.failed(Some(address(n)));
            self.take_ask(n, now, asked, ask, post);
        } else {
            finder.failed(server.named.clone());
            let after = if server.named.is_some() { NAMED_AFTER } else { CLIENT_RETRY_AFTER };
            post.put(now + after, again);
        }
    }

    fn take_ask(&mut self, n: usize, now: Time, asked: Asked, ask: ClientAsk, post: &mut Post) {
        let Asked { client, life, id, since } = asked;
        self.next_token += 1;
        let server = &mut self.servers[n];
        server.waiting.insert(self.next_token, Waiting { client, life, id, ask: ask.clone(), since });
        let control = server.leader.as_mut().and_then(Leader::control_mut).expect("it leads");
        control.handle_client(ClientReq {
            token: Token(self.next_token),
            client: (client as u64) << 32 | u64::from(life),
            id,
            address: format!("client{client}"),
            ask,
        });
        self.drive(n, now, post);
    }

    /// Registers an OSD, as its format does. Ids are given out in the order of the calls.
    pub fn register(&mut self, now: Time, uuid: OsdUuid, osd: OsdId, capacity_bytes: u64, post: &mut Post) {
        let (rack, zone) = (String::new(), String::new());
        let ask = OsdRegister {
            osd: None,
            uuid,
            host: format!("host{}", osd.0),
            rack,
            zone,
            capacity_bytes,
            device_class: None,
            replaces: None,
        };
        self.admin(now, AdminAsk::OsdRegister(ask), post);
    }

    /// Submits an administrator's command to the leader; its answer is dropped.
    pub fn admin(&mut self, now: Time, ask: AdminAsk, post: &mut Post) {
        self.admin_with(now, ask, post, false);
    }

    /// Submits a command; [`Metas::answer_to`] tells of the number that is returned.
    pub fn admin_followed(&mut self, now: Time, ask: AdminAsk, post: &mut Post) -> Option<u64> {
        self.admin_with(now, ask, post, true)
    }

    /// Returns when a command was answered, and the code of a refusal.
    pub fn answer_to(&self, command: u64) -> Option<(Time, Option<u32>)> {
        self.followed.get(&command).copied().flatten()
    }

    fn admin_with(&mut self, now: Time, ask: AdminAsk, post: &mut Post, is_followed: bool) -> Option<u64> {
        let n = self.elected().filter(|n| self.servers[*n].paused.is_none())?;
        self.next_token += 1;
        let command = self.next_token;
        if is_followed {
            self.followed.insert(command, None);
        }
        let control = self.servers[n].leader.as_mut().and_then(Leader::control_mut).expect("it leads");
        control.handle_admin(Token(command), ask);
        self.drive(n, now, post);
        Some(command)
    }

    /// Drives the server, if the posted poll is due.
    pub fn poll_due(&mut self, now: Time, (n, life): (usize, u32), post: &mut Post) {
        let server = &mut self.servers[n];
        if life == server.life && now >= server.poll_at {
            server.poll_at = Time::NEVER;
            self.drive(n, now, post);
        }
    }

    /// Lets a server act until it waits, then notes when it wants to act again.
    fn drive(&mut self, n: usize, now: Time, post: &mut Post) {
        loop {
            let server = &mut self.servers[n];
            let moment = server.moment(now);
            let Some(leader) = server.leader.as_mut().filter(|_| server.paused.is_none()) else { return };
            if leader.is_calling() {
                return;
            }
            let planned = leader.planned_at();
            let step = leader.step(moment);
            if leader.planned_at() != planned {
                server.planned = now;
            }
            match step {
                Step::Call(call) => self.call(n, now, call, post),
                Step::Leads => (server.leads, server.named) = (true, None),
                Step::Act(action) => self.act(n, now, action, post),
                Step::Ended => self.lead_no_more(n, now, post),
                Step::Wait(until) => {
                    let at = server.clock.global(until).max(Time(now.0 + 1));
                    if at < server.poll_at {
                        server.poll_at = at;
                        post.put(at, Mail::MetaPoll { meta: n, life: server.life });
                    }
                    return;
                }
            }
        }
    }

    fn act(&mut self, n: usize, now: Time, action: ControlAction, post: &mut Post) {
        self.hear(n, &action);
        let server = &mut self.servers[n];
        match action {
            ControlAction::Commit(_) => unreachable!("a commit is a call"),
            ControlAction::ToOsd { stream, down } => {
                if let Some(osd) = server.streams.get(&stream.0) {
                    post.send(now, Mail::ToOsd { osd: *osd, stream: stream.0, down });
                }
            }
            ControlAction::CloseOsd { stream } => {
                server.streams.remove(&stream.0);
                post.send(now, Mail::StreamGone { stream: stream.0 });
            }
            ControlAction::Answer { token, answer } => {
                if let Some(Waiting { client, life, id, .. }) = server.waiting.remove(&token.0) {
                    post.send(now, Mail::Answer { client, life, id, answer });
                }
            }
            ControlAction::AdminAnswer { token, answer, .. } => {
                let code = answer.as_ref().err().map(|why| why.code);
                self.followed.entry(token.0).and_modify(|told| *told = Some((now, code)));
            }
            ControlAction::Event(_) => {}
        }
    }

    /// Shows the checker a message that leaves a server.
    fn hear(&mut self, n: usize, action: &ControlAction) {
        let told = matches!(
            action,
            ControlAction::ToOsd { .. } | ControlAction::Answer { .. } | ControlAction::AdminAnswer { .. }
        );
        let server = &self.servers[n];
        let election = server.session.as_ref().and_then(|session| session.election());
        if let (true, Some(election), Some(control)) = (told, election, server.control()) {
            let revision = if rests_on_an_intent(action) { 0 } else { control.records().counters.revision };
            self.laws.told((n, server.life), election.fence, server.planned, revision);
        }
    }

    /// Ends what depends on a leadership. Its clients ask again.
    fn lead_no_more(&mut self, n: usize, now: Time, post: &mut Post) {
        let server = &mut self.servers[n];
        server.leads = false;
        for stream in std::mem::take(&mut server.streams).into_keys() {
            post.send(now, Mail::StreamGone { stream });
        }
        server.broken.clear();
        self.ask_again(n, now, post);
    }

    /// Makes the clients whose requests wait at this server ask another one.
    fn ask_again(&mut self, n: usize, now: Time, post: &mut Post) {
        for Waiting { client, life, id, ask, since } in std::mem::take(&mut self.servers[n].waiting).into_values() {
            self.finders.entry(client).and_modify(|finder| finder.failed(None));
            post.put(now + CLIENT_RETRY_AFTER, Mail::Ask { client, life, id, ask, since });
        }
    }
}

fn refuse(now: Time, asked: &Asked, why: &str, post: &mut Post) {
    let Asked { client, life, id, .. } = *asked;
    let refusal = Refusal { code: codes::META_UNAVAILABLE, message: why.to_owned() };
    post.send(now, Mail::Answer { client, life, id, answer: ClientAnswer::Refused(refusal) });
}

/// Whether the message is an order of a cut. It rests on the intent alone, which a majority of the OSDs remembers, and leaves before the
/// transaction of its turn.
fn rests_on_an_intent(action: &ControlAction) -> bool {
    let ControlAction::ToOsd { down: OsdDown::Snapshots { order, .. }, .. } = action else { return false };
    match order {
        SnapshotOrder::Cut(_) => true,
        SnapshotOrder::Release { end, .. } => *end != CutEnd::Abort,
        SnapshotOrder::Remove { .. }
        | SnapshotOrder::Flatten { .. }
        | SnapshotOrder::Find { .. }
        | SnapshotOrder::Wipe { .. } => false,
    }
}
