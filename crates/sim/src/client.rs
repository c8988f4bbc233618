//! A client machine. One process at a time opens the volume, keeps the workload's queue depth filled and hands every
//! answer to the checker. The process that follows a crash opens with `steal`.
//!
//! An opener on another machine may preempt it meanwhile. Then the preempted opener goes on until it learns that it is
//! fenced, and what it submits from then on must have no effect.
//!
//! Invariant: every request of the volume's user, and its answer, is in [`Linear`], with global times.

use crate::check::linear::Linear;
use crate::mail::{Mail, Post};
use crate::process::{Heard, Process};
use crate::workload::{Turn, Workload};
use ::client::ClientTuning;
use simenv::{NodeId, SimEnv, World};
use std::time::Duration;
use types::Time;
use types::control::ClientAnswer;
use types::rng::Rng;

/// Number of requests that are still submitted when nothing is broken any more.
const CALM_OPERATIONS: u64 = 100;
const OPEN_AGAIN: Duration = Duration::from_millis(100);

/// The machine, and the process on it while one runs.
pub struct ClientNode {
    pub node: NodeId,
    number: usize,
    /// The machine opens for writing; readers are never preempted.
    writes: bool,
    life: u32,
    running: Option<(Process, SimEnv)>,
    pub workload: Option<Box<dyn Workload>>,
    /// Time for which a write that finds a store full is tried again.
    pub full_wait: Duration,
    pub tuning: ClientTuning,
    /// The first answer that a user must never get.
    pub failure: Option<String>,
    rng: Rng,
    /// Mean pause between two requests, in nanoseconds.
    pace: u64,
    /// Earliest time of the next request.
    submit_at: Time,
    open_at: Time,
    open: bool,
    /// Another opener has asked for the volume.
    stolen: bool,
    /// Another opener has the volume.
    fenced: bool,
    /// Requests may fail, because too many disks have lied.
    pub lenient: bool,
    /// The client submits nothing more.
    quiet: bool,
    /// The administrator was asked to remove its volume.
    removed: bool,
    /// An open has returned since the cluster looked.
    just_opened: bool,
    /// It writes to a volume that other machines write to.
    shares: bool,
    /// It may lose the volume: other machines may fence it, or open the volume after its lease.
    may_lose: bool,
    /// The next open fences the other writers.
    steals: bool,
    /// It was told to close the volume.
    leaving: bool,
    /// It has lost the volume, or closed it.
    left: bool,
    /// Begin of each life; global time.
    began: Vec<u64>,
}

impl ClientNode {
    pub fn new(node: NodeId, number: usize, writes: bool, rng: Rng) -> ClientNode {
        ClientNode {
            node,
            number,
            writes,
            life: 0,
            running: None,
            workload: None,
            full_wait: Duration::ZERO,
            tuning: ClientTuning::default(),
            failure: None,
            rng,
            pace: 0,
            submit_at: Time::ZERO,
            open_at: Time::NEVER,
            open: false,
            stolen: false,
            fenced: false,
            lenient: false,
            quiet: false,
            removed: false,
            just_opened: false,
            shares: false,
            may_lose: false,
            steals: false,
            leaving: false,
            left: false,
            began: Vec::new(),
        }
    }

    /// Gives the client work that is spread over about `over`.
    pub fn begin(&mut self, workload: Box<dyn Workload>, over: Duration) {
        let nanos = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
        self.pace = nanos / workload.operations().max(1);
        self.workload = Some(workload);
        self.removed = false;
    }

    /// Makes it one writer of several.
    pub fn share(&mut self) {
        (self.shares, self.may_lose) = (true, true);
    }

    /// Nothing lets it lose the volume from now on.
    pub fn keep(&mut self) {
        self.may_lose = false;
    }

    /// Makes its next open fence the other writers.
    pub fn steal_next(&mut self) {
        self.steals = true;
    }

    /// Returns the number of its processes so far.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// Returns when a life began, and when the next one did; global time.
    pub fn span_of(&self, life: u32) -> std::ops::Range<u64> {
        let begin = |life: u32| self.began.get(life as usize - 1).copied();
        begin(life).unwrap_or(u64::MAX)..begin(life + 1).unwrap_or(u64::MAX)
    }

    /// Closes the volume: requests in flight end, others do not begin.
    pub fn close(&mut self) {
        if let Some((process, _)) = &mut self.running {
            process.close();
            (self.open, self.leaving) = (false, true);
        }
    }

