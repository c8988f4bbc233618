//! One volume on the I/O thread: its requests in flight, those that wait for the device, and its close.
//!
//! Invariant: tickets are here, in the device's requests or finished. A volume that was given up has no ticket, and late
//! completions of its device are dropped.

use crate::mailbox::Counted;
use crate::pending::Reply;
use crate::queue::{Queue, Ticket};
use device::{BlockDevice, Busy, Completion, Request};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;
use types::Time;

/// Queues with completions that were not signalled yet.
pub(crate) struct Unsignalled<T>(Vec<Arc<Queue<T>>>);

impl<T> Default for Unsignalled<T> {
    fn default() -> Unsignalled<T> {
        Unsignalled(Vec::new())
    }
}

impl<T> Unsignalled<T> {
    pub fn add(&mut self, queue: Option<Arc<Queue<T>>>) {
        self.0.extend(queue);
    }

    /// Wakes the program once for all completions of a turn.
    pub fn signal(&mut self) {
        self.0.drain(..).for_each(|queue| queue.signal());
    }
}

impl<T> Drop for Unsignalled<T> {
    /// A panic of the I/O thread leaves no program waiting.
    fn drop(&mut self) {
        self.signal();
    }
}

/// A close in progress: first the requests end, then meta is told.
pub(crate) struct Closing<T> {
    /// When the next step is due at the latest.
    pub until: Time,
    /// Meta is being told.
    pub is_parting: bool,
    /// The program was answered, and the end of the thread does not wait for this volume.
    pub is_over: bool,
    /// `None` when the program was answered, or does not wait.
    pub reply: Option<Reply<()>>,
    /// The volume counts until the close has ended for the program.
    pub counted: Option<Counted<T>>,
}

/// A volume that the client has open.
pub(crate) struct Served<T> {
    tickets: Slab<Ticket<T>>,
    /// Requests that the device does not take yet, the oldest first.
    backlog: VecDeque<(Request, u64)>,
    pub closing: Option<Closing<T>>,
}

impl<T> Default for Served<T> {
    fn default() -> Served<T> {
        Served { tickets: Slab::new(), backlog: VecDeque::new(), closing: None }
    }
}

impl<T> Served<T> {
    /// Takes a request of the program. Its turn comes after those that wait.
    pub fn take(&mut self, request: Request, ticket: Ticket<T>) {
        let token = self.tickets.insert(ticket) as u64;
        self.backlog.push_back((request, token));
    }

    /// Passes what waits to the device, as far as that takes it, and ends what the device has completed. A completion makes
    /// room, so both are repeated.
    pub fn turn(
        &mut self,
        now: Time,
        device: &mut dyn BlockDevice,
        done: &mut Vec<Completion>,
        out: &mut Unsignalled<T>,
    ) {
        loop {
            self.submit(now, device);
            device.completions(done);
            if done.is_empty() {
                return;
            }
            for completion in done.drain(..) {
                if let Some(ticket) = self.tickets.try_remove(completion.token as usize) {
                    out.add(ticket.finish(completion.result));
                }
            }
        }
    }

    fn submit(&mut self, now: Time, device: &mut dyn BlockDevice) {
        while let Some((request, token)) = self.backlog.pop_front() {
            if let Err(Busy(request)) = device.submit(now, request, token) {
                return self.backlog.push_front((request, token));
            }
        }
    }

    /// Whether no request waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Ends every request without the device.
    pub fn give_up(&mut self) {
        self.backlog.clear();
        self.tickets.clear();
    }

    /// Begins a close: requests may end until `until`. Or adds the program to the close that a stop has begun.
    pub fn close(&mut self, until: Time, reply: Option<Reply<()>>, counted: Option<Counted<T>>) {
        match &mut self.closing {
            Some(closing) if !closing.is_over => (closing.reply, closing.counted) = (reply, counted),
            Some(_) => finish(reply, counted),
            None => self.closing = Some(Closing { until, is_parting: false, is_over: false, reply, counted }),
        }
    }

    /// Whether the end of the thread does not wait for this volume.
    pub fn is_over(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.is_over)
    }

    /// Answers the program that closes the volume.
    pub fn answer_close(&mut self) {
        let Some(closing) = &mut self.closing else { return };
        closing.is_over = true;
        finish(closing.reply.take(), closing.counted.take());
    }
}

/// Ends a close for the program. The count comes first: the program may disconnect as soon as it has the answer.
pub(crate) fn finish<T>(reply: Option<Reply<()>>, counted: Option<Counted<T>>) {
    drop(counted);
    if let Some(reply) = reply {
        let _ = reply.try_send(Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::{Served, Unsignalled};
    use crate::queue::Queue;
    use device::{BlockDevice, Busy, Completion, DeviceInfo, Ram, Request};
    use std::time::Duration;
    use types::{IoBuf, Time};

    /// A device that takes `room` requests between two collections.
    struct Narrow {
        ram: Ram,
        room: usize,
        taken: usize,
    }

    impl BlockDevice for Narrow {
        fn info(&self) -> &DeviceInfo {
            self.ram.info()
        }

        fn submit(&mut self, now: Time, request: Request, token: u64) -> Result<(), Busy> {
            if self.taken >= self.room {
                return Err(Busy(request));
            }
            self.taken += 1;
            self.ram.submit(now, request, token)
        }

        fn completions(&mut self, out: &mut Vec<Completion>) {
            self.taken = 0;
            self.ram.completions(out);
        }

        fn next_deadline(&self) -> Time {
            self.ram.next_deadline()
        }
    }

    fn narrow(room: usize) -> Narrow {
        Narrow { ram: Ram::new("ram", 1 << 20), room, taken: 0 }
    }

    #[test]
    fn requests_that_a_busy_device_refuses_wait_in_their_order() {
        let (queue, mut served, mut out) = (Queue::new(8).expect("a queue"), Served::default(), Unsignalled::default());
        let mut device = narrow(2);
        for user in 0..5_u64 {
            let ticket = queue.admit(user, 512).expect("room");
            let buf = IoBuf::copy_of(&[user as u8; 512]);
            served.take(Request::Write { offset: 0, buf, fua: false }, ticket);
        }
        served.turn(Time::ZERO, &mut device, &mut Vec::new(), &mut out);
        out.signal();
        let users: Vec<u64> = queue.take(5, 8, None).expect("five").into_iter().map(|finished| finished.tag).collect();
        assert_eq!(users, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_volume_that_is_given_up_ends_its_requests_and_drops_late_completions() {
        let (queue, mut served, mut out) = (Queue::new(8).expect("a queue"), Served::default(), Unsignalled::default());
        let mut device = narrow(1);
        for user in 0..2_u64 {
            served.take(Request::Flush, queue.admit(user, 0).expect("room"));
        }
        served.submit(Time::ZERO, &mut device);
        served.give_up();
        assert_eq!(queue.take(2, 8, Some(Duration::ZERO)).expect("both").len(), 2);
        served.turn(Time::ZERO, &mut device, &mut Vec::new(), &mut out);
        assert!(queue.take(0, 8, None).expect("none").is_empty() && queue.close().is_ok());
    }
}
