//! The task that owns `Control`: it campaigns, leads, and performs actions.

use crate::metrics::{ClusterMetrics, MetaMetrics};
use crate::{MetaError, Role};
use control::admin::{AdminAnswer, AdminAsk};
use control::events::{Event, Level};
use control::{ClientReq, Control, ControlAction, ControlConfig, LoadError, Now, Records, Standing, StreamId, Token};
use metastore::{Campaign, Store, StoreError};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use types::codes;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdUp, Refusal};
use types::failpoint::{Point, pass};
use types::{ClusterId, Time};

/// Interval at which a follower checks whether there is a leader.
const CAMPAIGN_EVERY: Duration = Duration::from_millis(400);
/// Longest pause between two calls to a store that does not answer.
const CAMPAIGN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Interval at which the leadership is kept.
const KEEP_EVERY: Duration = Duration::from_millis(800);
/// A leader that has not heard from the store for this long asks it before it answers any request. Another
/// may lead by now, because a stopped process does not notice the end of its lease. The time is below the
/// lease of the election, by a margin for clocks of different speed.
const BELIEVE: Duration = Duration::from_secs(2);
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
    /// The store confirmed the leadership at this moment or later.
    kept: Instant,
    /// The state of the records as last logged: each change is one line.
    standing: Standing,
    foreign_told: bool,
    /// The leader that the log last named.
    followed: Option<String>,
    /// Since when the store does not answer, and the pause before the next call.
    outage: Option<(Instant, Duration)>,
}

/// Reason why a leadership ended.
enum Ended {
    Stopped,
    Failed(StoreError),
}

impl From<StoreError> for Ended {
    fn from(e: StoreError) -> Ended {
        Ended::Failed(e)
    }
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
            kept: now,
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
        loop {
            let advertise = self.advertise.clone();
            let asked = Instant::now();
            match self.store.campaign(&advertise).await {
                Ok(Campaign::Won) => {
                    self.outage_over();
                    self.kept = asked;
                    let ended = self.lead().await;
                    self.end_leadership();
                    if let Err(e) = self.store.resign().await {
                        tracing::warn!(%e, "could not give the leadership up; it ends with its lease");
                    }
                    match ended? {
                        Ended::Stopped => return Ok(()),
                        Ended::Failed(e) => tracing::warn!(%e, "the leadership ended; campaigning again"),
                    }
                }
                Ok(Campaign::Lost { leader }) => {
                    self.outage_over();
                    self.follow(leader, None);
                }
                Err(e) => self.outage(&e),
            }
            if self.stand_by().await {
                return Ok(());
            }
        }
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

    /// Handles a store that does not answer: one line reports it, and the pauses between calls grow.
    fn outage(&mut self, e: &StoreError) {
        let pause = match self.outage {
            None => {
                tracing::warn!(%e, "leader election failed: the store of records does not answer; retrying, and attached volumes go on");
                CAMPAIGN_EVERY
            }
            Some((_, pause)) => (pause * 2).min(CAMPAIGN_PAUSE_MAX),
        };
        let since = self.outage.map_or_else(Instant::now, |(since, _)| since);
        self.outage = Some((since, pause));
        self.follow(None, Some(e.to_string()));
    }

    fn outage_over(&mut self) {
        if let Some((since, _)) = self.outage.take() {
            tracing::warn!(seconds = since.elapsed().as_secs(), "the metadata store answers again");
        }
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

    /// Answers "not leading" until the next campaign; `true` when stopped.
    async fn stand_by(&mut self) -> bool {
        let until = Instant::now() + self.outage.map_or(CAMPAIGN_EVERY, |(_, pause)| pause);
        loop {
            tokio::select! {
                () = stop_asked(&mut self.stopped) => return true,
                () = sleep_until(until) => return false,
                input = self.inbox.recv() => match input {
                    None => return true,
                    Some(Input::Client { answer, .. }) => drop(answer.send(Answered::NotLeading)),
                    Some(Input::Admin { answer, .. }) => drop(answer.send(Answered::NotLeading)),
                    // Dropping the sender of a stream ends it.
                    Some(Input::OsdNew { .. } | Input::Osd { .. } | Input::OsdGone { .. } | Input::ClientGone { .. }) => {}
                },
            }
        }
    }

    async fn records(&mut self) -> Result<Result<Records, LoadError>, StoreError> {
        let mut items = self.store.load().await?;
        if items.is_empty() {
            let id = ClusterId(uuid::Uuid::new_v4().into_bytes());
            tracing::info!(%id, "a new cluster");
            let txn = control::new_cluster(id, self.now().wall_ms);
            self.store.commit(&txn).await?;
            items = self.store.load().await?;
        }
        Ok(Records::load(items))
    }

    /// Leads until the leadership ends. The outer error is one that a new leadership would meet again.
    async fn lead(&mut self) -> Result<Ended, MetaError> {
        let records = match self.records().await {
            Ok(records) => records?,
            Err(e) => return Ok(Ended::Failed(e)),
        };
        let mut control = Control::new(ControlConfig::default(), records, self.now());
        control.lead_as(&self.advertise);
        control.set_version(&self.version);
        (self.standing, self.foreign_told) = (Standing::Waiting, false);
        self.metrics.leading.set(1);
        tracing::info!(address = %self.advertise, "this meta leads");
        // The figures are set before they can be scraped: the gauges of a new leader are not zeros.
        self.show(&control);
        self.role.send_replace(Role::Leading);
        let ended = match self.turns(&mut control).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        if let Ended::Failed(_) = &ended {
            self.metrics.commit_failures.inc();
        }
        Ok(ended)
    }

    async fn turns(&mut self, control: &mut Control) -> Result<std::convert::Infallible, Ended> {
        let mut inputs = Vec::with_capacity(TURN_MAX);
        let mut keep = interval(KEEP_EVERY);
        keep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.perform(control).await?;
            let now = self.now();
            let wait = control.next_deadline(now).since(now.mono);
            tokio::select! {
                () = stop_asked(&mut self.stopped) => return Err(Ended::Stopped),
                () = sleep_until(Instant::now() + wait) => {}
                _ = keep.tick() => {
                    self.keep().await?;
                    self.sweep(control);
                    self.show(control);
                }
                got = self.inbox.recv_many(&mut inputs, TURN_MAX) => {
                    if got == 0 {
                        return Err(Ended::Stopped);
                    }
                    for input in inputs.drain(..) {
                        self.take(control, input);
                    }
                }
            }
        }
    }

