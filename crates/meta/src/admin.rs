//! The admin service: one typed call for each request.

use crate::Role;
use crate::owner::Input;
use crate::services::Gate;
use api::pb::{self, admin_server};
use api::status;
use control::admin::{
    AdminAnswer, AdminAsk, CutAsk, OsdRegister, PgForce, PgMove, PoolCreate, PoolSet, Resizing, SnapshotChange,
    VolumeClone, VolumeRemove,
};
use tonic::{Request, Response, Status};
use types::limits::{HOLDER_LEN_MAX, clip};
use types::{OsdId, OsdUuid, PgId};

impl Gate {
    /// Passes a question on that changes nothing.
    async fn admin(&self, ask: AdminAsk) -> Result<AdminAnswer, Status> {
        self.admin_of(String::new(), ask).await
    }

    /// Passes a command on; its events name `by`.
    async fn admin_of(&self, by: String, ask: AdminAsk) -> Result<AdminAnswer, Status> {
        self.ask(|answer| Input::Admin { by, ask, answer }).await?.map_err(|refusal| status::refused(&refusal))
    }
}

/// Returns the administrator of a command as it names itself, and its address. The name is not verified.
fn asked_by<T>(request: &Request<T>) -> String {
    let name = request.metadata().get(api::BY_KEY).and_then(|name| name.to_str().ok()).unwrap_or("an administrator");
    let address = request.remote_addr().map_or_else(|| "an unknown address".to_owned(), |a| a.to_string());
    format!("{} at {address}", clip(name, HOLDER_LEN_MAX))
}

fn pg(pg: Option<pb::PgId>) -> Result<PgId, Status> {
    pg.map(PgId::from).ok_or_else(|| Status::invalid_argument("pg is missing"))
}

fn strange(answer: &AdminAnswer) -> Status {
    Status::internal(format!("an answer of another kind: {answer:?}"))
}

fn settings(all: Vec<control::settings::SettingView>) -> pb::ConfigReply {
    pb::ConfigReply { settings: all.into_iter().map(Into::into).collect() }
}

/// Returns the answer of the kind that belongs to the call.
macro_rules! expect {
    ($answer:expr, $pattern:pat => $reply:expr) => {
        match $answer {
            $pattern => Ok(Response::new($reply)),
            other => Err(strange(&other)),
        }
    };
}

#[tonic::async_trait]
impl admin_server::Admin for Gate {
    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusReply>, Status> {
        expect!(self.admin(AdminAsk::Status).await?, AdminAnswer::Status(s) => s.into())
    }

