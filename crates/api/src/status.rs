//! Refusals as gRPC statuses, and back.

use types::codes;
use types::control::Refusal;

const CODE: &str = "basalt-code";
const LEADER: &str = "basalt-leader";

/// Meaning of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The leader refused the request: final.
    Refused(Refusal),
    /// Another meta leads, at this address if known.
    NotLeader { leader: Option<String>, text: String },
    /// There is no answer: the request may or may not have been done.
    Lost(String),
}

/// Returns the status of a leader's refusal.
pub fn refused(refusal: &Refusal) -> tonic::Status {
    let mut status = tonic::Status::failed_precondition(refusal.message.clone());
    status.metadata_mut().insert(CODE, refusal.code.into());
    status
}

/// Returns the status of a meta that does not lead; `why` is the reason why none leads, if known.
pub fn not_leader(leader: Option<&str>, why: Option<&str>) -> tonic::Status {
    let none = || format!("no metadata server leads{}", why.map(|why| format!(": {why}")).unwrap_or_default());
    let text = leader.map_or_else(none, |l| format!("the metadata server at {l} leads"));
    let mut status = tonic::Status::unavailable(text);
    status.metadata_mut().insert(CODE, codes::NOT_LEADER.into());
    if let Some(leader) = leader.and_then(|l| l.parse().ok()) {
        status.metadata_mut().insert(LEADER, leader);
    }
    status
}

/// Returns the meaning of a status.
pub fn read(status: &tonic::Status) -> Failure {
    let code = status.metadata().get(CODE).and_then(|c| c.to_str().ok()).and_then(|c| c.parse::<u32>().ok());
    match code {
        Some(codes::NOT_LEADER) => {
            let leader = status.metadata().get(LEADER).and_then(|l| l.to_str().ok());
            Failure::NotLeader { leader: leader.map(str::to_string), text: status.message().to_string() }
        }
        Some(code) => Failure::Refused(Refusal { code, message: status.message().to_string() }),
        // An error about the request itself does not change with a retry.
        None if matches!(status.code(), tonic::Code::InvalidArgument | tonic::Code::Unimplemented)
            && !is_http(status) =>
        {
            Failure::Refused(Refusal { code: codes::BAD_REQUEST, message: status.message().to_string() })
        }
        None => Failure::Lost(lost(status)),
    }
}

/// Whether an HTTP server without gRPC answered.
pub(crate) fn is_http(status: &tonic::Status) -> bool {
    // A metadata server may carry these words of another server: the store that it asked.
    status.metadata().get(CODE).is_none() && status.message().contains("grpc-status header missing")
}

/// Returns a failed call in words. The transport's message about a server of another protocol names no
/// cause, so it is replaced.
pub(crate) fn lost(status: &tonic::Status) -> String {
    let said = format!("{}: {}", status.code(), status.message());
    match status.message() {
        _ if is_http(status) => {
            "the server at that address is an HTTP server and not a metadata server; give its gRPC port, 7300 by \
             default"
                .to_string()
        }
        "transport error" => {
            format!("the connection broke, or the process at that port is not a metadata server ({said})")
        }
        _ => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_the_status_that_carries_it() {
        let refusal = Refusal { code: 2011, message: "volume \"a/b\" does not exist".into() };
        assert_eq!(read(&refused(&refusal)), Failure::Refused(refusal));
        let text = "the metadata server at 127.0.0.1:7310 leads".to_string();
        let elsewhere = Failure::NotLeader { leader: Some("127.0.0.1:7310".into()), text };
        assert_eq!(read(&not_leader(Some("127.0.0.1:7310"), None)), elsewhere);
        let text = "no metadata server leads: etcd is away".to_string();
        assert_eq!(read(&not_leader(None, Some("etcd is away"))), Failure::NotLeader { leader: None, text });
        assert!(matches!(read(&tonic::Status::unavailable("gone")), Failure::Lost(_)));
        let why = "the metadata store (etcd at http://127.0.0.1:1) does not answer: grpc-status header missing";
        assert!(!is_http(&not_leader(None, Some(why))), "a metadata server said it");
        let said = |status: tonic::Status| match read(&status) {
            Failure::Lost(text) => text,
            other => panic!("{other:?}"),
        };
        assert!(said(tonic::Status::unknown("transport error")).contains("not a metadata server"));
        let http = "protocol error: grpc-status header missing, mapped from HTTP status code 404";
        assert!(said(tonic::Status::unimplemented(http)).contains("gRPC port"), "404 comes as unimplemented");
    }
}
