//! The folder of a dev cluster: its files, and the record of the choices made at its creation.

use crate::errors::{UserError, unusable};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use types::codes;

/// First port of a cluster's block: metas, then OSDs, as the conventions assign them.
const META_PORT: u16 = 7300;
/// Most blocks that are tried.
const BLOCKS_MAX: u16 = 20;
/// Distance between two clusters' blocks.
const BLOCK: u16 = 1000;

/// `cluster.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub schema: String,
    pub name: String,
    /// An argument of every process, by which its processes are found.
    pub mark: String,
    /// Shift of the ports of the conventions.
    pub port_shift: u16,
    pub metas: u32,
    pub osds: u32,
    pub device_bytes: u64,
    /// Volumes that `dev up` exports, in the order in which they were asked for.
    #[serde(default)]
    pub exports: Vec<String>,
}

/// A dev cluster on disk.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub dir: PathBuf,
    pub record: Record,
}

/// `${XDG_STATE_HOME:-~/.local/state}/basalt/dev/NAME`.
pub fn dir_of(name: &str) -> Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let unset = || {
        let what = "neither HOME nor XDG_STATE_HOME is set: there is no folder for dev clusters";
        UserError::new(codes::HOME_FOLDER_UNKNOWN, what, "export HOME=DIR, or give --meta HOST:PORT")
    };
    let state = state.ok_or_else(unset)?;
    Ok(state.join("basalt/dev").join(name))
}

/// Returns the error for a name without a cluster. It lists the other clusters, because the name may be
/// mistyped.
pub fn missing(name: &str, before: &str) -> UserError {
    let folder = dir_of(name).ok().and_then(|dir| std::fs::read_dir(dir.parent()?).ok());
    let is_cluster = |entry: &std::fs::DirEntry| entry.path().join("cluster.json").exists();
    let others = folder.into_iter().flatten().filter_map(Result::ok).filter(is_cluster);
    let mut others: Vec<String> = others.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    others.sort();
    let there = if others.is_empty() { String::new() } else { format!("; there are: {}", others.join(", ")) };
    UserError::new(codes::NO_CLUSTER, format!("{before}there is no dev cluster named {name}{there}"), "basalt dev up")
}

impl Cluster {
    /// Opens the record, if there is one.
    pub fn open(name: &str) -> Result<Option<Cluster>> {
        let dir = dir_of(name)?;
        let path = dir.join("cluster.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unusable(&path, &e).into()),
        };
        let record = serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(Cluster { dir, record }))
    }

    /// Opens the record as [`Cluster::open`] does, or returns an error with advice.
    pub fn expect(name: &str) -> Result<Cluster> {
        Cluster::open(name)?.ok_or_else(|| missing(name, "").into())
    }

    /// Makes the folder and the record.
    pub fn create(name: &str, osds: u32, device_bytes: u64) -> Result<Cluster> {
        let dir = dir_of(name)?;
        for sub in ["run", "pids", "logs"] {
            let path = dir.join(sub);
            make_dir(&path)?;
        }
        let record = Record {
            schema: "basalt.dev.cluster/1".to_owned(),
            name: name.to_owned(),
            mark: uuid::Uuid::new_v4().to_string(),
            port_shift: free_block(osds)?,
            metas: 1,
            osds,
            device_bytes,
            exports: Vec::new(),
        };
        let cluster = Cluster { dir, record };
        cluster.save()?;
        Ok(cluster)
    }

    /// Writes the record, atomically.
    pub fn save(&self) -> Result<()> {
        let path = self.dir.join("cluster.json");
        let next = self.dir.join("cluster.json.next");
        let text = serde_json::to_string_pretty(&self.record)?;
        std::fs::write(&next, text).map_err(|e| unusable(&next, &e))?;
        std::fs::rename(&next, &path).map_err(|e| unusable(&path, &e))?;
        Ok(())
    }

    pub fn meta_addr(&self, i: u32) -> SocketAddr {
        local(META_PORT + self.record.port_shift + 10 * i as u16)
    }

    pub fn osd_addr(&self, n: u32) -> SocketAddr {
        local(META_PORT + 100 + self.record.port_shift + 10 * n as u16)
    }

    pub fn osd_dir(&self, n: u32) -> PathBuf {
        self.dir.join(format!("osd.{n}"))
    }

    pub fn device(&self, n: u32) -> PathBuf {
        self.osd_dir(n).join("device")
    }

    pub fn socket(&self, export: &str) -> PathBuf {
        self.dir.join("run").join(format!("{}.sock", file_name(export)))
    }
}

/// Returns a volume's name as part of a file's name. No volume name has a `~`, so no two volumes share
/// a file.
pub fn file_name(volume: &str) -> String {
    volume.replace('/', "~")
}

/// Returns the volume of a file's name.
pub fn volume_name(file: &str) -> String {
    file.replace('~', "/")
}

/// Makes a folder that only its owner reads, and those above it.
pub fn make_dir(path: &Path) -> Result<(), UserError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| unusable(path, &e))
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns the first shift whose ports are all free.
fn free_block(osds: u32) -> Result<u16> {
    let free = |port: u16| TcpListener::bind(local(port)).is_ok();
    for block in 0..BLOCKS_MAX {
        let shift = block * BLOCK;
        let ports = [0, 1].into_iter().chain((1..=osds as u16).flat_map(|n| [100 + 10 * n, 101 + 10 * n]));
        if ports.map(|p| META_PORT + shift + p).all(free) {
            if shift > 0 {
                // Standard output may be JSON.
                eprintln!("ports from {META_PORT} on are taken; using {} on", META_PORT + shift);
            }
            return Ok(shift);
        }
    }
    Err(UserError::new(codes::NO_FREE_PORT, "no free block of ports from 7300 to 27300", "basalt dev down").into())
}
