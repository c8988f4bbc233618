//! The administrator's client: sends requests to the leading meta and follows it.

use crate::convert::{Malformed, need, stripe_out, uuid};
use crate::convert_admin::{fence_out, text_out, volume};
use crate::convert_qos::change_out;
use crate::convert_snapshots::snapshots;
use crate::follow::{Held, Metas, is_unresolved};
use crate::pb::{self, admin_client::AdminClient as Calls};
use crate::probe::{self, Found};
use crate::status::{self, Failure};
use crate::{BY_KEY, MESSAGE_LEN_MAX, convert_faults, pb::VolumeView as PbVolume};
use control::admin::{AdminAnswer, AdminAsk, CutAsk, PgMove, Resizing, SnapshotChange, VolumeClone, VolumeRemove};
use std::time::Duration;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use types::codes;
use types::control::Refusal;
use types::{ClusterId, OsdId};

const RETRY_AFTER: Duration = Duration::from_millis(150);
/// Time after which the address of an unanswered call is probed.
const LOOK_AFTER: Duration = Duration::from_millis(800);
/// Words for an HTTP server without gRPC, for example the metrics port of a metadata server.
const HTTP_SERVER: &str = "an HTTP server (the gRPC port of a metadata server is 7300 by default)";

/// Reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{}: no metadata server answered in {after:?}; last: {last}; {}", down(), next_step())]
    Unreachable { after: Duration, last: String },
    /// Metadata servers answer, and none leads.
    #[error("{}: {why} (tried for {after:?}); {}", down(), mend(why))]
    Leaderless { after: Duration, why: String },
    /// No address is one of a metadata server: a retry would not help.
    #[error("{}: no metadata server answers: {found}; {}", down(), next_step())]
    Nowhere { found: String },
    /// The connection broke after the command was sent: it may have been done.
    #[error(
        "{}: the connection broke before the answer came ({last}); the command may have been done: check before you \
         repeat it",
        down()
    )]
    Unsure { last: String },
    #[error(
        "{}: the metadata server sent a malformed answer: {}; check that both sides run matching versions",
        codes::label(codes::BAD_REQUEST),
        .0
    )]
    Malformed(#[from] Malformed),
}

impl AdminError {
    /// Returns the BSLT number.
    pub fn code(&self) -> u32 {
        match self {
            AdminError::Refused(refusal) => refusal.code,
            AdminError::Unreachable { .. }
            | AdminError::Leaderless { .. }
            | AdminError::Nowhere { .. }
            | AdminError::Unsure { .. } => codes::META_UNAVAILABLE,
            AdminError::Malformed(_) => codes::BAD_REQUEST,
        }
    }

    /// Returns the advice, where it differs from that of the code.
    pub fn next(&self) -> Option<String> {
        match self {
            AdminError::Leaderless { why, .. } => Some(mend(why)),
            _ => None,
        }
    }
}

/// Returns the advice when metadata servers answer and none leads: the store is the cause when they name it.
fn mend(why: &str) -> String {
    let store = why.split_once("the metadata store (").and_then(|(_, rest)| rest.split_once(')'));
    match store {
        Some((store, _)) => {
            format!("check that {store} runs, and that --etcd of the metas names it; attached volumes go on")
        }
        None if why.contains("the metadata store failed") => {
            "check the disk of the metadata server (df -h) and at its log; attached volumes go on".to_string()
        }
        None => "basalt meta ls   # shows what each metadata server waits for; attached volumes go on".to_string(),
    }
}

fn down() -> String {
    codes::label(codes::META_UNAVAILABLE)
}

fn next_step() -> &'static str {
    codes::lookup(codes::META_UNAVAILABLE).map_or("", |c| c.fix)
}

/// Sends requests to the leading meta, and follows it when it changes.
pub struct AdminClient {
    metas: Metas,
    timeout: Duration,
    /// Time for which addresses without a metadata server are retried; set for interactive commands.
    patience: Option<Duration>,
    by: By,
}

/// Names the administrator in each call.
#[derive(Clone, Default)]
struct By(Option<MetadataValue<Ascii>>);

