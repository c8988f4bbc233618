//! Requests to the leading meta from a command, one blocking call each.

use crate::address::Address;
use crate::errors::{UserError, refused};
use crate::output;
use anyhow::{Context, Result, bail};
use api::{AdminClient, AdminError};
use control::admin::{
    AdminAnswer, AdminAsk, CutAsk, EventsPage, FaultAdd, ForceView, OsdRegister, OsdSet, OsdView, PgForce, PgMove,
    PgView, PlannedMove, PoolCreate, PoolSet, PoolView, RecoverAsk, Resizing, SnapshotChange, SnapshotView, Status,
    StoreRecovery, TrashView, VolumeClone, VolumeRemove, VolumeText, VolumeView, WriterName,
};
use control::settings::SettingView;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use tokio::runtime::Runtime;
use types::{ClusterId, OsdId, PgId, Stripe};

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a command retries addresses without a metadata server: a daemon that restarts is back by then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after which a waiting command names the cause of its wait.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// A connection to the cluster's metas.
pub struct Admin {
    runtime: Runtime,
    client: AdminClient,
    metas: Vec<String>,
}

macro_rules! expect {
    ($self:ident, $ask:expr, $pattern:pat => $value:expr) => {
        match $self.ask($ask)? {
            $pattern => Ok($value),
            other => bail!("meta answered {other:?}"),
        }
    };
}

/// Returns the client's error in the user's terms.
fn told(error: &AdminError) -> UserError {
    let text = error.to_string();
    match error.next() {
        Some(next) => UserError { next: next.clone(), ..refused(error.code(), text.trim_end_matches(&next)) },
        None => refused(error.code(), &text),
    }
}

/// Returns the user of this command and its process, for the events of the cluster. A service has no variable with its name.
fn by() -> String {
    let user = crate::args::env("USER").or_else(|| crate::args::env("LOGNAME"));
    let uid = || std::fs::metadata("/proc/self").map_or("unknown user".to_owned(), |own| format!("uid {}", own.uid()));
    let user = user.unwrap_or_else(uid);
    format!("{user} ({})", clientloop::holder("basalt"))
}

impl osdpages::Directory for Admin {
    type Error = anyhow::Error;

    fn ask(&self, ask: AdminAsk) -> Result<AdminAnswer> {
        Admin::ask(self, ask)
    }
}

impl Admin {
    pub fn connect(metas: &[Address]) -> Result<Admin> {
        Admin::connect_within(metas, TIMEOUT)
    }

    /// Connects as [`Admin::connect`] does; an answer is awaited for `timeout` at most.
    pub fn connect_within(metas: &[Address], timeout: Duration) -> Result<Admin> {
        let runtime = crate::role::runtime()?;
        let addrs: Vec<String> = metas.iter().map(Address::to_string).collect();
        let client = AdminClient::new(addrs.clone(), timeout).impatient(PATIENCE).named(&by());
        Ok(Admin { client, runtime, metas: addrs })
    }

    /// Returns the addresses of the metadata servers.
    pub fn metas(&self) -> Vec<String> {
        self.metas.clone()
    }

    fn ask(&self, ask: AdminAsk) -> Result<AdminAnswer> {
        let answer = self.runtime.block_on(async {
            let mut answer = std::pin::pin!(self.client.ask(ask));
            // A quick answer needs no message; after a while a user at a terminal is told the cause of the wait.
            if std::io::stderr().is_terminal()
                && let Ok(answer) = tokio::time::timeout(SILENT_MAX, &mut answer).await
            {
                return answer;
            } else if std::io::stderr().is_terminal() {
                output::remark(&format!("waiting for the metadata server at {}", self.metas.join(", ")));
            }
            answer.await
        });
        answer.map_err(|e| told(&e).into())
    }

    pub fn status(&self) -> Result<Status> {
        expect!(self, AdminAsk::Status, AdminAnswer::Status(s) => s)
    }

    pub fn recover(&self, ask: RecoverAsk) -> Result<StoreRecovery> {
        expect!(self, AdminAsk::MetaRecover(ask), AdminAnswer::Recovery(r) => r)
    }

