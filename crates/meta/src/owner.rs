//! The task that owns [`Leader`]: it makes the calls to the store, takes inputs, and performs actions.

use crate::metrics::{ClusterMetrics, MetaMetrics};
use crate::{MetaError, Role};
use control::admin::{AdminAnswer, AdminAsk};
use control::events::{Event, Level};
use control::lead::{Answer, Call, KEEP_EVERY, Leader, Step};
use control::{ClientReq, Control, ControlAction, ControlConfig, Now, Standing, StreamId, Token};
use metastore::{Campaign, Store, StoreError};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use types::codes;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdUp, Refusal};
use types::failpoint::{Point, pass};
use types::{ClusterId, Time};

/// Interval at which calls without a caller are dropped, and the figures of the cluster are set.
const SHOW_EVERY: Duration = KEEP_EVERY;
/// Most inputs of one turn.
const TURN_MAX: usize = 512;

/// Inputs of the owner, sent by the services.
#[allow(clippy::large_enum_variant)] // short-lived, and a Hello is rare
pub(crate) enum Input {
    OsdNew {
        stream: StreamId,
        down: mpsc::Sender<OsdDown>,
    },
    Osd {
        stream: StreamId,
        up: OsdUp,
    },
    OsdGone {
        stream: StreamId,
    },
    Client {
        client: u64,
        id: u64,
        address: String,
        ask: ClientAsk,
        answer: oneshot::Sender<Answered<ClientAnswer>>,
    },
    /// A connection from this address has ended.
    ClientGone {
        address: String,
    },
    Admin {
        by: String,
        ask: AdminAsk,
        answer: oneshot::Sender<Answered<Result<AdminAnswer, Refusal>>>,
    },
}

/// An answer, or that this meta does not lead. When the sender is dropped, the outcome is unknown.
pub(crate) enum Answered<T> {
    Answer(T),
    NotLeading,
}

enum Waiting {
    Client(oneshot::Sender<Answered<ClientAnswer>>),
    Admin(oneshot::Sender<Answered<Result<AdminAnswer, Refusal>>>),
}

impl Waiting {
    fn is_closed(&self) -> bool {
        match self {
            Waiting::Client(answer) => answer.is_closed(),
            Waiting::Admin(answer) => answer.is_closed(),
        }
    }
}

