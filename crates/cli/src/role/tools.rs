//! The queue between an OSD's HTTP endpoint and its loop: tools ask there, the loop answers between
//! turns.
//!
//! Invariant: a full queue refuses a request; it never delays a turn.

use env::Waker;
use osd::{Osd, ToolAnswer, ToolAsk};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};

/// Most requests that wait for the loop.
const QUEUE_MAX: usize = 32;

type Asked = (ToolAsk, oneshot::Sender<ToolAnswer>);

/// The HTTP side; cheap to clone.
#[derive(Clone)]
pub struct Counter {
    queue: mpsc::Sender<Asked>,
    waker: Waker,
}

/// The loop's side.
pub struct Desk {
    queue: mpsc::Receiver<Asked>,
    waiting: BTreeMap<u64, oneshot::Sender<ToolAnswer>>,
    next: u64,
}

/// Returns both sides.
pub fn desk(waker: Waker) -> (Counter, Desk) {
    let (tx, rx) = mpsc::channel(QUEUE_MAX);
    (Counter { queue: tx, waker }, Desk { queue: rx, waiting: BTreeMap::new(), next: 0 })
}

impl Counter {
    /// Asks the loop and waits for its answer.
    pub async fn ask(&self, ask: ToolAsk) -> ToolAnswer {
        let (tx, rx) = oneshot::channel();
        if self.queue.try_send((ask, tx)).is_err() {
            return ToolAnswer::Busy;
        }
        self.waker.wake();
        rx.await.unwrap_or_else(|_| ToolAnswer::Unreadable { reason: "the OSD is stopping".to_owned() })
    }
}

impl Desk {
    /// Hands requests to the OSD, and its answers to the askers.
    pub fn pass(&mut self, osd: &mut Osd) {
        while let Ok((ask, answer)) = self.queue.try_recv() {
            self.next += 1;
            self.waiting.insert(self.next, answer);
            osd.ask_tool(self.next, ask);
        }
        for (id, answer) in osd.take_tool_answers() {
            if let Some(asker) = self.waiting.remove(&id) {
                // An asker that disconnected gets no answer.
                let _ = asker.send(answer);
            }
        }
    }

    /// Answers requests until no asker is left, in the place of an OSD.
    #[cfg(test)]
    pub fn answer_all(mut self, mut answer: impl FnMut(ToolAsk) -> ToolAnswer) {
        while let Some((ask, asker)) = self.queue.blocking_recv() {
            let _ = asker.send(answer(ask));
        }
    }
}
