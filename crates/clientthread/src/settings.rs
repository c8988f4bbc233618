//! Settings of a cluster handle, and the addresses of metadata servers as programs write them.

use crate::failure::Failure;
use client::OnUnavailable;
use std::time::Duration;

/// Environment variable that names the metadata servers.
const META: &str = "BASALT_META";

/// Settings of a cluster handle.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Metadata servers, as `host:port`.
    pub metas: Vec<String>,
    /// Name of the kind of program, which `volume info` shows for the holder of a volume: `libbasalt`, `python`.
    pub kind: String,
    /// Time in which the leading metadata server has to answer: at the connect, and to each [`crate::Cluster::ask`].
    pub connect_timeout: Duration,
    /// Time after which a request fails with `TimedOut`; `None`: never.
    pub io_timeout: Option<Duration>,
    /// Time that a write waits for space in a full pool before it fails with `NoSpace`, unless the volume has a policy (`--when-full`).
    pub full_wait: Duration,
    /// Whether requests fail with `TimedOut` while the storage is unavailable.
    pub on_unavailable: OnUnavailable,
}

impl Settings {
    /// Returns the defaults: 15 s for metadata servers, no time limit for requests, which wait for storage that is unavailable, and
    /// 20 s of waiting for space, which is enough to free some and shorter than the patience of most programs.
    pub fn new(metas: Vec<String>) -> Settings {
        Settings {
            metas,
            kind: "rust".to_owned(),
            connect_timeout: Duration::from_secs(15),
            io_timeout: None,
            full_wait: Duration::from_secs(20),
            on_unavailable: OnUnavailable::Freeze,
        }
    }
}

/// Returns the addresses of a list `HOST:PORT,HOST:PORT`, or of the environment variable `BASALT_META` when there is none.
///
/// # Errors
/// EINVAL for an address that is none, or when both are missing.
pub fn metas(given: Option<&str>) -> Result<Vec<String>, Failure> {
    let list = match given {
        Some(list) => list.to_owned(),
        None => std::env::var(META)
            .map_err(|_| Failure::invalid(format!("no metadata server is given, and the environment has no {META}")))?,
    };
    let is_address = |address: &str| {
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    let metas: Vec<String> = list.split(',').map(|address| address.trim().to_owned()).collect();
    match metas.iter().find(|address| !is_address(address)) {
        Some(wrong) => Err(Failure::invalid(format!("`{wrong}` is no metadata server: write HOST:PORT,HOST:PORT"))),
        None => Ok(metas),
    }
}

#[cfg(test)]
mod tests {
    use super::metas;

    #[test]
    fn metas_are_a_list_of_hosts_with_ports() {
        assert_eq!(
            metas(Some("a:7300, [fd00::1]:7310")).as_deref(),
            Ok(&["a:7300".into(), "[fd00::1]:7310".into()][..])
        );
        for wrong in ["", "a", "a:", ":1", "a:0", "a:7300,", "a:70000"] {
            assert_eq!(metas(Some(wrong)).expect_err(wrong).errno, libc::EINVAL);
        }
    }
}