    async fn meta_recover(
        &self,
        request: Request<pb::MetaRecoverRequest>,
    ) -> Result<Response<pb::MetaRecoverReply>, Status> {
        let by = asked_by(&request);
        let ask = api::recover_in(request.into_inner()).map_err(|e| Status::invalid_argument(e.to_string()))?;
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Recovery(r) => r.into())
    }

    type MetaBackupStream = tokio_stream::Iter<std::vec::IntoIter<Result<pb::MetaBackupPart, Status>>>;

    async fn meta_backup(&self, _: Request<pb::MetaBackupRequest>) -> Result<Response<Self::MetaBackupStream>, Status> {
        let parts = |items| api::backup_parts(items).into_iter().map(Ok).collect::<Vec<_>>();
        expect!(self.admin(AdminAsk::MetaBackup).await?, AdminAnswer::Backup(items) => tokio_stream::iter(parts(items)))
    }

    async fn osd_reserve(&self, _: Request<pb::OsdReserveRequest>) -> Result<Response<pb::OsdRegisterReply>, Status> {
        expect!(
            self.admin(AdminAsk::OsdReserve).await?,
            AdminAnswer::OsdRegistered { cluster, osd } =>
                pb::OsdRegisterReply { cluster: cluster.0.to_vec(), osd: osd.0 }
        )
    }

    async fn osd_remove(&self, request: Request<pb::OsdRemoveRequest>) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let ask = AdminAsk::OsdRemove { osd: OsdId(request.into_inner().osd) };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn osd_register(
        &self,
        request: Request<pb::OsdRegisterRequest>,
    ) -> Result<Response<pb::OsdRegisterReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let uuid = r.uuid.as_slice().try_into().map_err(|_| Status::invalid_argument("uuid has 16 bytes"))?;
        let ask = OsdRegister {
            osd: r.osd.map(OsdId),
            uuid: OsdUuid(uuid),
            host: r.host,
            rack: r.rack,
            zone: r.zone,
            capacity_bytes: r.capacity_bytes,
            device_class: r.device_class,
            replaces: r.replaces.map(OsdId),
        };
        expect!(
            self.admin_of(by, AdminAsk::OsdRegister(ask)).await?,
            AdminAnswer::OsdRegistered { cluster, osd } =>
                pb::OsdRegisterReply { cluster: cluster.0.to_vec(), osd: osd.0 }
        )
    }

    async fn osd_list(&self, _: Request<pb::OsdListRequest>) -> Result<Response<pb::OsdListReply>, Status> {
        expect!(
            self.admin(AdminAsk::OsdList).await?,
            AdminAnswer::Osds(osds) => pb::OsdListReply { osds: osds.into_iter().map(Into::into).collect() }
        )
    }

    async fn osd_set(&self, request: Request<pb::OsdSetRequest>) -> Result<Response<pb::OsdSetReply>, Status> {
        let by = asked_by(&request);
        expect!(
            self.admin_of(by, AdminAsk::OsdSet(request.into_inner().into())).await?,
            AdminAnswer::Moves(moves) => pb::OsdSetReply { moves: moves.into_iter().map(Into::into).collect() }
        )
    }

    async fn config_list(&self, _: Request<pb::ConfigListRequest>) -> Result<Response<pb::ConfigReply>, Status> {
        expect!(self.admin(AdminAsk::ConfigList).await?, AdminAnswer::Config(all) => settings(all))
    }

    async fn config_set(&self, request: Request<pb::ConfigSetRequest>) -> Result<Response<pb::ConfigReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::ConfigSet { name: r.name, value: r.value };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Config(all) => settings(all))
    }

    async fn pool_create(
        &self,
        request: Request<pb::PoolCreateRequest>,
    ) -> Result<Response<pb::PoolCreateReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let pb::PoolCreateRequest { name, replicas, domain, pg_count, force, device_class } = r;
        let ask = PoolCreate { name, replicas, domain, pg_count, force, device_class };
        expect!(
            self.admin_of(by, AdminAsk::PoolCreate(ask)).await?,
            AdminAnswer::PoolCreated { pool, warning } => pb::PoolCreateReply { pool: Some(pool.into()), warning }
        )
    }

    async fn pool_list(&self, _: Request<pb::PoolListRequest>) -> Result<Response<pb::PoolListReply>, Status> {
        expect!(
            self.admin(AdminAsk::PoolList).await?,
            AdminAnswer::Pools(pools) => pb::PoolListReply { pools: pools.into_iter().map(Into::into).collect() }
        )
    }

    async fn pool_set(&self, request: Request<pb::PoolSetRequest>) -> Result<Response<pb::PoolSetReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = PoolSet::try_from(r).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ask = AdminAsk::PoolSet(ask);
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Pool(pool) => pb::PoolSetReply { pool: Some(pool.into()) })
    }

    async fn pool_rename(&self, request: Request<pb::PoolRenameRequest>) -> Result<Response<pb::PoolSetReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::PoolRename { name: r.name, new: r.new };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Pool(pool) => pb::PoolSetReply { pool: Some(pool.into()) })
    }

    async fn pool_remove(&self, request: Request<pb::PoolRemoveRequest>) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let ask = AdminAsk::PoolRemove { name: request.into_inner().name };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn pg_list(&self, request: Request<pb::PgListRequest>) -> Result<Response<pb::PgListReply>, Status> {
        let ask = AdminAsk::PgList { pool: request.into_inner().pool };
        expect!(
            self.admin(ask).await?,
            AdminAnswer::Pgs(pgs) => pb::PgListReply { pgs: pgs.into_iter().map(Into::into).collect() }
        )
    }

    async fn pg_move(&self, request: Request<pb::PgMoveRequest>) -> Result<Response<pb::PgMoveReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = PgMove { pg: pg(r.pg)?, from: OsdId(r.from), to: OsdId(r.to), dry_run: r.dry_run };
        expect!(
            self.admin_of(by, AdminAsk::PgMove(ask)).await?,
            AdminAnswer::Moves(moves) => pb::PgMoveReply { moves: moves.into_iter().map(Into::into).collect() }
        )
    }

    async fn pg_move_cancel(
        &self,
        request: Request<pb::PgMoveCancelRequest>,
    ) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let ask = AdminAsk::PgMoveCancel { pg: pg(request.into_inner().pg)? };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn pg_force(&self, request: Request<pb::PgForceRequest>) -> Result<Response<pb::PgForceReply>, Status> {
        let by = asked_by(&request);
        let ask =
            PgForce::try_from(request.into_inner()).map_err(|error| Status::invalid_argument(error.to_string()))?;
        expect!(self.admin_of(by, AdminAsk::PgForce(ask)).await?, AdminAnswer::Forced(view) => view.into())
    }

    async fn volume_create(
        &self,
        request: Request<pb::VolumeCreateRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let stripe = api::stripe_in(r.stripe).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let text = api::text_in(r.text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ask = AdminAsk::VolumeCreate { name: r.name, len_bytes: r.len_bytes, stripe, text };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_clone(
        &self,
        request: Request<pb::VolumeCloneRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let text = api::text_in(r.text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ask = AdminAsk::VolumeClone(VolumeClone { snapshot: r.snapshot, name: r.name, text });
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_flatten(
        &self,
        request: Request<pb::VolumeFlattenRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::VolumeFlatten { name: r.name, cancel: r.cancel };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_fault_add(
        &self,
        request: Request<pb::VolumeFaultAddRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let asked = api::fault_add_in(request.into_inner());
        let (name, fault) = asked.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ask = AdminAsk::VolumeFaultAdd { name, fault };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_fault_remove(
        &self,
        request: Request<pb::VolumeFaultRemoveRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::VolumeFaultRemove { name: r.name, id: r.id };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_list(
        &self,
        request: Request<pb::VolumeListRequest>,
    ) -> Result<Response<pb::VolumeListReply>, Status> {
        let ask = AdminAsk::VolumeList { pool: request.into_inner().pool };
        expect!(
            self.admin(ask).await?,
            AdminAnswer::Volumes(v) => pb::VolumeListReply { volumes: v.into_iter().map(Into::into).collect() }
        )
    }

    async fn volume_info(&self, request: Request<pb::VolumeInfoRequest>) -> Result<Response<pb::VolumeReply>, Status> {
        let ask = AdminAsk::VolumeInfo { name: request.into_inner().name };
        expect!(self.admin(ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_remove(
        &self,
        request: Request<pb::VolumeRemoveRequest>,
    ) -> Result<Response<pb::VolumeRemoveReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let (name, force, now, snapshots, detach) = (r.name, r.force, r.now, r.snapshots, r.detach);
        let ask = AdminAsk::VolumeRemove(VolumeRemove { name, force, now, snapshots, detach });
        match self.admin_of(by, ask).await? {
            AdminAnswer::Done => Ok(Response::new(pb::VolumeRemoveReply { trash: None })),
            AdminAnswer::Trashed(trash) => Ok(Response::new(pb::VolumeRemoveReply { trash: Some(trash.into()) })),
            other => Err(strange(&other)),
        }
    }

    async fn volume_rename(
        &self,
        request: Request<pb::VolumeRenameRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::VolumeRename { name: r.name, new: r.new };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_fence(
        &self,
        request: Request<pb::VolumeFenceRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let which = api::writer_name_in(&r);
        let ask = AdminAsk::VolumeFence { name: r.name, which };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_set(&self, request: Request<pb::VolumeSetRequest>) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let text = api::text_in(r.text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ask = AdminAsk::VolumeSet { name: r.name, text };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn volume_resize(
        &self,
        request: Request<pb::VolumeResizeRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let to = Resizing { len_bytes: r.len_bytes, shrink: r.shrink, discard: r.discard, force: r.force };
        let ask = AdminAsk::VolumeResize { name: r.name, to };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn snapshot_create(
        &self,
        request: Request<pb::SnapshotCreateRequest>,
    ) -> Result<Response<pb::SnapshotsReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let text = api::text_in(r.text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ask = AdminAsk::SnapshotCreate(CutAsk { names: r.names, text, by: String::new() });
        expect!(self.admin_of(by, ask).await?, AdminAnswer::SnapshotsChanged(v) => api::snapshots_out(v))
    }

    async fn snapshot_list(
        &self,
        request: Request<pb::SnapshotListRequest>,
    ) -> Result<Response<pb::SnapshotsReply>, Status> {
        let ask = AdminAsk::SnapshotList { of: request.into_inner().of };
        expect!(self.admin(ask).await?, AdminAnswer::Snapshots(v) => api::snapshots_out(v))
    }

    async fn snapshot_set(
        &self,
        request: Request<pb::SnapshotSetRequest>,
    ) -> Result<Response<pb::SnapshotsReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let text = api::text_in(r.text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let change = SnapshotChange { protect: r.protect, name: r.new_name, text };
        let ask = AdminAsk::SnapshotSet { name: r.name, change };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::SnapshotsChanged(v) => api::snapshots_out(v))
    }

    async fn snapshot_remove(
        &self,
        request: Request<pb::SnapshotRemoveRequest>,
    ) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::SnapshotRemove { name: r.name, detach: r.detach };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn snapshot_rollback(
        &self,
        request: Request<pb::SnapshotRollbackRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::SnapshotRollback { name: r.name, force: r.force };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn trash_list(&self, request: Request<pb::TrashListRequest>) -> Result<Response<pb::TrashListReply>, Status> {
        let ask = AdminAsk::TrashList { pool: request.into_inner().pool };
        expect!(
            self.admin(ask).await?,
            AdminAnswer::Trash(v) => pb::TrashListReply { volumes: v.into_iter().map(Into::into).collect() }
        )
    }

    async fn trash_restore(
        &self,
        request: Request<pb::TrashRestoreRequest>,
    ) -> Result<Response<pb::VolumeReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::TrashRestore { which: r.which, name: r.name };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Volume(v) => pb::VolumeReply { volume: Some(v.into()) })
    }

    async fn trash_purge(&self, request: Request<pb::TrashPurgeRequest>) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let ask = AdminAsk::TrashPurge { which: request.into_inner().which };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn health_mute(&self, request: Request<pb::HealthMuteRequest>) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let r = request.into_inner();
        let ask = AdminAsk::HealthMute { code: r.code, for_ms: r.for_ms };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn health_unmute(
        &self,
        request: Request<pb::HealthUnmuteRequest>,
    ) -> Result<Response<pb::DoneReply>, Status> {
        let by = asked_by(&request);
        let ask = AdminAsk::HealthUnmute { code: request.into_inner().code };
        expect!(self.admin_of(by, ask).await?, AdminAnswer::Done => pb::DoneReply {})
    }

    async fn events(&self, request: Request<pb::EventsRequest>) -> Result<Response<pb::EventsReply>, Status> {
        let r = request.into_inner();
        let ask = AdminAsk::Events { after: r.after, age_ms_max: r.age_ms_max };
        expect!(self.admin(ask).await?, AdminAnswer::Events(page) => page.into())
    }

    async fn meta_info(&self, _: Request<pb::MetaInfoRequest>) -> Result<Response<pb::MetaInfoReply>, Status> {
        let (leads, leader, why) = match self.role.borrow().clone() {
            Role::Leading => (true, None, None),
            Role::Following { leader, why } => (false, leader, why),
        };
        let (version, started_ms) = (self.about.version.to_string(), self.about.started_ms);
        Ok(Response::new(pb::MetaInfoReply { version, started_ms, leads, leader, why }))
    }
}
