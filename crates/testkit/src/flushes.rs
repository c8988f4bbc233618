//! Bare flushes of the disk that holds the devices, one after the other while a scenario runs: what a slow command is compared with.

use crate::clock;
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks that are written again and again, so that no flush has to allocate.
const BLOCKS: u64 = 256;
/// Pause between two flushes, which keeps their load small.
const BETWEEN: Duration = Duration::from_millis(10);

/// A thread that writes a block of 4 KiB to a file of its own and flushes it. It ends with this.
pub struct Flushes {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<Vec<Duration>>>>,
}

impl Flushes {
    /// Starts to flush a file `flushes` in this folder.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn start(dir: &Path) -> Result<Flushes> {
        let path = dir.join("flushes");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        file.write_all_at(&vec![1; BLOCK * BLOCKS as usize], 0).and_then(|()| file.sync_all())?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let from = clock::now();
                file.write_all_at(&[took.len() as u8; BLOCK], took.len() as u64 % BLOCKS * BLOCK as u64)?;
                file.sync_data()?;
                took.push(from.elapsed());
                clock::pause(BETWEEN);
            }
            Ok(took)
        });
        Ok(Flushes { is_over, thread: Some(thread) })
    }

    /// Ends them, and describes how long they took.
    ///
    /// # Errors
    /// A write or a flush has failed.
    pub fn end(mut self) -> Result<String> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it ends once");
        let mut took = thread.join().expect("it does not panic")?;
        took.sort_unstable();
        let last = took.len().checked_sub(1).context("no flush has ended")?;
        let at = |permille: usize| took[last * permille / 1000].as_secs_f64() * 1e3;
        Ok(format!(
            "{} bare flushes of the disk meanwhile: {:.1} ms (median), {:.0} ms (p99), {:.0} ms (p99.9), {:.0} ms at most",
            took.len(),
            at(500),
            at(990),
            at(999),
            at(1000)
        ))
    }
}

impl Drop for Flushes {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_counted_until_their_end() {
        let dir = std::env::temp_dir().join(format!("basalt-flushes-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let flushes = Flushes::start(&dir).unwrap();
        clock::pause(Duration::from_millis(50));
        let told = flushes.end().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(told.contains("bare flushes of the disk meanwhile") && !told.starts_with("0 "), "{told}");
        assert!(Flushes::start(&dir).is_err(), "there is no such folder");
    }
}