    pub fn backup(&self) -> Result<Vec<control::StoredItem>> {
        expect!(self, AdminAsk::MetaBackup, AdminAnswer::Backup(items) => items)
    }

    pub fn osds(&self) -> Result<Vec<OsdView>> {
        expect!(self, AdminAsk::OsdList, AdminAnswer::Osds(v) => v)
    }

    pub fn pools(&self) -> Result<Vec<PoolView>> {
        expect!(self, AdminAsk::PoolList, AdminAnswer::Pools(v) => v)
    }

    pub fn pool(&self, name: &str) -> Result<Option<PoolView>> {
        Ok(self.pools()?.into_iter().find(|p| p.name == name))
    }

    /// Creates a pool. Returns it, with a warning if there is one.
    pub fn create_pool(&self, ask: PoolCreate) -> Result<(PoolView, Option<String>)> {
        expect!(self, AdminAsk::PoolCreate(ask), AdminAnswer::PoolCreated { pool, warning } => (pool, warning))
    }

    pub fn remove_pool(&self, name: &str) -> Result<()> {
        expect!(self, AdminAsk::PoolRemove { name: name.to_owned() }, AdminAnswer::Done => ())
    }

    pub fn rename_pool(&self, name: &str, new: &str) -> Result<PoolView> {
        let ask = AdminAsk::PoolRename { name: name.to_owned(), new: new.to_owned() };
        expect!(self, ask, AdminAnswer::Pool(pool) => pool)
    }

    pub fn set_pool(&self, ask: PoolSet) -> Result<PoolView> {
        expect!(self, AdminAsk::PoolSet(ask), AdminAnswer::Pool(pool) => pool)
    }

    pub fn pgs(&self, pool: Option<&str>) -> Result<Vec<PgView>> {
        expect!(self, AdminAsk::PgList { pool: pool.unwrap_or("").to_owned() }, AdminAnswer::Pgs(v) => v)
    }

    /// Queues the move of a replica.
    /// Queues a move, or only plans it. Returns nothing when it is queued already.
    pub fn move_pg(&self, ask: PgMove) -> Result<Vec<PlannedMove>> {
        expect!(self, AdminAsk::PgMove(ask), AdminAnswer::Moves(moves) => moves)
    }

    /// Recovers a PG by force, or asks what that would cost.
    pub fn force_pg(&self, ask: PgForce) -> Result<ForceView> {
        expect!(self, AdminAsk::PgForce(ask), AdminAnswer::Forced(view) => view)
    }

    /// Sets membership and intent of OSDs; returns the moves that follow.
    pub fn set_osds(&self, ask: OsdSet) -> Result<Vec<PlannedMove>> {
        expect!(self, AdminAsk::OsdSet(ask), AdminAnswer::Moves(moves) => moves)
    }

    pub fn settings(&self) -> Result<Vec<SettingView>> {
        expect!(self, AdminAsk::ConfigList, AdminAnswer::Config(all) => all)
    }

    /// Changes a setting; `None` gives it its default. Returns all settings.
    pub fn change_setting(&self, name: &str, value: Option<&str>) -> Result<Vec<SettingView>> {
        let ask = AdminAsk::ConfigSet { name: name.to_owned(), value: value.map(str::to_owned) };
        expect!(self, ask, AdminAnswer::Config(all) => all)
    }

    /// Gives up the moves of a PG.
    pub fn cancel_moves(&self, pg: PgId) -> Result<()> {
        expect!(self, AdminAsk::PgMoveCancel { pg }, AdminAnswer::Done => ())
    }

    /// Whether every PG of the pool serves.
    pub fn all_active(&self, pool: &str) -> Result<bool> {
        let pgs = self.pgs(Some(pool))?;
        Ok(!pgs.is_empty() && pgs.iter().all(|pg| pg.state.iter().any(|s| s == "active")))
    }

    /// Whether every PG of the pool has all its replicas.
    pub fn all_whole(&self, pool: &str) -> Result<bool> {
        Ok(self.pgs(Some(pool))?.iter().all(|pg| pg.state == ["active"]))
    }

