//! The volumes' path to the network: the bus's connections and their credit.

use bus::Bus;
use types::{OsdId, Time};
use volume::{Admit, Carrier};
use wire::{Message, Request};

pub(crate) struct Links<'a> {
    bus: &'a mut Bus,
    /// Cost of the request that was admitted last.
    admitted: usize,
    pub left: Left,
}

/// Whether requests of a volume have left, and whether one waits for credit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    pub sent: bool,
    pub short: bool,
}

impl<'a> Links<'a> {
    pub fn new(bus: &'a mut Bus) -> Links<'a> {
        Links { bus, admitted: 0, left: Left::default() }
    }
}

impl Carrier for Links<'_> {
    fn admit(&mut self, osd: OsdId, cost: usize) -> Admit {
        self.admitted = cost;
        match self.bus.link_to(osd) {
            None => Admit::NoLink,
            Some(link) if self.bus.has_credit(link, cost) => Admit::Go,
            Some(_) => {
                self.left.short = true;
                Admit::Wait
            }
        }
    }

    fn heard(&self, osd: OsdId) -> Option<Time> {
        self.bus.heard(osd)
    }

    fn send(&mut self, osd: OsdId, request: Request) {
        let link = self.bus.link_to(osd).expect("it was admitted just now");
        assert_eq!(request.body.cost(), self.admitted, "volume and bus count credit alike");
        self.left.sent = true;
        // A queue that overflows ends the link: `Down` follows, and the volume sends the part elsewhere.
        self.bus.send(link, Message::Request(request));
    }
}