/// Waits until this meta is asked to stop.
pub(crate) async fn stop_asked(stopped: &mut watch::Receiver<bool>) {
    // An error means that the handle was dropped without a stop: the meta then runs on.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}

pub(crate) struct Owner {
    store: Box<dyn Store>,
    advertise: String,
    inbox: mpsc::Receiver<Input>,
    role: watch::Sender<Role>,
    stopped: watch::Receiver<bool>,
    metrics: MetaMetrics,
    cluster: ClusterMetrics,
    /// Version of the program, for display only.
    pub version: String,
    started: Instant,
    streams: BTreeMap<StreamId, mpsc::Sender<OsdDown>>,
    waiting: BTreeMap<Token, Waiting>,
    next_token: u64,
    /// The state of the records as last logged: each change is one line.
    standing: Standing,
    foreign_told: bool,
    /// The leader that the log last named.
    followed: Option<String>,
    /// Since when the store does not answer.
    outage: Option<Instant>,
}

impl Owner {
    pub fn new(
        store: Box<dyn Store>,
        advertise: String,
        inbox: mpsc::Receiver<Input>,
        role: watch::Sender<Role>,
        stopped: watch::Receiver<bool>,
        (metrics, cluster): (MetaMetrics, ClusterMetrics),
    ) -> Owner {
        let now = Instant::now();
        Owner {
            store,
            advertise,
            inbox,
            role,
            stopped,
            metrics,
            cluster,
            version: String::new(),
            started: now,
            streams: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_token: 1,
            standing: Standing::Waiting,
            foreign_told: false,
            followed: None,
            outage: None,
        }
    }

    fn now(&self) -> Now {
        let mono = self.started.elapsed();
        #[allow(clippy::disallowed_methods)] // the edge: records carry the time of day, decisions do not
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        // The clock does not start at zero, so that "long ago" differs from "never".
        Now { mono: Time::ZERO + Duration::from_secs(3600) + mono, wall_ms }
    }

    /// Returns the time of day in milliseconds of the Unix clock.
    pub fn wall_ms(&self) -> u64 {
        self.now().wall_ms
    }

    /// Campaigns and leads until it is stopped.
    pub async fn run(mut self) -> Result<(), MetaError> {
        let fresh = ClusterId(uuid::Uuid::new_v4().into_bytes());
        let mut leader = Leader::new(ControlConfig::default(), &self.advertise, fresh, self.store.is_leased());
        leader.set_version(&self.version);
        let mut show = interval(SHOW_EVERY);
        show.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match leader.step(self.now()) {
                Step::Call(call) => {
                    let answer = self.call(&call).await;
                    if let Err(unusable) = leader.handle_answer(self.now(), answer) {
                        self.call(&Call::Resign).await;
                        return Err(unusable.into());
                    }
                }
                Step::Leads => self.begin_leadership(leader.control().expect("it leads")),
                Step::Act(action) => self.act(leader.control_mut().expect("it leads"), action),
                Step::Ended => self.end_leadership(),
                Step::Wait(until) => {
                    if let Some(control) = leader.control() {
                        self.log_past(control);
                    }
                    let until = Instant::now() + until.since(self.now().mono);
                    if self.wait(leader.control_mut(), until, &mut show).await {
                        break;
                    }
                }
            }
        }
        if leader.control().is_some() {
            self.end_leadership();
            self.call(&Call::Resign).await;
        }
        Ok(())
    }

    /// Makes a call to the store; failures are reported here.
    async fn call(&mut self, call: &Call) -> Answer {
        let sent = Instant::now();
        let done = match call {
            Call::Campaign => return self.campaign().await,
            Call::Load => self.store.load().await.map(Answer::Items),
            Call::Commit(txn) => self.store.commit(txn).await.map(|()| Answer::Done),
            Call::Keep => self.store.keep().await.map(|()| Answer::Done),
            Call::Resign => self.store.resign().await.map(|()| Answer::Done),
        };
        match (call, done) {
            (Call::Commit(_), Ok(answer)) => {
                pass(Point::MetaCommitted);
                self.metrics.commits.inc();
                telemetry::observe(&self.metrics.commit_seconds, sent.elapsed());
                answer
            }
            (_, Ok(answer)) => {
                if matches!(&answer, Answer::Items(items) if items.is_empty()) {
                    tracing::info!("the store holds no records: a new cluster");
                }
                answer
            }
            (Call::Resign, Err(e)) => {
                tracing::warn!(%e, "could not give the leadership up; it ends with its lease");
                Answer::Failed
            }
            (_, Err(e)) => {
                if !matches!(call, Call::Load) {
                    self.metrics.commit_failures.inc();
                }
                tracing::warn!(%e, "the leadership ended; campaigning again");
                Answer::Failed
            }
        }
    }

    async fn campaign(&mut self) -> Answer {
        let advertise = self.advertise.clone();
        match self.store.campaign(&advertise).await {
            Ok(Campaign::Won) => {
                self.outage_over();
                Answer::Won
            }
            Ok(Campaign::Lost { leader }) => {
                self.outage_over();
                self.follow(leader.clone(), None);
                Answer::Lost { leader }
            }
            Err(e) => {
                self.outage(&e);
                Answer::Failed
            }
        }
    }

    /// Waits for inputs, and passes them to `control`, or refuses them when this meta does not lead; `true` when stopped.
    async fn wait(&mut self, control: Option<&mut Control>, until: Instant, show: &mut Interval) -> bool {
        let mut inputs = Vec::new();
        tokio::select! {
            () = stop_asked(&mut self.stopped) => return true,
            () = sleep_until(until) => {}
            _ = show.tick() => {
                if let Some(control) = control {
                    self.sweep(control);
                    self.show(control);
                }
            }
            got = self.inbox.recv_many(&mut inputs, TURN_MAX) => {
                if got == 0 {
                    return true;
                }
                match control {
                    Some(control) => inputs.into_iter().for_each(|input| self.take(control, input)),
                    None => inputs.into_iter().for_each(refuse),
                }
            }
        }
        false
    }

    fn follow(&mut self, leader: Option<String>, why: Option<String>) {
        if let Some(leader) = &leader
            && self.followed.as_ref() != Some(leader)
        {
            tracing::info!(%leader, "standby: another metadata server leads");
            self.followed = Some(leader.clone());
        }
        let role = Role::Following { leader, why };
        self.role.send_if_modified(|now| {
            let changed = *now != role;
            *now = role;
            changed
        });
    }

    /// Handles a campaign without an answer: one line reports it.
    fn outage(&mut self, e: &StoreError) {
        if self.outage.is_none() {
            tracing::warn!(%e, "leader election failed: the store of records does not answer; retrying, and attached volumes go on");
        }
        self.outage.get_or_insert_with(Instant::now);
        self.follow(None, Some(e.to_string()));
    }

    fn outage_over(&mut self) {
        if let Some(since) = self.outage.take() {
            tracing::warn!(seconds = since.elapsed().as_secs(), "the metadata store answers again");
        }
    }

    fn begin_leadership(&mut self, control: &Control) {
        (self.standing, self.foreign_told) = (Standing::Waiting, false);
        self.metrics.leading.set(1);
        tracing::info!(address = %self.advertise, "this meta leads");
        // The figures are set before they can be scraped: the gauges of a new leader are not zeros.
        self.show(control);
        self.role.send_replace(Role::Leading);
    }

    fn end_leadership(&mut self) {
        self.followed = None;
        self.follow(None, None);
        self.streams.clear();
        // Requests are dropped unanswered: they may have been done or not.
        self.waiting.clear();
        self.metrics.leading.set(0);
        self.metrics.osd_streams.set(0);
    }

    /// Drops the calls whose caller went away.
    fn sweep(&mut self, control: &mut Control) {
        let gone: Vec<Token> = self.waiting.iter().filter(|(_, w)| w.is_closed()).map(|(token, _)| *token).collect();
        for token in gone {
            self.waiting.remove(&token);
            control.handle_cancel(token);
        }
    }

    fn show(&self, control: &Control) {
        self.metrics.osd_streams.set(i64::try_from(self.streams.len()).unwrap_or(i64::MAX));
        self.cluster.show(control, self.now());
    }

    fn token(&mut self, waiting: Waiting) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.waiting.insert(token, waiting);
        self.metrics.requests.inc();
        token
    }

    fn take(&mut self, control: &mut Control, input: Input) {
        match input {
            Input::OsdNew { stream, down } => drop(self.streams.insert(stream, down)),
            Input::Osd { stream, up } => {
                if self.streams.contains_key(&stream) {
                    control.handle_osd(self.now(), stream, up);
                }
            }
            Input::OsdGone { stream } => {
                if self.streams.remove(&stream).is_some() {
                    control.handle_osd_gone(stream);
                }
            }
            Input::Client { client, id, address, ask, answer } => {
                let token = self.token(Waiting::Client(answer));
                control.handle_client(ClientReq { token, client, id, address, ask });
            }
            Input::ClientGone { address } => control.handle_client_gone(address),
            Input::Admin { by, ask, answer } => {
                let token = self.token(Waiting::Admin(answer));
                control.handle_admin_of(token, by, ask);
            }
        }
    }

    /// Logs one line when the records turn out to be those of the cluster, or not.
    fn log_past(&mut self, control: &Control) {
        let standing = control.standing();
        if std::mem::replace(&mut self.standing, standing) != standing {
            match standing {
                Standing::Waiting => {}
                Standing::Sound => tracing::info!("a majority of the OSDs confirms the records: changes are allowed"),
                Standing::Behind => {
                    let (code, reasons) = (codes::STORE_BEHIND, control.behind_reasons().join("; "));
                    tracing::error!(
                        code,
                        reasons,
                        "the metadata store went back in time: nothing is changed; see `basalt meta recover --dry-run`"
                    );
                }
            }
        }
        if let Some(words) = control.foreign_words().filter(|_| !std::mem::replace(&mut self.foreign_told, true)) {
            tracing::warn!("{words}");
        }
    }

    fn act(&mut self, control: &mut Control, action: ControlAction) {
        match action {
            ControlAction::Commit(_) => unreachable!("commits are performed by the caller"),
            ControlAction::ToOsd { stream, down } => {
                if self.streams.get(&stream).is_some_and(|queue| queue.try_send(down).is_err()) {
                    // The OSD does not read its stream: it must connect again and report its state.
                    self.streams.remove(&stream);
                    control.handle_osd_gone(stream);
                }
            }
            ControlAction::CloseOsd { stream } => {
                self.streams.remove(&stream);
            }
            ControlAction::Answer { token, answer } => {
                if let Some(Waiting::Client(waiting)) = self.waiting.remove(&token) {
                    let _ = waiting.send(Answered::Answer(answer));
                }
            }
            ControlAction::Event(event) => log_event(&event),
            ControlAction::AdminAnswer { token, answer, .. } => {
                if let Some(Waiting::Admin(waiting)) = self.waiting.remove(&token) {
                    let _ = waiting.send(Answered::Answer(answer));
                }
            }
        }
    }
}

