//! The I/O thread of a cluster: the loop that takes commands, drives the client, and ends requests.
//!
//! A turn is: events and answers of meta, the commands of the program, the volumes, and one kernel entry. The thread ends after
//! [`Command::Stop`], with a failure of the ring, or with a panic. In each case every command and every request is answered.
//!
//! Invariant: of one volume, at most one open that no program waits for is with meta. A second one beside it could be fenced by
//! the first.

use crate::cluster::{Cluster, Volume};
use crate::failure::Failure;
use crate::mailbox::{Asked, Command, Counted, Mailbox};
use crate::pending::Reply;
use crate::served::{self, Served, Unsignalled};
use crate::settings::Settings;
use api::AdminClient;
use client::{AskId, ClientEvent, VolumeKey};
use clientloop::{ClientLoop, DRAIN_MAX, LoopConfig, OPEN_MAX, PART_MAX};
use control::admin::AdminAsk;
use device::{Completion, DeviceInfo};
use env::real::{RealConfig, RealEnv};
use env::{Env, EnvError};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use types::Time;
use types::codes;
use types::control::Refusal;

/// The program's part of an open: the place of its answer, and its place in the count of volumes.
type Waiter<T> = (Reply<Volume<T>>, Counted<T>);

/// An open without an answer.
struct Opening<T> {
    ask: AskId,
    name: String,
    /// Whether it is for writing, and whether it takes the volume over.
    flags: (bool, bool),
    until: Time,
    /// `None` after the program was told that it took too long. The request goes on, and cannot be taken back: a volume that is
    /// granted afterwards is closed, unless the program has opened it again and waits for it. The same holds when the program
    /// has dropped what waits for the reply.
    waiter: Option<Waiter<T>>,
    _asked: Asked<T>,
}

impl<T> Opening<T> {
    fn is_awaited(&self) -> bool {
        self.waiter.as_ref().is_some_and(|(reply, _)| reply.is_awaited())
    }
}

/// The end of the thread, which begins with [`Command::Stop`] or with the last handle of the program.
struct Stopping {
    replies: Vec<Reply<()>>,
    /// When opens without an answer no longer delay it. A volume that is granted later is held until its lease ends.
    until: Time,
}

struct IoThread<T> {
    mailbox: Arc<Mailbox<T>>,
    turns: ClientLoop,
    volumes: BTreeMap<VolumeKey, Served<T>>,
    opening: Vec<Opening<T>>,
    stopping: Option<Stopping>,
    unsignalled: Unsignalled<T>,
    /// Memory that is used again.
    commands: Vec<Command<T>>,
    done: Vec<Completion>,
}

/// Returns the failure of a command that has no answer because the thread has ended.
pub(crate) fn ended() -> Failure {
    Failure::bug("the I/O thread of the cluster has ended; standard error has its message")
}

/// Runs the thread. `reply` gets the cluster handle, or why there is none.
pub(crate) fn run<T: Send + 'static>(settings: Settings, reply: Reply<Cluster<T>>) {
    let mut mailbox = None;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let (mut thread, cluster) = match IoThread::start(settings) {
            Ok(started) => started,
            Err(failure) => return drop(reply.try_send(Err(failure))),
        };
        mailbox = Some(Arc::clone(&thread.mailbox));
        // A program that does not wait any more drops the handle, which ends the thread.
        let _ = reply.try_send(Ok(cluster));
        let ended = thread.turn_until_stopped();
        let stopping = thread.stopping.take();
        // Its requests have their events before a close may return.
        drop(thread);
        if let (Err(error), Some(mailbox)) = (ended, &mailbox) {
            mailbox.close(error.into());
        }
        for reply in stopping.into_iter().flat_map(|stopping| stopping.replies) {
            let _ = reply.try_send(Ok(()));
        }
    }));
    // Requests that were in flight have ended with the thread's own memory; these are the commands that it had not taken.
    if let Some(mailbox) = mailbox {
        let why = if ended.is_err() { "has panicked; standard error has its message" } else { "has ended" };
        mailbox.close(Failure::bug(format!("the I/O thread of the cluster {why}")));
    }
}

