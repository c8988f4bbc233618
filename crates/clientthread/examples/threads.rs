//! A program with threads: it makes a volume, four threads use it, and a snapshot of it is read.
//!
//! `cargo run --package clientthread --example threads -- HOST:PORT`

use clientthread::{Access, Cluster, Failure, Queue, Settings, Volume, metas};
use control::admin::{AdminAnswer, AdminAsk, CutAsk, VolumeRemove, VolumeText};
use device::Request;
use std::thread;
use types::{IoBuf, Stripe};

const NAME: &str = "main/threads";
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
const THREADS: u64 = 4;

fn main() -> Result<(), Failure> {
    let list = std::env::args().nth(1);
    let cluster = Cluster::<u64>::connect(Settings::new(metas(list.as_deref())?))?;
    let (name, text) = (NAME.to_owned(), VolumeText::default());
    ask(&cluster, AdminAsk::VolumeCreate { name, len_bytes: 64 << 20, stripe: Stripe::NONE, text })?;
    let used = use_volume(&cluster);
    let remove = VolumeRemove { name: NAME.to_owned(), now: true, snapshots: true, ..VolumeRemove::default() };
    let removed = ask(&cluster, AdminAsk::VolumeRemove(remove));
    used.and(removed.map(drop))?;
    cluster.stop()?;
    cluster.join();
    Ok(())
}

/// Sends a request of an administrator, and waits for the answer.
fn ask(cluster: &Cluster, ask: AdminAsk) -> Result<AdminAnswer, Failure> {
    cluster.ask(ask)?.wait()
}

fn use_volume(cluster: &Cluster) -> Result<(), Failure> {
    let volume = cluster.open(NAME, Access::Write)?;
    println!("{NAME} has {} bytes", volume.info().len_bytes);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                scope.spawn({
                    let volume = &volume;
                    move || write(volume, n)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(Failure::bug("a thread panicked"))))
    })?;
    println!("{} blocks are written", THREADS * BLOCKS);
    let names = vec![format!("{NAME}@first")];
    ask(cluster, AdminAsk::SnapshotCreate(CutAsk { names, ..CutAsk::default() }))?;
    volume.call(Request::Trim { offset: 0, len: THREADS * BLOCKS * BLOCK })?;
    let snapshot = cluster.open(&format!("{NAME}@first"), Access::Read)?;
    println!("the snapshot has {}, the volume {}", first_byte(&snapshot)?, first_byte(&volume)?);
    snapshot.close()?;
    volume.close()
}

/// Returns the first byte of the second block.
fn first_byte(volume: &Volume) -> Result<u8, Failure> {
    Ok(volume.call(Request::Read { offset: BLOCK, len: BLOCK })?[0][0])
}

/// Writes the blocks of one thread, all of them in flight at once.
fn write(volume: &Volume, thread: u64) -> Result<(), Failure> {
    let queue = Queue::new(BLOCKS as u32)?;
    for block in thread * BLOCKS..(thread + 1) * BLOCKS {
        let buf = IoBuf::copy_of(&[block as u8; BLOCK as usize]);
        volume.submit(&queue, block, Request::Write { offset: block * BLOCK, buf, fua: false })?;
    }
    for finished in queue.take(BLOCKS as usize, BLOCKS as usize, None)? {
        finished.result.map_err(|errno| volume.failure(errno))?;
    }
    Ok(())
}