    pub fn volumes(&self, pool: Option<&str>) -> Result<Vec<VolumeView>> {
        expect!(self, AdminAsk::VolumeList { pool: pool.unwrap_or("").to_owned() }, AdminAnswer::Volumes(v) => v)
    }

    pub fn volume(&self, name: &str) -> Result<Option<VolumeView>> {
        let pool = name.split('/').next().unwrap_or("");
        Ok(self.volumes(Some(pool))?.into_iter().find(|v| v.name == name))
    }

    pub fn volume_info(&self, name: &str) -> Result<VolumeView> {
        expect!(self, AdminAsk::VolumeInfo { name: name.to_owned() }, AdminAnswer::Volume(v) => v)
    }

    pub fn create_volume(&self, name: &str, len_bytes: u64, stripe: Stripe, text: VolumeText) -> Result<VolumeView> {
        let name = name.to_owned();
        expect!(self, AdminAsk::VolumeCreate { name, len_bytes, stripe, text }, AdminAnswer::Volume(v) => v)
    }

    /// Makes a volume with the contents of a snapshot.
    pub fn clone_volume(&self, ask: VolumeClone) -> Result<VolumeView> {
        expect!(self, AdminAsk::VolumeClone(ask), AdminAnswer::Volume(v) => v)
    }

    /// Begins to flatten a clone, or stops that.
    pub fn flatten_volume(&self, name: &str, cancel: bool) -> Result<VolumeView> {
        let name = name.to_owned();
        expect!(self, AdminAsk::VolumeFlatten { name, cancel }, AdminAnswer::Volume(v) => v)
    }

    /// Rehearses a fault on a volume.
    pub fn add_fault(&self, name: &str, fault: FaultAdd) -> Result<VolumeView> {
        expect!(self, AdminAsk::VolumeFaultAdd { name: name.to_owned(), fault }, AdminAnswer::Volume(v) => v)
    }

    /// Ends one fault of a volume, or all of them.
    pub fn remove_fault(&self, name: &str, id: Option<u32>) -> Result<VolumeView> {
        expect!(self, AdminAsk::VolumeFaultRemove { name: name.to_owned(), id }, AdminAnswer::Volume(v) => v)
    }

    /// Removes a volume; returns its place in the trash unless it is deleted.
    pub fn remove_volume(&self, ask: VolumeRemove) -> Result<Option<TrashView>> {
        match self.ask(AdminAsk::VolumeRemove(ask))? {
            AdminAnswer::Trashed(trash) => Ok(Some(trash)),
            AdminAnswer::Done => Ok(None),
            other => bail!("meta answered {other:?}"),
        }
    }

    pub fn rename_volume(&self, name: &str, new: &str) -> Result<VolumeView> {
        let ask = AdminAsk::VolumeRename { name: name.to_owned(), new: new.to_owned() };
        expect!(self, ask, AdminAnswer::Volume(v) => v)
    }

    /// Fences clients of a volume.
    pub fn fence_writers(&self, name: &str, which: WriterName) -> Result<VolumeView> {
        let ask = AdminAsk::VolumeFence { name: name.to_owned(), which };
        expect!(self, ask, AdminAnswer::Volume(v) => v)
    }

    pub fn set_volume(&self, name: &str, text: VolumeText) -> Result<VolumeView> {
        expect!(self, AdminAsk::VolumeSet { name: name.to_owned(), text }, AdminAnswer::Volume(v) => v)
    }

    pub fn resize_volume(&self, name: &str, to: Resizing) -> Result<VolumeView> {
        expect!(self, AdminAsk::VolumeResize { name: name.to_owned(), to }, AdminAnswer::Volume(v) => v)
    }

    pub fn snapshots(&self, of: &str) -> Result<Vec<SnapshotView>> {
        expect!(self, AdminAsk::SnapshotList { of: of.to_owned() }, AdminAnswer::Snapshots(v) => v)
    }

    /// Makes snapshots at one point in time.
    pub fn create_snapshots(&self, names: &[String], text: VolumeText) -> Result<Vec<SnapshotView>> {
        let ask = CutAsk { names: names.to_vec(), text, ..CutAsk::default() };
        expect!(self, AdminAsk::SnapshotCreate(ask), AdminAnswer::SnapshotsChanged(v) => v)
    }

