//! A volume under a storm: its current client, the clients that were preempted, and all their lines.
//!
//! Invariant: at most one client is the current one. An earlier client that is still alive was fenced by it.

use super::client::{ClientConfig, VOLUME};
use super::history::History;
use crate::clock;
use crate::cluster::Cluster;
use crate::procs::{Proc, Spec};
use anyhow::{Context, Result, anyhow, bail};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// Requests per second of one client.
const RATE: u64 = 150;

struct Child {
    proc: Proc,
    life: usize,
    listener: JoinHandle<Result<()>>,
}

pub struct Volume {
    pub name: String,
    pub history: History,
    current: Option<Child>,
    preempted: Vec<Child>,
    lives: u32,
    log: PathBuf,
}

impl Volume {
    pub fn create(cluster: &Cluster, name: &str) -> Result<Volume> {
        let log = cluster.dir.join(format!("{name}.client.log"));
        let (name, history) = (cluster.volume(name, VOLUME)?, History::default());
        Ok(Volume { name, history, current: None, preempted: Vec::new(), lives: 0, log })
    }

    pub fn pid(&self) -> Option<u32> {
        self.current.as_ref().and_then(|child| child.proc.pid())
    }

    /// Starts the next client, for so long; the current one, if there is one, will find itself fenced.
    pub fn start(&mut self, metas: &[SocketAddr], seed: u64, millis: u64) -> Result<()> {
        self.lives += 1;
        let (volume, life) = (self.name.clone(), self.lives);
        let config = ClientConfig { metas: metas.to_vec(), volume, life, seed, millis, rate_per_s: RATE };
        let (name, program) = (format!("client {life} of {}", self.name), std::env::current_exe()?);
        let mut proc = Proc::new(Spec { name, program, args: config.args(), log: self.log.clone() });
        let pipe = proc.start_piped()?;
        let (life, listener) = self.history.listen(pipe);
        self.preempted.extend(self.current.replace(Child { proc, life, listener }));
        Ok(())
    }

    /// Kills the current client with `kill -9`.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.current.take() else { return Ok(()) };
        child.proc.kill();
        hear_out(child)
    }

    pub fn signal(&self, name: &str) -> Result<()> {
        self.current.as_ref().context("no client runs")?.proc.signal(name)
    }

    /// Sends SIGCONT to this client, if it belongs to this volume and is alive.
    pub fn go_on(&self, pid: u32) {
        let ours = self.current.iter().chain(&self.preempted).find(|child| child.proc.pid() == Some(pid));
        if let Some(child) = ours {
            let _ = child.proc.signal("CONT");
        }
    }

    /// Looks for a client that ended although no fault struck it. Returns `true` when another must be started: the
    /// client never opened the volume, or an overlapping open came behind its own, perhaps of a client that was killed
    /// meanwhile.
    ///
    /// # Errors
    /// The client ended for another reason.
    pub fn look(&mut self) -> Result<bool> {
        let Some(child) = &mut self.current else { return Ok(false) };
        if child.proc.is_alive() || self.history.has_ended(child.life) {
            return Ok(false);
        }
        let mut child = self.current.take().expect("looked at");
        let (life, tail) = (child.life, child.proc.log_tail(4));
        child.proc.reap();
        hear_out(child)?;
        if self.history.has_failed(life) && self.history.may_be_fenced(life) {
            return Ok(true);
        }
        if self.history.is_open(life) && !self.history.has_ended(life) {
            bail!("a client of {} ended by itself: {tail}", self.name);
        }
        Ok(!self.history.has_ended(life))
    }

    /// Waits until the current client has read everything, and until the preempted ones know that they are fenced.
    /// `false`: an overlapping open came behind the last one, or it came too early, and another client must finish.
    pub fn finish(&mut self, max: Duration) -> Result<bool> {
        let name = self.name.clone();
        let child = self.current.as_mut().context("a round ends with a client")?;
        clock::wait_until(&format!("the client of {name} to end"), max, || Ok(!child.proc.is_alive()))
            .with_context(|| "no liveness after the faults had stopped")?;
        let mut child = self.current.take().expect("it was there");
        let (status, life, tail) = (child.proc.reap(), child.life, child.proc.log_tail(4));
        hear_out(child)?;
        if self.history.was_early(life) || (self.history.has_failed(life) && self.history.may_be_fenced(life)) {
            return Ok(false);
        }
        if !status.is_some_and(|status| status.success()) || !self.history.has_ended(life) {
            bail!("the last client of {name} failed ({status:?}): {tail}");
        }
        for mut child in std::mem::take(&mut self.preempted) {
            let what = format!("client {} of {name} to notice that it was preempted", child.life + 1);
            clock::wait_until(&what, max, || Ok(!child.proc.is_alive()))?;
            child.proc.reap();
            hear_out(child)?;
        }
        Ok(true)
    }
}

fn hear_out(child: Child) -> Result<()> {
    child.listener.join().map_err(|_| anyhow!("the listener panicked"))?
}
