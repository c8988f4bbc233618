//! The client's machine: one process at a time that opens the volume, keeps the workload's depth filled
//! and hands every answer to the checker. A process that follows a crash opens with `steal`.
//!
//! Invariant: whatever the user of the volume asked and was told is in [`Linear`], with global times.

use crate::check::linear::Linear;
use crate::mail::{Mail, Post};
use crate::process::{Heard, Process};
use crate::workload::Workload;
use env::sim::{NodeId, SimEnv, World};
use std::time::Duration;
use types::Time;
use types::control::ClientAnswer;
use types::rng::Rng;

/// The volume under test.
pub const VOLUME: &str = "main/v";
const OPEN_AGAIN: Duration = Duration::from_millis(100);

/// The machine, and the process on it while one runs.
pub struct ClientNode {
    pub node: NodeId,
    life: u32,
    running: Option<(Process, SimEnv)>,
    pub workload: Option<Workload>,
    pub linear: Linear,
    /// What a user must never be told, once it was.
    pub failure: Option<String>,
    rng: Rng,
    /// Mean pause between two requests, in nanoseconds.
    pace: u64,
    /// The next request is not sent before.
    submit_at: Time,
    open_at: Time,
    pub opens: u64,
}

impl ClientNode {
    pub fn new(node: NodeId, rng: Rng) -> ClientNode {
        ClientNode {
            node,
            life: 0,
            running: None,
            workload: None,
            linear: Linear::default(),
            failure: None,
            rng,
            pace: 0,
            submit_at: Time::ZERO,
            open_at: Time::NEVER,
            opens: 0,
        }
    }

    /// Gives it work that is spread over about `over`, and starts its first process.
    pub fn begin(&mut self, world: &World, workload: Workload, over: Duration) {
        let nanos = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
        self.pace = nanos / workload.operations().max(1);
        self.workload = Some(workload);
        self.start(world);
    }

    /// No more pauses between requests.
    pub fn hurry(&mut self) {
        self.pace = 0;
        self.submit_at = Time::ZERO;
    }

    fn start(&mut self, world: &World) {
        self.life += 1;
        let mut env = world.env(self.node);
        let process = Process::new(self.life, &mut env);
        self.running = Some((process, env));
        self.open_at = world.now();
    }

    /// The process dies; another one starts at once.
    pub fn restart(&mut self, world: &World) {
        if self.running.take().is_none() {
            return;
        }
        if let Some(workload) = &mut self.workload {
            workload.forget_inflight();
        }
        self.start(world);
    }

    /// When it wants to act by itself.
    pub fn next_wanted(&self) -> Option<Time> {
        let (process, _) = self.running.as_ref()?;
        let wants = process.is_ready() && self.workload.as_ref().is_some_and(Workload::wants_more);
        let submit = if wants { self.submit_at } else { Time::NEVER };
        Some(submit.min(self.open_at)).filter(|t| *t != Time::NEVER)
    }

    /// Does what is due by itself.
    pub fn pump(&mut self, world: &World, post: &mut Post) {
        let now = world.now();
        if !self.next_wanted().is_some_and(|at| at <= now) {
            return;
        }
        if let Some((process, _)) = &mut self.running
            && now >= self.open_at
        {
            self.open_at = Time::NEVER;
            process.open(VOLUME, self.life > 1);
        }
        self.turn(world, post);
    }

    /// Turns the process until it has nothing more to do at this moment.
    pub fn turn(&mut self, world: &World, post: &mut Post) {
        let now = world.now();
        crate::trace::at(now, crate::trace::Speaker::Client);
        loop {
            let Some((process, env)) = &mut self.running else { return };
            process.work(env);
            for (id, ask) in process.end_turn(env) {
                post.send(now, Mail::Ask { client: 0, life: self.life, id: id.0, ask });
            }
            self.listen(now);
            self.use_device(now);
            let Some((process, env)) = &mut self.running else { return };
            for (id, ask) in process.end_turn(env) {
                post.send(now, Mail::Ask { client: 0, life: self.life, id: id.0, ask });
            }
            if !process.wait(env) {
                return;
            }
        }
    }

    fn listen(&mut self, now: Time) {
        let Some((process, _)) = &mut self.running else { return };
        for heard in process.hear() {
            match heard {
                Heard::Opened => {
                    // R6: from here on no write of an earlier opener takes effect.
                    self.linear.abandon_older(now.0);
                    self.opens += 1;
                }
                Heard::Refused => self.open_at = now + OPEN_AGAIN,
                Heard::Failed(errno) => {
                    self.failure.get_or_insert(format!("the only opener lost its volume: {errno:?}"));
                }
            }
        }
    }

    /// Takes answers and asks more, until neither moves.
    fn use_device(&mut self, now: Time) {
        let (Some((process, env)), Some(workload)) = (&mut self.running, &mut self.workload) else { return };
        loop {
            let mut moved = false;
            for done in process.completions(env) {
                moved = true;
                if let Err(what) = workload.completed(done.token, done.result, now.0, &mut self.linear) {
                    self.failure.get_or_insert(what);
                }
            }
            while process.is_ready()
                && now >= self.submit_at
                && let Some((request, token)) = workload.next(now.0, &mut self.linear)
            {
                process.submit(env, request, token);
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

    /// Meta has answered.
    pub fn answer(&mut self, world: &World, life: u32, id: u64, answer: ClientAnswer, post: &mut Post) {
        if let Some((process, env)) = self.running.as_mut().filter(|_| life == self.life) {
            process.answered(env, id, answer);
            self.turn(world, post);
        }
    }
}
