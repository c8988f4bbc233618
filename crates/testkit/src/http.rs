//! A minimal HTTP client for a daemon's endpoint.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_MAX: u64 = 4 << 20;

/// Returns the value of a counter or gauge without labels.
pub fn metric(addr: SocketAddr, name: &str) -> Result<u64> {
    let (_, page) = get(addr, "/metrics")?;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.with_context(|| format!("no {name} at {addr}"))?;
    value.parse().with_context(|| format!("{name} is {value}"))
}

/// Returns the value of every counter and gauge without labels.
pub fn metrics(addr: SocketAddr) -> Result<BTreeMap<String, f64>> {
    let (_, page) = get(addr, "/metrics")?;
    let pairs = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
    Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

/// GETs a page; returns status code and body.
pub fn get(addr: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: testkit\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("an answer has a head")?;
    let code = head.split(' ').nth(1).context("a status code")?.parse()?;
    Ok((code, body.to_owned()))
}
