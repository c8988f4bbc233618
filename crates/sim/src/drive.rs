//! Drives a synchronous user of an env (formatting) by letting the world's time pass.

use env::{DiskInfo, DiskSpec, Env, EnvError, Event, ListenerId, NetAddr, Op, Waker};
use simenv::{SimEnv, World};
use std::time::Duration;
use types::Time;

/// Time for which other nodes stand still at once while one that waits has no event.
const STEP: Duration = Duration::from_micros(50);

/// An env whose turn waits: other nodes are not running yet, or get no turn meanwhile.
pub struct Driven<'a> {
    pub env: &'a mut SimEnv,
    pub world: &'a World,
}

impl Env for Driven<'_> {
    fn now(&self) -> Time {
        self.env.now()
    }

    fn random(&mut self) -> u64 {
        self.env.random()
    }

    fn secret(&mut self) -> Result<[u8; 16], EnvError> {
        self.env.secret()
    }

    fn turn(&mut self, ops: &mut Vec<Op>, events: &mut Vec<Event>, deadline: Time) -> Result<(), EnvError> {
        let before = events.len();
        self.env.turn(ops, events, deadline)?;
        while events.len() == before {
            let Some(next) = self.world.next_event_time() else { return Ok(()) };
            let now = self.world.now();
            self.world.advance_to(if next > now { next } else { now + STEP });
            self.env.turn(ops, events, deadline)?;
        }
        Ok(())
    }

    fn open_disk(&mut self, spec: &DiskSpec) -> Result<DiskInfo, EnvError> {
        self.env.open_disk(spec)
    }

    fn listen(&mut self, addr: &NetAddr) -> Result<(ListenerId, NetAddr), EnvError> {
        self.env.listen(addr)
    }

    fn waker(&self) -> Waker {
        self.env.waker()
    }
}