    /// Whether it closes the volume, and has not been told that this is done.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether its process has no volume any more: it has lost it, or closed it.
    pub fn has_left(&self) -> bool {
        self.left || self.running.is_none()
    }

    /// Notes that its requests may find their volume gone from now on.
    pub fn removed(&mut self) {
        self.removed = true;
    }

    /// Ends the process; no other follows.
    pub fn hang_up(&mut self) {
        self.end();
    }

    /// Returns when the oldest unanswered request was submitted; global time.
    pub fn oldest(&self) -> Option<u64> {
        self.workload.as_ref()?.oldest()
    }

    /// Ends the pauses between requests, and limits how many follow.
    pub fn hurry(&mut self) {
        if let Some(workload) = &mut self.workload {
            workload.limit(CALM_OPERATIONS);
        }
        self.pace = 0;
        self.submit_at = Time::ZERO;
    }

    /// Makes the workload give back the space that it has written.
    pub fn give_back(&mut self) {
        if let Some(workload) = &mut self.workload {
            workload.give_back();
        }
    }

    /// Whether some of these trims are not submitted yet.
    pub fn is_giving_back(&self) -> bool {
        self.workload.as_ref().is_some_and(|workload| workload.is_giving_back())
    }

    /// Submits nothing more; requests in flight are waited for.
    pub fn be_quiet(&mut self) {
        self.quiet = true;
    }

    /// Whether the machine ever had a process.
    pub fn has_begun(&self) -> bool {
        self.life > 0
    }

    /// Returns the fill of every queue in its process, each with its limit.
    pub fn limits(&self) -> Vec<(&'static str, u64, u64)> {
        self.running.as_ref().map_or_else(Vec::new, |(process, _)| process.limits())
    }

    /// Whether its process holds the volume, as far as it knows.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether its process is in this life.
    pub fn is_in_life(&self, life: u32) -> bool {
        self.life == life && self.running.is_some()
    }

    /// Whether it has a process.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Notes that another opener asks for the volume.
    pub fn preempted(&mut self) {
        self.stolen = true;
    }

    /// Whether it was preempted, and its process has noticed.
    pub fn has_lost(&self) -> bool {
        self.stolen && !self.open
    }

    /// Notes that another opener's open has returned.
    pub fn fenced(&mut self) {
        self.fenced = true;
    }

    /// Whether an open has returned since the last call.
    pub fn take_just_opened(&mut self) -> bool {
        std::mem::take(&mut self.just_opened)
    }

    /// Starts a process that opens the volume even if another opener holds it; an older process on this machine dies.
    pub fn restart(&mut self, world: &World) {
        self.end();
        self.life += 1;
        self.began.push(world.now().0);
        let mut env = world.env(self.node);
        let process = Process::new(self.life, self.number, (self.full_wait, self.tuning), &mut env);
        self.running = Some((process, env));
        self.open_at = world.now();
        self.stolen = false;
    }

    fn end(&mut self) {
        self.running = None;
        self.open = false;
        (self.leaving, self.left) = (false, false);
        self.open_at = Time::NEVER;
        if let Some(workload) = &mut self.workload {
            workload.forget_inflight();
        }
    }

    fn wants_more(&self) -> bool {
        let (Some((process, _)), Some(workload)) = (&self.running, &self.workload) else { return false };
        !self.quiet && self.open && process.is_ready() && workload.wants_more()
    }

    /// Returns when the machine wants to act by itself.
    pub fn next_wanted(&self) -> Option<Time> {
        self.running.as_ref()?;
        let submit = if self.wants_more() { self.submit_at } else { Time::NEVER };
        Some(submit.min(self.open_at)).filter(|t| *t != Time::NEVER)
    }

    /// Acts if an action is due.
    pub fn pump(&mut self, world: &World, linear: &mut Linear, post: &mut Post) {
        let now = world.now();
        if world.is_paused(self.node) || self.next_wanted().is_none_or(|at| at > now) {
            return;
        }
        if let Some((process, _)) = &mut self.running
            && now >= self.open_at
        {
            self.open_at = Time::NEVER;
            let again = !self.shares && (self.life > 1 || self.number > 0);
            let steal = self.writes && (again || std::mem::take(&mut self.steals));
            let names = self.workload.as_ref().map_or_else(Vec::new, |w| w.volumes());
            process.open(&names, self.writes, steal);
        }
        self.turn(world, linear, post);
    }