    pub fn set_snapshot(&self, name: &str, change: SnapshotChange) -> Result<SnapshotView> {
        let ask = AdminAsk::SnapshotSet { name: name.to_owned(), change };
        let views: Result<Vec<SnapshotView>> = expect!(self, ask, AdminAnswer::SnapshotsChanged(v) => v);
        views?.into_iter().next().context("meta answered with no snapshot")
    }

    /// Gives a volume the contents of its snapshot again.
    pub fn roll_back(&self, name: &str, force: bool) -> Result<VolumeView> {
        expect!(self, AdminAsk::SnapshotRollback { name: name.to_owned(), force }, AdminAnswer::Volume(v) => v)
    }

    pub fn remove_snapshot(&self, name: &str, detach: bool) -> Result<()> {
        expect!(self, AdminAsk::SnapshotRemove { name: name.to_owned(), detach }, AdminAnswer::Done => ())
    }

    pub fn trash(&self, pool: Option<&str>) -> Result<Vec<TrashView>> {
        expect!(self, AdminAsk::TrashList { pool: pool.unwrap_or("").to_owned() }, AdminAnswer::Trash(v) => v)
    }

    pub fn restore_volume(&self, which: &str, name: Option<&str>) -> Result<VolumeView> {
        let ask = AdminAsk::TrashRestore { which: which.to_owned(), name: name.map(str::to_owned) };
        expect!(self, ask, AdminAnswer::Volume(v) => v)
    }

    pub fn purge_volume(&self, which: &str) -> Result<()> {
        expect!(self, AdminAsk::TrashPurge { which: which.to_owned() }, AdminAnswer::Done => ())
    }

    pub fn register_osd(&self, register: OsdRegister) -> Result<(ClusterId, OsdId)> {
        expect!(self, AdminAsk::OsdRegister(register), AdminAnswer::OsdRegistered { cluster, osd } => (cluster, osd))
    }
}

impl Admin {
    pub fn mute(&self, code: &str, time: Option<Duration>) -> Result<()> {
        let for_ms = time.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        expect!(self, AdminAsk::HealthMute { code: code.to_owned(), for_ms }, AdminAnswer::Done => ())
    }

    pub fn unmute(&self, code: &str) -> Result<()> {
        expect!(self, AdminAsk::HealthUnmute { code: code.to_owned() }, AdminAnswer::Done => ())
    }

    /// Returns some events above `after`, oldest first.
    pub fn events(&self, after: u64, age_max: Option<Duration>) -> Result<EventsPage> {
        let age_ms_max = age_max.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        expect!(self, AdminAsk::Events { after, age_ms_max }, AdminAnswer::Events(page) => page)
    }

    /// Draws an id for a device that is being formatted.
    pub fn reserve_osd(&self) -> Result<OsdId> {
        expect!(self, AdminAsk::OsdReserve, AdminAnswer::OsdRegistered { osd, .. } => osd)
    }

    pub fn remove_osd(&self, osd: OsdId) -> Result<()> {
        expect!(self, AdminAsk::OsdRemove { osd }, AdminAnswer::Done => ())
    }
}

#[cfg(test)]
mod tests {
    use super::told;
    use api::AdminError;
    use std::time::Duration;

    #[test]
    fn a_metadata_server_without_its_store_has_the_store_checked() {
        let error = |why: &str| AdminError::Leaderless { after: Duration::from_secs(10), why: why.to_owned() };
        let away = "no metadata server leads: the metadata store (etcd at http://10.0.0.9:2379) does not answer: \
                    the server at that address is not etcd";
        let away = told(&error(away));
        assert!(away.code == 2001 && away.what.ends_with("is not etcd (tried for 10s)"), "{away}");
        assert!(away.next.starts_with("check that etcd at http://10.0.0.9:2379 runs,"), "{away}");
        assert!(told(&error("no metadata server leads")).next.starts_with("basalt meta ls "));
    }
}
