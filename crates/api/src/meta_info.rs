//! One metadata server, asked by its address, whether it leads or not.

use crate::follow::connect;
use crate::pb::{self, admin_client::AdminClient as Rpc};
use crate::probe::{self, Found};
use std::time::Duration;

/// What a metadata server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaInfo {
    pub version: String,
    /// Unix time.
    pub started_ms: u64,
    pub leads: bool,
    /// Another one that leads, if known.
    pub leader: Option<String>,
    /// Why none is known to lead.
    pub why: Option<String>,
}

/// Asks the metadata server at `addr`, `host:port`.
///
/// # Errors
/// Why there is no answer within `timeout`, in words.
pub async fn meta_info(addr: &str, timeout: Duration) -> Result<MetaInfo, String> {
    let ask = async {
        let channel = connect(addr).await?;
        let asked = Rpc::new(channel).meta_info(pb::MetaInfoRequest {}).await;
        asked.map(tonic::Response::into_inner).map_err(|status| match status.code() {
            tonic::Code::Unimplemented => "it runs an older version that tells nothing of itself".to_string(),
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
