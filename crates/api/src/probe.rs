//! Identifies the server at an address where no metadata server answers: an error that names it saves a search.
//!
//! Input: an address. Output: its kind, with words for users. A metadata server speaks HTTP/2. It sends a SETTINGS frame
//! as soon as it has accepted a connection, even when it is too busy to answer calls.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for the connection, and then for the first bytes.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(1);
/// First bytes of a client of HTTP/2 (RFC 9113, 3.4): the preface and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// Type of the frame SETTINGS, and length of the head of a frame.
const SETTINGS: u8 = 4;
const FRAME_HEAD_LEN: usize = 9;

/// Kind of server at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It speaks HTTP/2, as a metadata server does.
    Http2,
    /// It accepts connections and sends nothing: no metadata server, or one whose process is stopped.
    Silent,
    /// It speaks another protocol, named in words.
    Stranger(String),
    /// There is no connection, or one that ended at once.
    Gone,
}

impl Found {
    /// Returns the kind in words; `None` where nothing was learnt.
    pub fn words(&self) -> Option<String> {
        match self {
            Found::Http2 | Found::Gone => None,
            Found::Silent => Some("a process accepts connections there and says nothing".to_string()),
            Found::Stranger(what) => Some(format!("{what} answers there, not a metadata server")),
        }
    }
}

/// Connects and reads the first bytes.
pub(crate) async fn look(addr: &str) -> Found {
    let addr = addr.rsplit("://").next().unwrap_or(addr);
    let Ok(Ok(mut stream)) = tokio::time::timeout(FIRST_BYTES_MAX, TcpStream::connect(addr)).await else {
        return Found::Gone;
    };
    let mut bytes = [0; 64];
    let mut len = 0;
    let read = async {
        stream.write_all(HELLO).await?;
        while len < FRAME_HEAD_LEN {
            match stream.read(&mut bytes[len..]).await? {
                0 => break,
                more => len += more,
            }
        }
        Ok::<(), std::io::Error>(())
    };
    let in_time = tokio::time::timeout(FIRST_BYTES_MAX, read).await.is_ok();
    match (len, in_time) {
        (0, false) => Found::Silent,
        (0, true) => Found::Gone,
        _ => name(&bytes[..len]),
    }
}

/// Returns which protocol begins with these bytes.
fn name(bytes: &[u8]) -> Found {
    let known: [(&[u8], &str); 5] = [
        (b"SSH-", "an SSH server"),
        (b"HTTP/1", "an HTTP server"),
        (b"NBDMAGIC", "an NBD server"),
        (b"\x15\x03", "a TLS server"),
        (b"220 ", "a mail or FTP server"),
    ];
    if bytes.len() >= FRAME_HEAD_LEN && bytes[0] == 0 && bytes[3] == SETTINGS && bytes[5..9] == [0; 4] {
        return Found::Http2;
    }
    let what = known.iter().find(|(begin, _)| bytes.starts_with(begin));
    Found::Stranger(what.map_or_else(
        || format!("a program whose first bytes are \"{}\"", bytes[..bytes.len().min(16)].escape_ascii()),
        |(_, what)| (*what).to_string(),
    ))
}

#[cfg(test)]
mod tests {
    use super::{Found, look, name};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    #[test]
    fn first_bytes_name_the_protocol() {
        assert_eq!(name(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3]), Found::Http2);
        assert_eq!(name(b"SSH-2.0-OpenSSH_9"), Found::Stranger("an SSH server".into()));
        let unknown = Found::Stranger("a program whose first bytes are \"\\x00\\xffhello\"".into());
        assert_eq!(name(b"\x00\xffhello"), unknown);
    }

    #[tokio::test]
    async fn an_address_is_told_from_another_by_what_it_says() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound").to_string();
        assert_eq!(look(&addr).await, Found::Silent, "no process accepts");
        let speak = async {
            // The first connection is that of the previous probe.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let _ = stream.write_all(b"SSH-2.0-test\r\n").await;
            }
        };
        let (found, ()) = tokio::join!(look(&addr), speak);
        assert_eq!(found, Found::Stranger("an SSH server".into()));
        drop(listener);
        assert_eq!(look(&addr).await, Found::Gone);
    }
}
