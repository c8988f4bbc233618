//! Answers to administrators as dictionaries. The dataclasses of `basalt/_views.py` have the same fields.

use control::admin::{FaultView, HolderView, PoolView, SnapshotView, Status, TrashView, VolumeView};
use control::events::Event;
use osdpages::Space;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use types::QosLimits;

/// Makes a dictionary.
macro_rules! dict {
    ($py:ident, $($name:ident: $value:expr),+ $(,)?) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($name), $value)?;)+
        dict
    }};
}

/// Returns a list of views.
pub fn list<'py, V>(
    py: Python<'py>,
    views: &[V],
    one: impl Fn(Python<'py>, &V) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let all: Vec<Bound<'py, PyDict>> = views.iter().map(|view| one(py, view)).collect::<PyResult<_>>()?;
    Ok(PyList::new(py, all)?.into_any())
}

pub fn volume<'py>(py: Python<'py>, view: &VolumeView) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        id: view.volume.0,
        name: &view.name,
        size: view.len_bytes,
        allocated: view.allocated_bytes,
        state: &view.state,
        created_ms: view.created_ms,
        holder: view.holder.as_ref().map(|holder| &holder.name),
        writers: list(py, &view.writers, writer)?,
        being_fenced: list(py, &view.being_fenced, writer)?,
        multi_writer: view.multi_writer,
        stripe_unit: view.stripe.map(|stripe| stripe.unit_bytes()),
        stripe_count: view.stripe.map_or(1, |stripe| stripe.count()),
        description: &view.description,
        labels: view.labels.clone(),
        when_full: view.when_full.name(),
        limits: limits(py, &view.limits)?,
        limits_of: &view.limits_of,
        resizing_to: view.resize_bytes,
        shrink_step: view.shrink_step.as_ref(),
        rollback_to: view.rollback_to.as_ref(),
        parent: view.parent.as_ref(),
        flattened_percent: view.flatten.as_ref().map(|flatten| flatten.percent),
        faults: list(py, &view.faults, fault)?,
        snapshots: view.snapshots,
        clones: view.clones,
    ))
}

/// Returns rate, burst and seconds of the burst by the name of the limit.
fn limits<'py>(py: Python<'py>, limits: &QosLimits) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (kind, limit) in limits.iter() {
        let burst = (limit.burst > 0).then_some((limit.burst, limit.burst_seconds));
        let (burst, seconds) = (burst.map(|(burst, _)| burst), burst.map(|(_, seconds)| seconds));
        dict.set_item(kind.name(), (limit.rate, burst, seconds))?;
    }
    Ok(dict)
}

fn writer<'py>(py: Python<'py>, view: &HolderView) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        session: view.session.0,
        name: &view.name,
        address: &view.address,
        since_ms: view.since_ms,
        alive: view.alive,
    ))
}

fn fault<'py>(py: Python<'py>, view: &FaultView) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        id: view.id,
        kind: &view.kind,
        latency: view.latency_ms.map(|ms| f64::from(ms) / 1000.0),
        percent: view.percent,
        reads: view.reads,
        writes: view.writes,
        since_ms: view.since_ms,
        until_ms: view.until_ms,
        by: &view.by,
    ))
}

pub fn trashed<'py>(py: Python<'py>, view: &TrashView) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        id: view.volume.0,
        name: &view.name,
        size: view.len_bytes,
        allocated: view.allocated_bytes,
        state: &view.state,
        since_ms: view.since_ms,
        until_ms: view.until_ms,
        expired: view.expired,
        by: &view.by,
        description: &view.description,
        labels: view.labels.clone(),
    ))
}

pub fn snapshot<'py>(py: Python<'py>, view: &SnapshotView) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        id: view.snapshot.0,
        volume_id: view.volume.0,
        name: &view.name,
        size: view.len_bytes,
        created_ms: view.created_ms,
        state: &view.state,
        cut: view.cut.0,
        protected: view.protected,
        by: &view.by,
        description: &view.description,
        labels: view.labels.clone(),
        clones: view.clones,
    ))
}

pub fn pool<'py>(py: Python<'py>, view: &PoolView) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        id: view.pool.0,
        name: &view.name,
        replicas: view.replicas,
        domain: &view.domain,
        pg_count: view.pg_count,
        state: &view.state,
        volumes: view.volumes,
        trashed: view.trashed,
        provisioned: view.provisioned_bytes,
        quota: view.quota_bytes,
        quota_volumes: view.quota_volumes,
        device_class: view.device_class.as_deref(),
        overcommit_percent: view.overcommit_percent,
        available: view.available_bytes,
        backup_compression: view.backup_compression.name(),
    ))
}

/// Returns the space of a volume with that of its snapshots.
pub fn space<'py>(py: Python<'py>, space: &Space, snapshots: &[SnapshotView]) -> PyResult<Bound<'py, PyDict>> {
    let of_snapshot = |py, view: &SnapshotView| {
        let (stored, freed) = space.of_snapshot(view.snapshot);
        Ok(dict!(py, id: view.snapshot.0, name: &view.name, stored: stored, freed: freed))
    };
    Ok(dict!(py,
        allocated: space.allocated_bytes(),
        exclusive: space.exclusive_bytes(),
        shared: space.shared_bytes(),
        stored: space.stored_bytes(),
        removed: space.removed_bytes(),
        reclaimable: space.reclaimable_bytes(),
        replicas: space.replicas,
        snapshots: list(py, snapshots, of_snapshot)?,
    ))
}

pub fn event<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py,
        number: event.seq,
        at_ms: event.at_ms,
        kind: &event.kind,
        level: event.level.name(),
        subject: &event.subject,
        by: &event.by,
        text: &event.text,
    ))
}

pub fn status<'py>(py: Python<'py>, view: &Status) -> PyResult<Bound<'py, PyAny>> {
    let status = dict!(py,
        cluster: view.cluster.to_string(),
        health: &view.health,
        problems: &view.problems,
        osds: view.osds,
        osds_up: view.osds_up,
        pools: view.pools,
        volumes: view.volumes,
        capacity: view.capacity_bytes,
        used: view.used_bytes,
        free: view.free_bytes,
        version: &view.version,
    );
    Ok(status.into_any())
}