impl<T: Send + 'static> IoThread<T> {
    fn start(settings: Settings) -> Result<(IoThread<T>, Cluster<T>), Failure> {
        let env = RealEnv::new(RealConfig::default())?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("basalt-control").enable_all().build();
        let runtime = runtime.map_err(|error| Failure::of_system("no thread", &error))?;
        let holder = clientloop::holder(&settings.kind);
        let admin = AdminClient::new(settings.metas.clone(), settings.connect_timeout).named(&holder);
        if let Err(error) = runtime.block_on(admin.ask(AdminAsk::Status)) {
            // A name that is being resolved does not delay the answer.
            runtime.shutdown_background();
            return Err(error.into());
        }
        let mailbox = Arc::new(Mailbox::new(env.waker()));
        let cluster = Cluster::new(Arc::clone(&mailbox), admin, runtime.handle().clone());
        let Settings { metas, io_timeout: timeout, full_wait, on_unavailable, .. } = settings;
        let config = LoopConfig { metas, holder, timeout, full_wait, on_unavailable };
        Ok((IoThread::new(mailbox, ClientLoop::new(env, runtime, config)), cluster))
    }

    fn new(mailbox: Arc<Mailbox<T>>, turns: ClientLoop) -> IoThread<T> {
        IoThread {
            mailbox,
            turns,
            volumes: BTreeMap::new(),
            opening: Vec::new(),
            stopping: None,
            unsignalled: Unsignalled::default(),
            commands: Vec::new(),
            done: Vec::new(),
        }
    }

    fn turn_until_stopped(&mut self) -> Result<(), EnvError> {
        loop {
            let now = self.turns.begin();
            self.turns.events.clear();
            self.take_client_events(now);
            self.take_commands(now);
            self.expire_opens(now);
            for (key, served) in &mut self.volumes {
                if let Some(device) = self.turns.client.device(*key) {
                    served.turn(now, device, &mut self.done, &mut self.unsignalled);
                }
            }
            self.unsignalled.signal();
            self.step_closes(now);
            if self.has_stopped(now) {
                return Ok(());
            }
            self.turns.finish(self.next_deadline())?;
        }
    }

    /// Handles the commands of the program.
    fn take_commands(&mut self, now: Time) {
        let mut commands = std::mem::take(&mut self.commands);
        let has_left = !self.mailbox.receive(&mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Request { volume, request, ticket } => match self.volumes.get_mut(&volume) {
                    Some(served) if served.closing.is_none() => served.take(request, ticket),
                    // The close of another thread came first.
                    _ => drop(ticket),
                },
                Command::Open { name, flags, reply, counted, asked } => {
                    self.open(now, name, flags, (reply, counted), asked);
                }
                Command::Close { volume, reply, counted } => match self.volumes.get_mut(&volume) {
                    Some(served) => served.close(now + DRAIN_MAX, reply, Some(counted)),
                    // The stop came first.
                    None => served::finish(reply, Some(counted)),
                },
                Command::Stop(reply) => self.stop(now, reply),
            }
        }
        self.commands = commands;
        if has_left && self.stopping.is_none() {
            self.stop(now, None);
        }
    }

    /// Begins the end of the thread: closes the volumes that are left, and gives up the opens.
    fn stop(&mut self, now: Time, reply: Option<Reply<()>>) {
        let stopping = self.stopping.get_or_insert_with(|| Stopping { replies: Vec::new(), until: now + PART_MAX });
        stopping.replies.extend(reply);
        for served in self.volumes.values_mut().filter(|served| served.closing.is_none()) {
            served.close(now + DRAIN_MAX, None, None);
        }
        for waiter in self.opening.iter_mut().filter_map(|opening| opening.waiter.take()) {
            refuse(waiter, Failure::misuse(libc::ESHUTDOWN, "the cluster was disconnected"));
        }
    }

    fn has_stopped(&self, now: Time) -> bool {
        let are_opens_over = |stopping: &Stopping| self.opening.is_empty() || now >= stopping.until;
        self.stopping.as_ref().is_some_and(are_opens_over) && self.volumes.values().all(Served::is_over)
    }

    /// Opens a volume. An earlier request for it that took too long, or that the program has given up, may still reach meta: a
    /// second one beside it could be fenced by the first.
    fn open(&mut self, now: Time, name: String, flags: (bool, bool), waiter: Waiter<T>, asked: Asked<T>) {
        let until = now + OPEN_MAX;
        let late = self.opening.iter_mut().find(|opening| opening.name == name && !opening.is_awaited());
        match late {
            Some(late) if late.flags == flags => (late.until, late.waiter) = (until, Some(waiter)),
            Some(_) => {
                let what = format!("an earlier open of {name}, with other flags, has not ended");
                refuse(waiter, Failure::misuse(libc::EAGAIN, what));
            }
            None => {
                let ask = self.turns.client.open(&name, flags.0, flags.1);
                self.opening.push(Opening { ask, name, flags, until, waiter: Some(waiter), _asked: asked });
            }
        }
    }

    fn take_client_events(&mut self, now: Time) {
        for event in std::mem::take(&mut self.turns.told) {
            match event {
                ClientEvent::Opened { ask, volume, info } => self.opened(now, ask, volume, info),
                ClientEvent::OpenRefused { ask, why } => self.refused(ask, why),
                ClientEvent::Closed { volume } => {
                    if let Some(mut served) = self.volumes.remove(&volume) {
                        served.give_up();
                        served.answer_close();
                    }
                }
                // Each request of such a volume fails with the reason.
                ClientEvent::Failed { .. } | ClientEvent::Resized { .. } => {}
            }
        }
    }

    fn take_opening(&mut self, ask: AskId) -> Option<Opening<T>> {
        let at = self.opening.iter().position(|opening| opening.ask == ask)?;
        Some(self.opening.swap_remove(at))
    }

    fn opened(&mut self, now: Time, ask: AskId, volume: VolumeKey, info: DeviceInfo) {
        let waiter = self.take_opening(ask).filter(Opening::is_awaited).and_then(|opening| opening.waiter);
        let served = self.volumes.entry(volume).or_default();
        let session = self.turns.client.session(volume).unwrap_or_default();
        match waiter {
            // When the program does not wait any more, the drop of the handle closes the volume.
            Some((reply, counted)) => {
                let opened = Volume::new(Arc::clone(&self.mailbox), (volume, session), info, counted);
                let _ = reply.try_send(Ok(opened));
            }
            None => served.close(now, None, None),
        }
    }

    fn refused(&mut self, ask: AskId, why: Refusal) {
        if let Some(waiter) = self.take_opening(ask).and_then(|opening| opening.waiter) {
            refuse(waiter, why.into());
        }
    }

    /// Answers opens that take too long.
    fn expire_opens(&mut self, now: Time) {
        for opening in &mut self.opening {
            if let Some(waiter) = opening.waiter.take_if(|_| now >= opening.until) {
                let what = format!("{} was not opened in {} s", opening.name, OPEN_MAX.as_secs());
                refuse(waiter, Failure::new(codes::REQUESTS_NOT_ANSWERED, what));
            }
        }
    }

    /// Takes closes a step further.
    fn step_closes(&mut self, now: Time) {
        for (key, served) in &mut self.volumes {
            let is_idle = served.is_idle();
            let Some(closing) = &mut served.closing else { continue };
            let is_due = now >= closing.until;
            if closing.is_parting && is_due {
                // Meta has not answered. The lease of the holder ends by itself.
                closing.until = Time::NEVER;
                served.answer_close();
            } else if !closing.is_parting && (is_idle || is_due) {
                (closing.until, closing.is_parting) = (now + PART_MAX, true);
                // Requests that are stuck were not acknowledged, and meta fences those that may still arrive.
                served.give_up();
                self.turns.client.close(*key);
                self.turns.client.abandon(now, *key);
            }
        }
    }

    fn next_deadline(&self) -> Time {
        let opens = self.opening.iter().filter(|opening| opening.waiter.is_some()).map(|opening| opening.until);
        let closes = self.volumes.values().filter_map(|served| served.closing.as_ref()).map(|closing| closing.until);
        let stop = self.stopping.iter().filter(|_| !self.opening.is_empty()).map(|stopping| stopping.until);
        opens.chain(closes).chain(stop).min().unwrap_or(Time::NEVER)
    }
}

/// Answers an open. The count comes first: the program may disconnect as soon as it has the answer.
fn refuse<T>((reply, counted): Waiter<T>, why: Failure) {
    drop(counted);
    let _ = reply.try_send(Err(why));
}

#[cfg(test)]
mod tests;