impl Interceptor for By {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(by) = &self.0 {
            request.metadata_mut().insert(BY_KEY, by.clone());
        }
        Ok(request)
    }
}

type Rpc = Calls<InterceptedService<Channel, By>>;

/// Addresses that were tried without success since a metadata server last answered.
#[derive(Default)]
struct Vain {
    /// Fault of each address, the last one at the end.
    why: Vec<String>,
    /// Whether a process that is starting may remove one of the faults.
    may_heal: bool,
    /// Whether a metadata server answered before: another one takes over from a leader that died.
    spoke: bool,
}

impl Vain {
    fn add(&mut self, why: String, may_heal: bool) {
        self.why.push(why);
        self.may_heal |= may_heal;
    }
}

impl AdminClient {
    /// Returns a client of the metas at `host:port`, without connecting yet. An answer is awaited for `timeout` at
    /// most.
    pub fn new(metas: Vec<String>, timeout: Duration) -> AdminClient {
        AdminClient { metas: Metas::new(metas), timeout, patience: None, by: By::default() }
    }

    /// Gives up after `max` while no address has a metadata server that answers. It gives up at once when that cannot
    /// change: for a name that does not resolve, or a port at which another program answers.
    pub fn impatient(mut self, max: Duration) -> AdminClient {
        self.patience = Some(max.min(self.timeout));
        self
    }

    /// Names the administrator, for the events of its commands. Characters that are not ASCII are left out.
    pub fn named(mut self, by: &str) -> AdminClient {
        let plain: String = by.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        self.by = By(plain.trim().parse().ok());
        self
    }

    /// Returns the error that ends a search once every address was tried without success.
    async fn given_up(&self, start: Instant, vain: &Vain) -> Option<AdminError> {
        let count = self.metas.count().await;
        let over = self.patience.is_some_and(|max| !vain.may_heal || start.elapsed() >= max);
        if vain.spoke || !over || vain.why.len() < count {
            return None;
        }
        let mut last: Vec<&str> = vain.why[vain.why.len() - count..].iter().map(String::as_str).collect();
        last.dedup();
        Some(AdminError::Nowhere { found: last.join("; ") })
    }

    /// Returns the error at the end of the time. `leaderless` is the answer of a metadata server about the missing
    /// leader.
    fn timed_out(&self, leaderless: Option<String>, last: String) -> AdminError {
        let after = self.timeout;
        match leaderless {
            Some(why) => AdminError::Leaderless { after, why },
            None => AdminError::Unreachable { after, last },
        }
    }

