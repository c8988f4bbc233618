//! Atomicity of aligned 4 KiB blocks: a read returns one version of a block, never a mixture (design §7, 2).
//!
//! The histories of `linear` judge each sector alone, so they pass a read that sees one sector before a write and the
//! next one after it. Every write stamps all its sectors alike, therefore two sectors of one block order two writes:
//!
//! ```text
//! sector i shows X, sector j shows Y:  X covers j too  ⇒ Y came after X
//!                                      Y covers i too  ⇒ X came after Y
//!                                      Y was acknowledged before X was asked ⇒ X came after Y
//! ```
//!
//! Two answers that contradict each other prove a mixture, however many writes are in flight. Zeros do not name their
//! write: some write of zeros, or for an untouched sector the beginning, must explain them.

use super::linear::{At, InBlock, Numbered, Stamp};

/// Returns the mixture in an answered read of consecutive sectors of one block, if it is one.
///
/// `sectors` are the histories of these sectors and `saw` what the read returned of each; `None` stands for zeros. The
/// read was answered at `end`.
pub(super) fn mixture(sectors: &InBlock<'_>, saw: &[Option<Stamp>], end: At) -> Option<String> {
    assert_eq!(sectors.len(), saw.len(), "each sector has an answer");
    if saw.windows(2).all(|pair| pair[0] == pair[1]) {
        return None;
    }
    let shown = sectors.writes_of(saw);
    for (i, x) in shown.iter().enumerate() {
        let Some(x) = x else { continue };
        // Only a write that came after X can have replaced a sector that X covers.
        let covered = |j: &usize| saw[*j] != Some(x.stamp) && sectors.has(*j, *x);
        for j in (0..saw.len()).filter(covered) {
            let later = |y: Numbered<'_>| y.end.min(y.dead) >= x.start && !sectors.has(i, y);
            let explained = match (saw[j], shown[j]) {
                (None, _) => sectors.writes(j).any(|z| z.zeros && z.start < end && later(z)),
                (Some(_), Some(y)) => later(y),
                // The history of the sector reports a stamp that was never written there.
                (Some(_), None) => true,
            };
            if !explained {
                let other = saw[j].map_or_else(|| "zeros".to_owned(), |stamp| stamp.to_string());
                return Some(format!("a read saw {} and {other} in one block, and {0} covers both sectors", x.stamp));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::check::linear::Linear;

    /// Script: `w1 0..8 0 5` write 1 of these sectors from time 0 to 5 (`-` never ends), `z2 ..` a trim. The last word
    /// is a read of eight sectors from 50 to 60: the stamp that each shows, `0` for zeros.
    fn check(script: &str) -> bool {
        let mut linear = Linear::default();
        for line in script.split(", ") {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [what, range, start, end] = words[..] else {
                let saw: Vec<Option<u64>> =
                    line.bytes().map(|b| u64::from(b - b'0')).map(|n| (n > 0).then_some(n)).collect();
                linear.read(1, 8, &saw, 50, 60);
                continue;
            };
            let (from, to) = range.split_once("..").expect("a range");
            let number = |word: &str| word.parse::<u64>().expect("a number");
            let (kind, stamp) = what.split_at(1);
            let sectors = 8 + number(from)..8 + number(to);
            linear.write_started(1, sectors.clone(), number(stamp), kind == "z", number(start));
            if end != "-" {
                linear.write_ended(1, sectors, number(stamp), number(end));
            }
        }
        linear.violations().is_empty()
    }

    #[test]
    fn blocks_that_writes_can_leave_behind_pass() {
        for script in [
            "w1 0..8 0 5, 11111111",
            "w1 0..8 0 5, w2 0..8 6 -, 22222222",
            "w1 0..8 0 5, w2 0..4 6 7, 22221111",
            "w1 0..8 0 -, w2 0..4 6 -, 22221111",
            "w1 0..4 0 5, 11110000",
            "w1 0..8 0 5, z2 0..4 6 -, 00001111",
            "w1 0..4 0 -, w2 4..8 0 -, 11112222",
            "w1 0..6 0 -, w2 2..8 0 -, 11222222",
            "w1 0..6 0 -, w2 2..8 0 -, 11111122",
            "z1 0..8 0 5, w2 4..8 6 -, 00002222",
            "w1 0..8 0 -, w2 0..4 1 -, w3 2..8 2 -, 22333333",
        ] {
            assert!(check(script), "{script}");
        }
    }

    #[test]
    fn a_mixture_of_two_versions_of_a_block_is_found() {
        for script in [
            "w1 0..8 0 5, w2 0..8 6 -, 22221111",
            "w1 0..8 0 -, w2 0..8 0 -, 21111111",
            "w1 0..8 0 -, 11110000",
            "w1 0..8 0 -, z2 0..8 0 -, 11110000",
            "z1 0..4 0 5, w2 0..8 6 -, 00002222",
            "w1 0..4 0 5, w2 0..8 6 -, 11112222",
            "w1 0..6 0 -, w2 2..8 0 -, 11112222",
            "w1 0..8 0 5, w2 0..4 6 7, w3 0..8 8 -, 22223333",
        ] {
            assert!(!check(script), "{script}");
        }
    }
}
