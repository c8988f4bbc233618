//! The least time of a request and its answer over loopback TCP: two threads that only send and receive.

use super::counters::Figures;
use crate::clock;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// Bytes of a request, and of its answer.
const MESSAGE: usize = 64;
/// A round trip that takes longer is a fault.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Sends requests one after the other for so many seconds.
///
/// # Errors
/// A socket fails.
pub fn round_trips(seconds: u64) -> Result<Figures> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    let server = std::thread::spawn(move || -> Result<()> {
        let (mut peer, _) = listener.accept()?;
        peer.set_nodelay(true)?;
        let mut message = [0; MESSAGE];
        // The client closes at the end.
        while peer.read_exact(&mut message).is_ok() {
            peer.write_all(&message)?;
        }
        Ok(())
    });
    let mut peer = TcpStream::connect(addr)?;
    peer.set_nodelay(true)?;
    peer.set_read_timeout(Some(ANSWER_MAX))?;
    let (mut message, mut times) = ([0; MESSAGE], Vec::new());
    let began = clock::now();
    let mut last = Duration::ZERO;
    while last < Duration::from_secs(seconds) {
        peer.write_all(&message)?;
        peer.read_exact(&mut message).context("an answer over loopback")?;
        let now = began.elapsed();
        times.push(now - last);
        last = now;
    }
    drop(peer);
    server.join().expect("the server's thread")?;
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let at = |share: f64| us(times[((times.len() - 1) as f64 * share) as usize]);
    let figures = [
        ("iops", times.len() as f64 / last.as_secs_f64()),
        ("mean_us", us(last) / times.len() as f64),
        ("p50_us", at(0.5)),
        ("p99_us", at(0.99)),
    ];
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Returns the least latency of a read by another process: `raw` reads the file, `round_trip` carries request and answer, and half a
/// round trip more is allowed for the work between.
pub fn read_over(raw: &Figures, round_trip: &Figures) -> Figures {
    let parts = raw.get("p50_us").zip(round_trip.get("p50_us"));
    parts.map(|(raw, round_trip)| ("p50_us".to_owned(), raw + 1.5 * round_trip)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_over_loopback_takes_the_raw_read_and_half_as_much_again() {
        let p50 = |value: f64| Figures::from([("p50_us".to_owned(), value)]);
        assert_eq!(read_over(&p50(50.0), &p50(20.0)), p50(80.0));
        assert_eq!(read_over(&p50(50.0), &Figures::new()), Figures::new());
    }

    #[test]
    fn round_trips_are_timed() {
        let figures = round_trips(1).unwrap();
        assert!(figures["p50_us"] > 0.0 && figures["p50_us"] <= figures["p99_us"], "{figures:?}");
        assert!(figures["iops"] * figures["mean_us"] > 0.99e6, "{figures:?}");
    }
}