    async fn keep(&mut self) -> Result<(), StoreError> {
        let asked = Instant::now();
        self.store.keep().await?;
        self.kept = asked;
        Ok(())
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
            Input::Admin { ask, answer } => {
                let token = self.token(Waiting::Admin(answer));
                control.handle_admin(token, ask);
            }
        }
    }

    /// Polls and performs until no action is left.
    async fn perform(&mut self, control: &mut Control) -> Result<(), StoreError> {
        let mut out = Vec::new();
        loop {
            control.poll(self.now(), &mut out);
            if out.is_empty() {
                self.log_past(control);
                return Ok(());
            }
            if self.kept.elapsed() >= BELIEVE {
                self.keep().await?;
            }
            // Actions that a commit releases are appended, so the order stays.
            let mut at = 0;
            while at < out.len() {
                let action = std::mem::replace(&mut out[at], ControlAction::CloseOsd { stream: StreamId(0) });
                at += 1;
                match action {
                    ControlAction::Commit(txn) => {
                        let sent = Instant::now();
                        self.store.commit(&txn).await?;
                        pass(Point::MetaCommitted);
                        self.metrics.commits.inc();
                        telemetry::observe(&self.metrics.commit_seconds, sent.elapsed());
                        control.handle_committed(&mut out);
                    }
                    other => self.act(control, other),
                }
            }
            out.clear();
            if self.kept.elapsed() > KEEP_EVERY {
                self.keep().await?;
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
                let sent = self.streams.get(&stream).map(|queue| queue.try_send(down));
                if let Some(Err(_)) = sent {
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
            ControlAction::AdminAnswer { token, answer } => {
                if let Some(Waiting::Admin(waiting)) = self.waiting.remove(&token) {
                    let _ = waiting.send(Answered::Answer(answer));
                }
            }
        }
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

    #[tokio::test]
    async fn a_leader_that_was_stopped_asks_the_store_before_it_answers() {
        let image = MemStore::new();
        let (_inbox, inbox) = mpsc::channel(1);
        let (_stop, stopped) = watch::channel(false);
        let (role, _role) = watch::channel(Role::Following { leader: None, why: None });
        let registry = telemetry::Registry::default();
        let metrics = (MetaMetrics::new(&registry), ClusterMetrics::new(&registry));
        let mut owner = Owner::new(Box::new(image.another()), "a:1".to_owned(), inbox, role, stopped, metrics);
        owner.store.campaign("a:1").await.expect("no other meta is there");
        let records = owner.records().await.expect("stored").expect("sound");
        let mut control = Control::new(ControlConfig::default(), records, owner.now());
        let status = |owner: &mut Owner, control: &mut Control| {
            let (answer, told) = oneshot::channel();
            owner.take(control, Input::Admin { ask: AdminAsk::Status, answer });
            told
        };
        let told = status(&mut owner, &mut control);
        owner.perform(&mut control).await.expect("it leads");
        assert!(matches!(told.await, Ok(Answered::Answer(Ok(_)))));

        // Another meta takes over while this one is stopped; its memory does not show that.
        image.another().seize("b:1");
        owner.kept = Instant::now() - BELIEVE;
        let mut told = status(&mut owner, &mut control);
        assert!(matches!(owner.perform(&mut control).await, Err(StoreError::Fenced)));
        assert!(told.try_recv().is_err(), "what it would have said may be old");
    }
}