    /// Turns the process until it has nothing more to do at this moment.
    pub fn turn(&mut self, world: &World, linear: &mut Linear, post: &mut Post) {
        let now = world.now();
        crate::trace::at(now, crate::trace::Speaker::Client);
        if let Some((process, env)) = &mut self.running {
            process.wait(env);
        }
        loop {
            let Some((process, env)) = &mut self.running else { return };
            process.work(env);
            for (id, ask) in process.end_turn(env) {
                post.send(now, Mail::Ask { client: self.number, life: self.life, id: id.0, ask, since: now });
            }
            self.listen(now, linear);
            self.use_device(now, linear);
            let Some((process, env)) = &mut self.running else { return };
            for (id, ask) in process.end_turn(env) {
                post.send(now, Mail::Ask { client: self.number, life: self.life, id: id.0, ask, since: now });
            }
            if !process.wait(env) {
                return;
            }
        }
    }

    fn listen(&mut self, now: Time, linear: &mut Linear) {
        let Some((process, _)) = &mut self.running else { return };
        for heard in process.hear() {
            match heard {
                Heard::Opened { slot, volume, all } => {
                    if let Some(workload) = &mut self.workload {
                        workload.opened(slot);
                    }
                    self.open |= all;
                    if self.shares {
                        self.fenced = false;
                    }
                    if !self.writes || self.shares {
                        continue;
                    }
                    // R6: from here on no write of an earlier opener takes effect.
                    let history = self.workload.as_ref().map_or(volume.0, |work| work.history_of(volume));
                    linear.abandon_older(history, now.0);
                    if all {
                        self.fenced = false;
                        self.just_opened = true;
                    }
                }
                Heard::Resized { slot, len_bytes } => {
                    self.workload.iter_mut().for_each(|work| work.grown(slot, len_bytes));
                }
                Heard::Refused if self.shares => self.open_at = now + OPEN_AGAIN,
                Heard::Refused if self.stolen || self.removed => {}
                Heard::Refused => self.open_at = now + OPEN_AGAIN,
                Heard::Failed(types::Errno::Fenced) if self.stolen || self.may_lose || self.leaving => {
                    (self.open, self.leaving, self.left) = (false, false, true);
                }
                Heard::Failed(types::Errno::Fenced | types::Errno::Gone) if self.removed => self.open = false,
                Heard::Closed => {
                    (self.leaving, self.left) = (false, true);
                    self.workload.iter_mut().for_each(|work| work.forget_inflight());
                }
                Heard::Failed(errno) => {
                    self.failure.get_or_insert(format!("an opener lost its volume without a rival: {errno:?}"));
                }
            }
        }
    }

    /// Takes answers and submits requests, until neither goes on.
    fn use_device(&mut self, now: Time, linear: &mut Linear) {
        let (Some((process, env)), Some(workload)) = (&mut self.running, &mut self.workload) else { return };
        let (fenced, lenient, removed) = (self.fenced, self.lenient, self.removed);
        let stolen = self.stolen || self.may_lose;
        let mut turn = Turn { now: now.0, fenced, stolen, lenient, removed, linear };
        loop {
            let mut moved = false;
            for done in process.completions(env) {
                moved = true;
                // A close gives up what was not sent; the workload forgets it with the rest.
                if self.shares && !self.open && matches!(done.result, Err(types::Errno::Shutdown)) {
                    continue;
                }
                if let Err(what) = workload.completed(done.token, done.result, &mut turn) {
                    self.failure.get_or_insert(what);
                }
            }
            while process.is_ready()
                && !self.quiet
                && self.open
                && now >= self.submit_at
                && let Some(ask) = workload.next(&mut turn)
            {
                process.submit(env, ask);
                moved = true;
                if self.pace > 0 && self.rng.chance(1, 8) {
                    self.submit_at = now + Duration::from_nanos(self.rng.below(16 * self.pace));
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Takes an answer of the metadata server.
    pub fn answer(
        &mut self,
        world: &World,
        life: u32,
        id: u64,
        answer: ClientAnswer,
        linear: &mut Linear,
        post: &mut Post,
    ) {
        if let Some((process, env)) = self.running.as_mut().filter(|_| life == self.life) {
            process.answered(env, id, answer);
            self.turn(world, linear, post);
        }
    }
}
