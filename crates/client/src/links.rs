//! The way out of the volumes: the bus's connections and their credit.

use bus::Bus;
use types::OsdId;
use volume::{Admit, Carrier};
use wire::{Message, Request};

pub(crate) struct Links<'a>(pub &'a mut Bus);

impl Carrier for Links<'_> {
    fn admit(&mut self, osd: OsdId, cost: usize) -> Admit {
        match self.0.link_to(osd) {
            None => Admit::NoLink,
            Some(link) if self.0.has_credit(link, cost) => Admit::Go,
            Some(_) => Admit::Wait,
        }
    }

    fn send(&mut self, osd: OsdId, request: Request) {
        let link = self.0.link_to(osd).expect("it was admitted just now");
        debug_assert!(self.0.has_credit_for(link, &request), "admitted at a lower cost than it has");
        // A queue that overflows ends the link: `Down` follows, and the part is sent elsewhere.
        self.0.send(link, Message::Request(request));
    }
}
