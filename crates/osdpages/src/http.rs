//! A minimal HTTP/1.1 client for an OSD's endpoint: one GET, one answer, the connection closes.
//!
//! Invariant: an answer costs at most `BODY_MAX` of memory and `PATIENCE` of time between two reads.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use types::OsdId;

/// Longest answer of an OSD; a longer one is refused.
const BODY_MAX: u64 = 64 << 20;
/// Read timeout: longer than an OSD waits for an index.
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// There is no connection, or it ended.
    #[error("{addr} cannot be reached: {source}")]
    Io {
        /// The OSD's.
        addr: SocketAddr,
        /// The failure of the system.
        source: std::io::Error,
    },
    /// The answer is no HTTP, no success, or no JSON.
    #[error("{0} does not answer like an OSD")]
    Strange(SocketAddr),
}

/// Sends a GET; returns the status and the JSON of the answer.
///
/// # Errors
/// There is no answer, or none of an OSD.
pub fn get(addr: SocketAddr, path: &str) -> Result<(u16, Value), HttpError> {
    parse(&ask(addr, path)?).ok_or(HttpError::Strange(addr))
}

/// Sends a GET; returns the text of a successful answer.
///
/// # Errors
/// There is no answer, or none of an OSD.
pub fn text(addr: SocketAddr, path: &str) -> Result<String, HttpError> {
    let answer = String::from_utf8(ask(addr, path)?).map_err(|_| HttpError::Strange(addr))?;
    let body = answer.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 200"));
    body.map(|(_, body)| body.to_owned()).ok_or(HttpError::Strange(addr))
}

/// Most OSDs that are asked at once.
const ASKED_MAX: usize = 16;

/// Asks OSDs at the same time, and returns the answers. An OSD that does not answer is missing.
pub fn ask_all<T: Send>(osds: &[(OsdId, SocketAddr)], ask: impl Fn(SocketAddr) -> Option<T> + Sync) -> Vec<(OsdId, T)> {
    let mut answers = Vec::new();
    for some in osds.chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            let ask = &ask;
            let asked = |(osd, addr)| scope.spawn(move || Some((osd, ask(addr)?)));
            let threads: Vec<_> = some.iter().copied().map(asked).collect();
            answers.extend(threads.into_iter().filter_map(|thread| thread.join().ok().flatten()));
        });
    }
    answers
}

fn ask(addr: SocketAddr, path: &str) -> Result<Vec<u8>, HttpError> {
    let io = |source| HttpError::Io { addr, source };
    let mut stream = TcpStream::connect_timeout(&addr, CONNECT_MAX).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(io)?;
    let mut answer = Vec::new();
    stream.take(BODY_MAX).read_to_end(&mut answer).map_err(io)?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, serde_json::from_slice(&answer[end + 4..]).ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn an_answer_is_a_status_and_json_and_anything_else_is_refused() {
        let good = b"HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\n\r\n{\"applied\":7}";
        assert_eq!(parse(good), Some((409, serde_json::json!({ "applied": 7 }))));
        for bad in ["", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 xx\r\n\r\n{}", "SSH-2.0\r\n\r\n{}"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
