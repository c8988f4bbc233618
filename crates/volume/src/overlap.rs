//! Order of overlapping writes: two writes that share a sector are never in flight together.
//!
//! A plain list of spans is scanned: at usual depths it is a few cache lines, cheaper than any tree.
//!
//! Invariant: of spans that share a sector only the oldest runs; a span counts every older one with which it
//! shares a sector.

/// Sectors of the volume that one part writes.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
    /// Grows with every span.
    order: u64,
    part: u32,
    /// Older spans that share a sector and have not left.
    blockers: u32,
    /// True when a younger span counts this one.
    blocks: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Overlaps {
    spans: Vec<Span>,
    next_order: u64,
}

impl Overlaps {
    /// Enters a write; true when no older write overlaps it.
    pub fn enter(&mut self, part: u32, start: u64, end: u64) -> bool {
        assert!(start < end, "an empty write has no span");
        let mut blockers = 0;
        for span in &mut self.spans {
            if span.start < end && start < span.end {
                span.blocks = true;
                blockers += 1;
            }
        }
        let order = self.next_order;
        self.next_order += 1;
        self.spans.push(Span { start, end, order, part, blockers, blocks: false });
        blockers == 0
    }

    /// Takes a write out and appends those that may run now to `freed`.
    pub fn leave(&mut self, part: u32, freed: &mut Vec<u32>) {
        let at = self.spans.iter().position(|s| s.part == part).expect("the part has entered");
        let gone = self.spans.swap_remove(at);
        if !gone.blocks {
            return;
        }
        for span in &mut self.spans {
            if span.order > gone.order && span.start < gone.end && gone.start < span.end {
                assert!(span.blockers > 0, "part {} waits for no other", span.part);
                span.blockers -= 1;
                if span.blockers == 0 {
                    freed.push(span.part);
                }
            }
        }
    }

    pub fn clear(&mut self) {
        self.spans.clear();
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_oldest_of_overlapping_writes_runs() {
        let mut overlaps = Overlaps::default();
        let mut freed = Vec::new();
        assert!(overlaps.enter(1, 0, 8));
        assert!(!overlaps.enter(2, 4, 12));
        assert!(!overlaps.enter(3, 8, 16), "shares sectors with 2, which waits");
        assert!(overlaps.enter(4, 16, 24));
        overlaps.leave(4, &mut freed);
        assert_eq!(freed, []);
        overlaps.leave(1, &mut freed);
        assert_eq!(freed, [2]);
        overlaps.leave(2, &mut freed);
        assert_eq!(freed, [2, 3]);
        overlaps.leave(3, &mut freed);
        assert_eq!(overlaps.len(), 0);
    }

    #[test]
    fn a_write_waits_for_all_that_it_overlaps() {
        let mut overlaps = Overlaps::default();
        let mut freed = Vec::new();
        assert!(overlaps.enter(1, 0, 1));
        assert!(overlaps.enter(2, 1, 2));
        assert!(!overlaps.enter(3, 0, 2));
        overlaps.leave(2, &mut freed);
        assert_eq!(freed, []);
        overlaps.leave(1, &mut freed);
        assert_eq!(freed, [3]);
    }
}
