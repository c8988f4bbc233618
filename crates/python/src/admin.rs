//! Requests of an administrator: from names and plain values of Python to those of `control::admin`, and back.
//!
//! The typed functions are in Python (`basalt/_sync.py`). Names of requests and arguments are a contract between that file and this
//! one; the tests call each.

use crate::cluster::Cluster;
use crate::errors::raised;
use crate::views;
use clientthread::Failure;
use control::admin::{
    AdminAnswer, AdminAsk, CutAsk, FaultAdd, Resizing, SnapshotChange, VolumeClone, VolumeRemove, VolumeText,
    WriterName,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use types::faults::{Fault, FaultEffect};
use types::qos::{QosBase, QosChange, RateChange};
use types::stripe::Stripe;
use types::{LimitKind, SessionId, WhenFull, codes};

/// Rate, burst and seconds of the burst; what is `None` stays.
type Rate = (Option<u64>, Option<u64>, Option<u32>);

/// The arguments of a request.
pub struct Arguments<'a, 'py>(pub &'a Bound<'py, PyDict>);

impl Arguments<'_, '_> {
    /// Returns an argument; one that is missing is like `None`.
    fn get<T>(&self, name: &str) -> PyResult<T>
    where
        T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
    {
        let py = self.0.py();
        let value = self.0.get_item(name)?.unwrap_or_else(|| py.None().into_bound(py));
        value.extract().map_err(|error: PyErr| {
            let why = PyTypeError::new_err(format!("argument {name}: {}", error.value(py)));
            why.set_cause(py, Some(error));
            why
        })
    }

    fn text(&self) -> PyResult<VolumeText> {
        Ok(VolumeText {
            description: self.get("description")?,
            labels: self.get::<Option<BTreeMap<String, String>>>("labels")?.unwrap_or_default(),
            removed_labels: self.get::<Option<Vec<String>>>("removed_labels")?.unwrap_or_default(),
            when_full: self.when_full()?,
            multi_writer: self.get("multi_writer")?,
            limits: self.limits()?,
        })
    }

    /// Returns the change of the limits of I/O; meta checks the bounds.
    fn limits(&self) -> PyResult<QosChange> {
        let base = match self.get::<Option<String>>("limits_base")?.as_deref() {
            None => QosBase::Kept,
            Some("none") => QosBase::Unlimited,
            Some("pool") => QosBase::Pool,
            Some(other) => return Err(PyValueError::new_err(format!("limits are not those of {other}"))),
        };
        let given = self.get::<Option<BTreeMap<String, Rate>>>("limits")?.unwrap_or_default();
        let rate = |(name, (rate, burst, burst_seconds)): (String, Rate)| {
            let kind = LimitKind::ALL.into_iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| PyValueError::new_err(format!("there is no limit {name}")))?;
            Ok((kind, RateChange { rate, burst, burst_seconds }))
        };
        Ok(QosChange { base, rates: given.into_iter().map(rate).collect::<PyResult<_>>()? })
    }

    fn writer(&self) -> PyResult<WriterName> {
        match (self.get::<Option<String>>("client")?, self.get::<Option<u64>>("session")?) {
            (Some(client), None) => Ok(WriterName::Client(client)),
            (None, Some(session)) => Ok(WriterName::Session(SessionId(session))),
            _ => Err(PyValueError::new_err("name a client or a session")),
        }
    }

    fn when_full(&self) -> PyResult<Option<WhenFull>> {
        let name: Option<String> = self.get("when_full")?;
        name.map(|name| name.parse().map_err(PyValueError::new_err)).transpose()
    }

    /// Returns a size in bytes.
    fn size(&self) -> PyResult<u64> {
        let size: i128 = self.get("size")?;
        u64::try_from(size).map_err(|_| {
            let what = format!("a volume cannot have {size} bytes");
            raised(self.0.py(), &Failure { errno: libc::EINVAL, ..Failure::new(codes::BAD_SIZE, what) })
        })
    }

    /// Returns a fault to rehearse, with its time; meta checks the bounds.
    fn fault(&self) -> PyResult<FaultAdd> {
        let bad = |what: String| {
            raised(self.0.py(), &Failure { errno: libc::EINVAL, ..Failure::new(codes::BAD_FAULT, what) })
        };
        let effect = match (self.get::<String>("kind")?.as_str(), self.get::<Option<u32>>("latency_ms")?) {
            ("latency", Some(ms)) => FaultEffect::Latency(ms),
            ("error", None) => FaultEffect::Error,
            ("pause", None) => FaultEffect::Pause,
            (other, _) => return Err(bad(format!("there is no fault of the kind {other}"))),
        };
        let percent: i64 = self.get("percent")?;
        let percent = u8::try_from(percent).map_err(|_| bad(format!("{percent} % of the requests")))?;
        let (reads, writes, for_ms) = (self.get("reads")?, self.get("writes")?, self.get("for_ms")?);
        Ok(FaultAdd { fault: Fault { effect, percent, reads, writes }, for_ms })
    }

    fn stripe(&self) -> PyResult<Stripe> {
        let (unit, count): (Option<u64>, Option<u32>) = (self.get("stripe_unit")?, self.get("stripe_count")?);
        let count = count.unwrap_or(1);
        let stripe = unit.map_or_else(|| Stripe::with_count(count), |unit| Stripe::new(unit, count));
        stripe.map_err(|bad| raised(self.0.py(), &Failure::new(codes::BAD_STRIPE, bad)))
    }
}