/// Answers that this meta does not lead.
fn refuse(input: Input) {
    match input {
        Input::Client { answer, .. } => drop(answer.send(Answered::NotLeading)),
        Input::Admin { answer, .. } => drop(answer.send(Answered::NotLeading)),
        // Dropping the sender of a stream ends it.
        Input::OsdNew { .. } | Input::Osd { .. } | Input::OsdGone { .. } | Input::ClientGone { .. } => {}
    }
}

/// Logs a committed event.
fn log_event(event: &Event) {
    let Event { seq, kind, subject, by, text, .. } = event;
    match event.level {
        Level::Info => tracing::info!(seq, kind, subject, by, "{text}"),
        Level::Warning => tracing::warn!(seq, kind, subject, by, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metastore::MemStore;

    /// Makes calls and performs actions until the server waits.
    async fn settle(owner: &mut Owner, leader: &mut Leader, now: Now) {
        loop {
            match leader.step(now) {
                Step::Call(call) => {
                    let answer = owner.call(&call).await;
                    leader.handle_answer(now, answer).expect("sound records");
                }
                Step::Leads => owner.begin_leadership(leader.control().expect("it leads")),
                Step::Act(action) => owner.act(leader.control_mut().expect("it leads"), action),
                Step::Ended => owner.end_leadership(),
                Step::Wait(_) => return,
            }
        }
    }

    #[tokio::test]
    async fn a_leader_that_was_stopped_asks_the_store_before_it_answers() {
        let image = MemStore::new();
        let (_inbox, inbox) = mpsc::channel(1);
        let (_stop, stopped) = watch::channel(false);
        let (role, seen) = watch::channel(Role::Following { leader: None, why: None });
        let registry = telemetry::Registry::default();
        let metrics = (MetaMetrics::new(&registry), ClusterMetrics::new(&registry));
        let mut owner = Owner::new(Box::new(image.another()), "a:1".to_owned(), inbox, role, stopped, metrics);
        let mut leader = Leader::new(ControlConfig::default(), "a:1", ClusterId([1; 16]), owner.store.is_leased());
        let mut now = owner.now();
        settle(&mut owner, &mut leader, now).await;
        assert_eq!(*seen.borrow(), Role::Leading);
        let status = |owner: &mut Owner, leader: &mut Leader| {
            let (answer, told) = oneshot::channel();
            owner.take(
                leader.control_mut().expect("it leads"),
                Input::Admin { by: String::new(), ask: AdminAsk::Status, answer },
            );
            told
        };
        let told = status(&mut owner, &mut leader);
        settle(&mut owner, &mut leader, now).await;
        assert!(matches!(told.await, Ok(Answered::Answer(Ok(_)))));

        // Another meta takes over while this one is stopped; its memory does not show that.
        image.another().seize("b:1");
        now.mono = now.mono + Duration::from_secs(2);
        let told = status(&mut owner, &mut leader);
        settle(&mut owner, &mut leader, now).await;
        assert!(told.await.is_err(), "what it would have said may be old");
        assert_eq!(*seen.borrow(), Role::Following { leader: None, why: None });
    }
}
