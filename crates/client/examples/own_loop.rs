//! A program with a loop of its own: it writes a volume at depth 16, reads it back, and closes it.
//!
//! `cargo run --package client --example own_loop -- HOST:PORT POOL/VOLUME`
//!
//! A turn of the loop is: `begin`, events of the client, completions, new requests, `finish`. One thread does all of it.

use client::{ClientEvent, VolumeKey};
use clientloop::{ClientLoop, LoopConfig};
use device::{Answer, Busy, Completion, Request};
use env::real::{RealConfig, RealEnv};
use std::error::Error;
use std::time::Duration;
use types::{IoBuf, Time};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;
/// Requests in flight.
const DEPTH: u64 = 16;

/// Requests of one pass over the blocks: first writes, then reads.
#[derive(Default)]
struct Pass {
    reads: bool,
    started: u64,
    ended: u64,
}

impl Pass {
    fn request(&self, block: u64) -> Request {
        let offset = block * BLOCK;
        match self.reads {
            true => Request::Read { offset, len: BLOCK },
            false => Request::Write { offset, buf: IoBuf::copy_of(&pattern(block)), fua: false },
        }
    }

    /// Counts a completion, and compares the bytes of a read.
    fn end(&mut self, completion: Completion) -> Result<(), Box<dyn Error>> {
        self.ended += 1;
        match completion.result? {
            Answer::Data(pieces) => {
                let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
                if bytes != pattern(completion.token) {
                    return Err(format!("block {} has other bytes", completion.token).into());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn pattern(block: u64) -> Vec<u8> {
    block.to_le_bytes().repeat(BLOCK as usize / 8)
}

fn connect(meta: String) -> Result<ClientLoop, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let config = LoopConfig {
        metas: vec![meta],
        holder: clientloop::holder("own_loop"),
        timeout: Some(Duration::from_secs(30)),
        full_wait: Duration::from_secs(20),
        on_unavailable: client::OnUnavailable::Freeze,
    };
    Ok(ClientLoop::new(RealEnv::new(RealConfig::default())?, runtime, config))
}

/// Does the work of a turn on the open volume. Returns whether both passes are over.
fn work(turns: &mut ClientLoop, now: Time, key: VolumeKey, pass: &mut Pass) -> Result<bool, Box<dyn Error>> {
    let device = turns.client.device(key).ok_or("the volume is not open")?;
    let mut done = Vec::new();
    device.completions(&mut done);
    done.into_iter().try_for_each(|completion| pass.end(completion))?;
    if pass.ended == BLOCKS && !pass.reads {
        println!("{BLOCKS} blocks are written");
        *pass = Pass { reads: true, ..Pass::default() };
    }
    while pass.started < BLOCKS && pass.started - pass.ended < DEPTH {
        // The token comes back with the completion.
        let token = pass.started;
        if let Err(Busy(_)) = device.submit(now, pass.request(token), token) {
            // A later turn tries again.
            break;
        }
        pass.started += 1;
    }
    Ok(pass.reads && pass.ended == BLOCKS)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(meta), Some(name)) = (args.next(), args.next()) else {
        return Err("own_loop HOST:PORT POOL/VOLUME".into());
    };
    let mut turns = connect(meta)?;
    turns.client.open(&name, true, false);
    let (mut volume, mut pass, mut closes) = (None, Pass::default(), false);
    loop {
        let now = turns.begin();
        for event in std::mem::take(&mut turns.told) {
            match event {
                ClientEvent::Opened { volume: key, info, .. } => {
                    println!("{} has {} bytes", info.name, info.len_bytes);
                    volume = Some(key);
                }
                ClientEvent::OpenRefused { why, .. } => return Err(why.message.into()),
                ClientEvent::Failed { errno, .. } => return Err(errno.into()),
                ClientEvent::Closed { .. } => return Ok(()),
                ClientEvent::Resized { .. } => {}
            }
        }
        if let Some(key) = volume.filter(|_| !closes)
            && work(&mut turns, now, key, &mut pass)?
        {
            println!("{BLOCKS} blocks are equal");
            turns.client.close(key);
            closes = true;
        }
        turns.finish(Time::NEVER)?;
    }
}