/// Returns the request of a name; `None` for a name that is unknown.
fn ask(request: &str, given: &Arguments<'_, '_>) -> PyResult<Option<AdminAsk>> {
    Ok(Some(match request {
        "status" => AdminAsk::Status,
        "pools" => AdminAsk::PoolList,
        "events" => AdminAsk::Events { after: given.get("after")?, age_ms_max: given.get("age_ms_max")? },
        "volume_create" => AdminAsk::VolumeCreate {
            name: given.get("name")?,
            len_bytes: given.size()?,
            stripe: given.stripe()?,
            text: given.text()?,
        },
        "volume_clone" => {
            let (snapshot, name, text) = (given.get("snapshot")?, given.get("name")?, given.text()?);
            AdminAsk::VolumeClone(VolumeClone { snapshot, name, text })
        }
        "volume_flatten" => AdminAsk::VolumeFlatten { name: given.get("name")?, cancel: given.get("cancel")? },
        "fault_add" => AdminAsk::VolumeFaultAdd { name: given.get("name")?, fault: given.fault()? },
        "fault_remove" => AdminAsk::VolumeFaultRemove { name: given.get("name")?, id: given.get("id")? },
        "volumes" => AdminAsk::VolumeList { pool: given.get("pool")? },
        "volume_info" => AdminAsk::VolumeInfo { name: given.get("name")? },
        "volume_set" => AdminAsk::VolumeSet { name: given.get("name")?, text: given.text()? },
        "volume_resize" => {
            let (shrink, discard, force) = (given.get("shrink")?, given.get("discard_data")?, given.get("force")?);
            let to = Resizing { len_bytes: given.size()?, shrink, discard, force };
            AdminAsk::VolumeResize { name: given.get("name")?, to }
        }
        "volume_fence" => AdminAsk::VolumeFence { name: given.get("name")?, which: given.writer()? },
        "volume_rename" => AdminAsk::VolumeRename { name: given.get("name")?, new: given.get("new")? },
        "volume_remove" => AdminAsk::VolumeRemove(VolumeRemove {
            name: given.get("name")?,
            force: given.get("force")?,
            now: given.get("now")?,
            snapshots: given.get("snapshots")?,
            detach: given.get("detach")?,
        }),
        "trash" => AdminAsk::TrashList { pool: given.get("pool")? },
        "trash_restore" => AdminAsk::TrashRestore { which: given.get("which")?, name: given.get("name")? },
        "trash_purge" => AdminAsk::TrashPurge { which: given.get("which")? },
        "snapshot_create" => {
            AdminAsk::SnapshotCreate(CutAsk { names: given.get("names")?, text: given.text()?, ..CutAsk::default() })
        }
        "snapshots" => AdminAsk::SnapshotList { of: given.get("of")? },
        "snapshot_set" => {
            let (protect, name, text) = (given.get("protect")?, given.get("new")?, given.text()?);
            AdminAsk::SnapshotSet { name: given.get("name")?, change: SnapshotChange { protect, name, text } }
        }
        "snapshot_rollback" => AdminAsk::SnapshotRollback { name: given.get("name")?, force: given.get("force")? },
        "snapshot_remove" => AdminAsk::SnapshotRemove { name: given.get("name")?, detach: given.get("detach")? },
        _ => return Ok(None),
    }))
}

/// Sends a request and returns the answer.
///
/// # Errors
/// The refusal of meta as an exception of `basalt`, and TypeError for a wrong argument.
pub fn perform(cluster: &Cluster, py: Python<'_>, request: &str, given: &Arguments<'_, '_>) -> PyResult<Py<PyAny>> {
    let ask = ask(request, given)?;
    let ask = ask.ok_or_else(|| PyTypeError::new_err(format!("there is no request {request}")))?;
    let value = match cluster.ask(py, ask)? {
        AdminAnswer::Status(status) => views::status(py, &status)?,
        AdminAnswer::Events(page) => {
            (page.last, views::list(py, &page.events, views::event)?).into_pyobject(py)?.into_any()
        }
        AdminAnswer::Pools(pools) => views::list(py, &pools, views::pool)?,
        AdminAnswer::Volume(volume) => views::volume(py, &volume)?.into_any(),
        AdminAnswer::Volumes(volumes) => views::list(py, &volumes, views::volume)?,
        AdminAnswer::Trashed(trashed) => views::trashed(py, &trashed)?.into_any(),
        AdminAnswer::Trash(all) => views::list(py, &all, views::trashed)?,
        AdminAnswer::Snapshots(snapshots) | AdminAnswer::SnapshotsChanged(snapshots) => {
            views::list(py, &snapshots, views::snapshot)?
        }
        AdminAnswer::Done => py.None().into_bound(py),
        other => {
            let what = format!("the metadata server answered {request} with {other:?}");
            return Err(raised(py, &Failure::new(codes::BAD_REQUEST, what)));
        }
    };
    Ok(value.unbind())
}
