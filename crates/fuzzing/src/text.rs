//! Words that users type: sizes, names, ids, addresses.
//!
//! Property: a parsed value, printed and parsed again, is the same value.

use crate::Verdict;
use std::net::SocketAddr;
use types::rng::Rng;
use types::{ClusterId, PgId};

#[path = "../../cli/src/size.rs"]
#[allow(unused)]
mod size;

/// Parses one word as each kind of word.
pub fn run(data: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(data);
    let mut taken = false;
    if let Ok(bytes) = size::parse(&text) {
        taken = true;
        assert_eq!(size::parse(&bytes.to_string()), Ok(bytes), "{text:?}");
        let shown = size::show(bytes);
        if bytes < 1024 {
            assert_eq!(size::parse(&shown.replace(' ', "")), Ok(bytes), "{text:?} is shown as {shown}");
        }
    }
    if let Ok(pg) = text.parse::<PgId>() {
        taken = true;
        assert_eq!(pg.to_string().parse(), Ok(pg), "{text:?}");
    }
    if let Ok(cluster) = text.parse::<ClusterId>() {
        taken = true;
        assert_eq!(cluster.to_string().parse(), Ok(cluster), "{text:?}");
    }
    if let Ok(addr) = text.parse::<SocketAddr>() {
        taken = true;
        assert_eq!(addr.to_string().parse(), Ok(addr), "{text:?}");
    }
    match control::names::split(&text) {
        Ok((pool, volume)) => {
            taken = true;
            assert_eq!(format!("{pool}/{volume}"), text);
            assert!(control::names::is_valid(pool) && control::names::is_valid(volume));
        }
        Err(refusal) => assert!(refusal.message.len() < 4096, "a refusal repeats what was typed only in part"),
    }
    if taken { Verdict::Taken } else { Verdict::Refused }
}

pub fn seed(rng: &mut Rng) -> Vec<u8> {
    let words = [
        "4096",
        "64TiB",
        "512MiB",
        "18446744073709551615",
        "16777216T",
        "3.1f",
        "4294967295.ffffffff",
        "rbd/vm-1.disk_0",
        "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a",
        "127.0.0.1:7400",
        "[fe80::1%3]:10809",
        "[::ffff:1.2.3.4]:65535",
    ];
    words[rng.below(words.len() as u64) as usize].as_bytes().to_vec()
}
