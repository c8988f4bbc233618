//! Queries one metadata server by its address, whether it leads or not.

use crate::follow::connect;
use crate::pb::{self, admin_client::AdminClient as Rpc};
use crate::probe::{self, Found};
use std::time::Duration;

/// Report of a metadata server about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaInfo {
    pub version: String,
    /// Start time in milliseconds of the Unix clock.
    pub started_ms: u64,
    pub leads: bool,
    /// Address of another one that leads, if known.
    pub leader: Option<String>,
    /// Reason why no leader is known.
    pub why: Option<String>,
}

/// Queries the metadata server at `addr`, `host:port`.
///
/// # Errors
/// The reason, in words, why there is no answer within `timeout`.
pub async fn meta_info(addr: &str, timeout: Duration) -> Result<MetaInfo, String> {
    let ask = async {
        let channel = connect(addr).await?;
        let asked = Rpc::new(channel).meta_info(pb::MetaInfoRequest {}).await;
        asked.map(tonic::Response::into_inner).map_err(|status| match status.code() {
            tonic::Code::Unimplemented => "it runs an older version that does not report its state".to_string(),
            _ => crate::status::lost(&status),
        })
    };
    let why = match tokio::time::timeout(timeout, ask).await {
        Ok(Ok(reply)) => {
            let pb::MetaInfoReply { version, started_ms, leads, leader, why } = reply;
            return Ok(MetaInfo { version, started_ms, leads, leader, why });
        }
        Ok(Err(why)) => why,
        Err(_) => format!("no answer in {} s", timeout.as_secs()),
    };
    match probe::look(addr).await {
        Found::Http2 | Found::Gone => Err(why),
        found => Err(found.words().unwrap_or(why)),
    }
}