    /// Sends the request until an answer or a refusal comes, or the time is over.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub async fn ask(&self, ask: AdminAsk) -> Result<AdminAnswer, AdminError> {
        let start = Instant::now();
        let end = start + self.timeout;
        let mut last = String::from("no address was tried");
        let mut vain = Vain::default();
        let mut leaderless = None;
        loop {
            if Instant::now() >= end {
                return Err(self.timed_out(leaderless, last));
            }
            if let Some(error) = self.given_up(start, &vain).await {
                return Err(error);
            }
            let held = match tokio::time::timeout_at(end, self.metas.held()).await {
                Ok(Ok(held)) => held,
                Ok(Err(why)) => {
                    vain.add(why.clone(), !is_unresolved(&why));
                    last = why;
                    tokio::time::sleep(RETRY_AFTER).await;
                    continue;
                }
                Err(_) => continue,
            };
            let (generation, addr) = (held.generation, held.addr.clone());
            let failure = match self.send(held, &ask, end).await {
                Sent::Answer(answer) => return Ok(answer?),
                Sent::Failed(failure) => failure,
                Sent::Stranger { addr, found } => {
                    self.metas.failed(generation, None).await;
                    // A stopped process of a metadata server reads the command when it continues.
                    let may_come = matches!(found, Found::Silent) && !may_repeat(&ask);
                    last = format!("meta at {addr}: {}", found.words().unwrap_or_default());
                    if may_come {
                        return Err(AdminError::Unsure { last });
                    }
                    vain.add(last.clone(), false);
                    continue;
                }
            };
            match failure {
                Failure::Refused(refusal) => return Err(refusal.into()),
                Failure::NotLeader { leader, text } => {
                    vain = Vain { spoke: true, ..Vain::default() };
                    leaderless = Some(match &leader {
                        Some(leader) => {
                            format!("the metadata server at {addr} follows {leader}, which does not answer")
                        }
                        None => text.clone(),
                    });
                    if leader.is_none() {
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                    last = text;
                    self.metas.failed(generation, leader).await;
                }
                Failure::Lost(why) => {
                    leaderless = None;
                    self.metas.failed(generation, None).await;
                    if !may_repeat(&ask) {
                        return Err(AdminError::Unsure { last: why });
                    }
                    last = why;
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Makes one attempt. For interactive commands the address is probed when no answer comes.
    async fn send(&self, held: Held, ask: &AdminAsk, end: Instant) -> Sent {
        let Held { channel, addr, .. } = held;
        let stranger = async {
            if self.patience.is_none() {
                return std::future::pending().await;
            }
            tokio::time::sleep(LOOK_AFTER).await;
            match probe::look(&addr).await {
                Found::Http2 | Found::Gone => std::future::pending().await,
                found => found,
            }
        };
        let sent = tokio::select! {
            sent = tokio::time::timeout_at(end, call(channel, self.by.clone(), ask)) => sent,
            found = stranger => return Sent::Stranger { addr, found },
        };
        let failure = match sent {
            Ok(Ok(answer)) => return Sent::Answer(answer),
            Ok(Err(status)) if self.patience.is_some() && status::is_http(&status) => {
                return Sent::Stranger { addr, found: Found::Stranger(HTTP_SERVER.to_string()) };
            }
            Ok(Err(status)) => status::read(&status),
            Err(_) => Failure::Lost(format!("no answer in {:?}", self.timeout)),
        };
        if self.patience.is_some()
            && matches!(failure, Failure::Lost(_))
            && let found @ (Found::Silent | Found::Stranger(_)) = probe::look(&addr).await
        {
            return Sent::Stranger { addr, found };
        }
        Sent::Failed(failure)
    }
}

/// Result of one attempt.
#[expect(clippy::large_enum_variant, reason = "one lives at a time")]
enum Sent {
    Answer(Result<AdminAnswer, Malformed>),
    Failed(Failure),
    /// No metadata server is at this address.
    Stranger {
        addr: String,
        found: Found,
    },
}

/// Whether a request may be sent twice without a further effect.
fn may_repeat(ask: &AdminAsk) -> bool {
    if let AdminAsk::MetaRecover(ask) = ask {
        return ask.dry_run;
    }
    !matches!(
        ask,
        AdminAsk::PoolCreate(_)
            | AdminAsk::PoolRename { .. }
            | AdminAsk::PoolRemove { .. }
            | AdminAsk::VolumeCreate { .. }
            | AdminAsk::VolumeRemove(_)
            | AdminAsk::VolumeClone(_)
            | AdminAsk::VolumeRename { .. }
            | AdminAsk::VolumeFence { .. }
            | AdminAsk::SnapshotCreate(_)
            | AdminAsk::SnapshotRemove { .. }
            | AdminAsk::SnapshotRollback { .. }
            | AdminAsk::SnapshotSet { .. }
            | AdminAsk::TrashRestore { .. }
            | AdminAsk::TrashPurge { .. }
            | AdminAsk::OsdRemove { .. }
    )
}

type Called = Result<Result<AdminAnswer, Malformed>, tonic::Status>;

async fn call(channel: Channel, by: By, ask: &AdminAsk) -> Called {
    let mut rpc = Calls::with_interceptor(channel, by).max_decoding_message_size(MESSAGE_LEN_MAX);
    match ask.clone() {
        AdminAsk::Status => {
            let reply = rpc.status(pb::StatusRequest {}).await?.into_inner();
            Ok(reply.try_into().map(AdminAnswer::Status))
        }
        AdminAsk::MetaRecover(ask) => {
            let request = crate::convert_recovery::recover_out(ask);
            let reply = rpc.meta_recover(request).await?.into_inner();
            Ok(reply.try_into().map(AdminAnswer::Recovery))
        }
        AdminAsk::MetaBackup => {
            let mut parts = rpc.meta_backup(pb::MetaBackupRequest {}).await?.into_inner();
            let mut items = Vec::new();
            while let Some(part) = parts.message().await? {
                items.extend(crate::convert_recovery::part_items(part));
            }
            Ok(Ok(AdminAnswer::Backup(items)))
        }
        AdminAsk::OsdReserve
        | AdminAsk::OsdRemove { .. }
        | AdminAsk::OsdRegister(_)
        | AdminAsk::OsdList
        | AdminAsk::OsdSet(_)
        | AdminAsk::ConfigList
        | AdminAsk::ConfigSet { .. } => send_osd(&mut rpc, ask.clone()).await,
        AdminAsk::PgMove(PgMove { pg, from, to, dry_run }) => {
            let ask = pb::PgMoveRequest { pg: Some(pg.into()), from: from.0, to: to.0, dry_run };
            Ok(all(rpc.pg_move(ask).await?.into_inner().moves).map(AdminAnswer::Moves))
        }
        AdminAsk::PgMoveCancel { pg } => {
            rpc.pg_move_cancel(pb::PgMoveCancelRequest { pg: Some(pg.into()) }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        AdminAsk::PgForce(ask) => {
            let reply = rpc.pg_force(pb::PgForceRequest::from(ask)).await?.into_inner();
            Ok(reply.try_into().map(AdminAnswer::Forced))
        }
        AdminAsk::PgList { pool } => {
            let reply = rpc.pg_list(pb::PgListRequest { pool }).await?.into_inner();
            Ok(all(reply.pgs).map(AdminAnswer::Pgs))
        }
        AdminAsk::PoolCreate(_)
        | AdminAsk::PoolList
        | AdminAsk::PoolSet { .. }
        | AdminAsk::PoolRename { .. }
        | AdminAsk::PoolRemove { .. } => send_pool(&mut rpc, ask.clone()).await,
        volumes => send_volume(&mut rpc, volumes).await,
    }
}

async fn send_osd(rpc: &mut Rpc, ask: AdminAsk) -> Called {
    match ask {
        AdminAsk::OsdReserve => {
            let reply = rpc.osd_reserve(pb::OsdReserveRequest {}).await?.into_inner();
            let cluster = uuid(&reply.cluster, "cluster").map(ClusterId);
            Ok(cluster.map(|cluster| AdminAnswer::OsdRegistered { cluster, osd: OsdId(reply.osd) }))
        }
        AdminAsk::OsdRemove { osd } => {
            rpc.osd_remove(pb::OsdRemoveRequest { osd: osd.0 }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        AdminAsk::OsdRegister(r) => {
            let request = pb::OsdRegisterRequest {
                osd: r.osd.map(|osd| osd.0),
                uuid: r.uuid.0.to_vec(),
                host: r.host,
                rack: r.rack,
                zone: r.zone,
                capacity_bytes: r.capacity_bytes,
                replaces: r.replaces.map(|osd| osd.0),
                device_class: r.device_class,
            };
            let reply = rpc.osd_register(request).await?.into_inner();
            let cluster = uuid(&reply.cluster, "cluster").map(ClusterId);
            Ok(cluster.map(|cluster| AdminAnswer::OsdRegistered { cluster, osd: OsdId(reply.osd) }))
        }
        AdminAsk::OsdList => {
            let reply = rpc.osd_list(pb::OsdListRequest {}).await?.into_inner();
            Ok(all(reply.osds).map(AdminAnswer::Osds))
        }
        AdminAsk::OsdSet(ask) => {
            let reply = rpc.osd_set(pb::OsdSetRequest::from(ask)).await?.into_inner();
            Ok(all(reply.moves).map(AdminAnswer::Moves))
        }
        AdminAsk::ConfigList => Ok(Ok(settings(rpc.config_list(pb::ConfigListRequest {}).await?.into_inner()))),
        AdminAsk::ConfigSet { name, value } => {
            Ok(Ok(settings(rpc.config_set(pb::ConfigSetRequest { name, value }).await?.into_inner())))
        }
        other => unreachable!("{other:?} is of no OSD"),
    }
}

async fn send_pool(rpc: &mut Rpc, ask: AdminAsk) -> Called {
    match ask {
        AdminAsk::PoolCreate(p) => {
            let request = pb::PoolCreateRequest {
                name: p.name,
                replicas: p.replicas,
                domain: p.domain,
                pg_count: p.pg_count,
                force: p.force,
                device_class: p.device_class,
            };
            let reply = rpc.pool_create(request).await?.into_inner();
            let warning = reply.warning;
            let pool = need(reply.pool, "pool").and_then(TryInto::try_into);
            Ok(pool.map(|pool| AdminAnswer::PoolCreated { pool, warning }))
        }
        AdminAsk::PoolList => {
            let reply = rpc.pool_list(pb::PoolListRequest {}).await?.into_inner();
            Ok(reply.pools.into_iter().map(TryInto::try_into).collect::<Result<_, _>>().map(AdminAnswer::Pools))
        }
        AdminAsk::PoolRename { name, new } => {
            let reply = rpc.pool_rename(pb::PoolRenameRequest { name, new }).await?.into_inner();
            Ok(need(reply.pool, "pool").and_then(TryInto::try_into).map(AdminAnswer::Pool))
        }
        AdminAsk::PoolSet(ask) => {
            let request = pb::PoolSetRequest {
                name: ask.name,
                limits: change_out(ask.limits),
                quota_bytes: ask.quota.bytes,
                quota_volumes: ask.quota.volumes,
                quota_overcommit_percent: ask.quota.overcommit_percent,
                device_class: ask.device_class,
                backup_compression: ask.backup_compression.map(|one| one.name().to_owned()),
            };
            let reply = rpc.pool_set(request).await?.into_inner();
            Ok(need(reply.pool, "pool").and_then(TryInto::try_into).map(AdminAnswer::Pool))
        }
        AdminAsk::PoolRemove { name } => {
            rpc.pool_remove(pb::PoolRemoveRequest { name }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        other => unreachable!("{other:?} is of no pool"),
    }
}

async fn send_volume(rpc: &mut Rpc, ask: AdminAsk) -> Called {
    match ask {
        AdminAsk::VolumeCreate { name, len_bytes, stripe, text } => {
            let (stripe, text) = (stripe_out(stripe), Some(text_out(text)));
            let request = pb::VolumeCreateRequest { name, len_bytes, stripe, text };
            let reply = rpc.volume_create(request).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeClone(VolumeClone { snapshot, name, text }) => {
            let request = pb::VolumeCloneRequest { snapshot, name, text: Some(text_out(text)) };
            let reply = rpc.volume_clone(request).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeFlatten { name, cancel } => {
            let reply = rpc.volume_flatten(pb::VolumeFlattenRequest { name, cancel }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeFaultAdd { name, fault } => {
            let reply = rpc.volume_fault_add(convert_faults::add_out(name, &fault)).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeFaultRemove { name, id } => {
            let reply = rpc.volume_fault_remove(pb::VolumeFaultRemoveRequest { name, id }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeList { pool } => {
            let reply = rpc.volume_list(pb::VolumeListRequest { pool }).await?.into_inner();
            let volumes: Vec<PbVolume> = reply.volumes;
            Ok(volumes.into_iter().map(TryInto::try_into).collect::<Result<_, _>>().map(AdminAnswer::Volumes))
        }
        AdminAsk::VolumeInfo { name } => {
            let reply = rpc.volume_info(pb::VolumeInfoRequest { name }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeRemove(VolumeRemove { name, force, now, snapshots, detach }) => {
            let request = pb::VolumeRemoveRequest { name, force, now, snapshots, detach };
            let reply = rpc.volume_remove(request).await?.into_inner();
            Ok(Ok(reply.trash.map_or(AdminAnswer::Done, |trash| AdminAnswer::Trashed(trash.into()))))
        }
        AdminAsk::VolumeRename { name, new } => {
            let reply = rpc.volume_rename(pb::VolumeRenameRequest { name, new }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeFence { name, which } => {
            let reply = rpc.volume_fence(fence_out(name, which)).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeSet { name, text } => {
            let reply = rpc.volume_set(pb::VolumeSetRequest { name, text: Some(text_out(text)) }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::VolumeResize { name, to } => {
            let Resizing { len_bytes, shrink, discard, force } = to;
            let request = pb::VolumeResizeRequest { name, len_bytes, shrink, discard, force };
            let reply = rpc.volume_resize(request).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        trash @ (AdminAsk::TrashList { .. } | AdminAsk::TrashRestore { .. } | AdminAsk::TrashPurge { .. }) => {
            send_trash(rpc, trash).await
        }
        snapshot @ (AdminAsk::SnapshotCreate(_)
        | AdminAsk::SnapshotList { .. }
        | AdminAsk::SnapshotSet { .. }
        | AdminAsk::SnapshotRollback { .. }
        | AdminAsk::SnapshotRemove { .. }) => send_snapshot(rpc, snapshot).await,
        health => send_health(rpc, health).await,
    }
}

async fn send_trash(rpc: &mut Rpc, ask: AdminAsk) -> Called {
    match ask {
        AdminAsk::TrashList { pool } => {
            let reply = rpc.trash_list(pb::TrashListRequest { pool }).await?.into_inner();
            Ok(Ok(AdminAnswer::Trash(reply.volumes.into_iter().map(Into::into).collect())))
        }
        AdminAsk::TrashRestore { which, name } => {
            let reply = rpc.trash_restore(pb::TrashRestoreRequest { which, name }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        AdminAsk::TrashPurge { which } => {
            rpc.trash_purge(pb::TrashPurgeRequest { which }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        other => unreachable!("{other:?} is not about the trash"),
    }
}

async fn send_snapshot(rpc: &mut Rpc, ask: AdminAsk) -> Called {
    match ask {
        AdminAsk::SnapshotCreate(CutAsk { names, text, .. }) => {
            let request = pb::SnapshotCreateRequest { names, text: Some(text_out(text)) };
            let reply = rpc.snapshot_create(request).await?.into_inner();
            Ok(Ok(AdminAnswer::SnapshotsChanged(snapshots(reply))))
        }
        AdminAsk::SnapshotList { of } => {
            let reply = rpc.snapshot_list(pb::SnapshotListRequest { of }).await?.into_inner();
            Ok(Ok(AdminAnswer::Snapshots(snapshots(reply))))
        }
        AdminAsk::SnapshotSet { name, change: SnapshotChange { protect, name: new_name, text } } => {
            let request = pb::SnapshotSetRequest { name, protect, new_name, text: Some(text_out(text)) };
            let reply = rpc.snapshot_set(request).await?.into_inner();
            Ok(Ok(AdminAnswer::SnapshotsChanged(snapshots(reply))))
        }
        AdminAsk::SnapshotRemove { name, detach } => {
            rpc.snapshot_remove(pb::SnapshotRemoveRequest { name, detach }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        AdminAsk::SnapshotRollback { name, force } => {
            let reply = rpc.snapshot_rollback(pb::SnapshotRollbackRequest { name, force }).await?.into_inner();
            Ok(volume(reply).map(AdminAnswer::Volume))
        }
        other => unreachable!("{other:?} is not about snapshots"),
    }
}

async fn send_health(rpc: &mut Rpc, ask: AdminAsk) -> Called {
    match ask {
        AdminAsk::HealthMute { code, for_ms } => {
            rpc.health_mute(pb::HealthMuteRequest { code, for_ms }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        AdminAsk::HealthUnmute { code } => {
            rpc.health_unmute(pb::HealthUnmuteRequest { code }).await?;
            Ok(Ok(AdminAnswer::Done))
        }
        AdminAsk::Events { after, age_ms_max } => {
            let reply = rpc.events(pb::EventsRequest { after, age_ms_max }).await?.into_inner();
            Ok(reply.try_into().map(AdminAnswer::Events))
        }
        other => unreachable!("{other:?} is sent elsewhere"),
    }
}

fn settings(reply: pb::ConfigReply) -> AdminAnswer {
    AdminAnswer::Config(reply.settings.into_iter().map(Into::into).collect())
}

fn all<A, B: TryFrom<A, Error = Malformed>>(values: Vec<A>) -> Result<Vec<B>, Malformed> {
    values.into_iter().map(B::try_from).collect()
}
