//! Failpoints: named moments at which a process can be made to die at once, as by `kill -9` but at a chosen place.
//!
//! Product code calls [`pass`] where a crash must be harmless. A process that was armed for a point dies at its N-th pass,
//! without finishing, flushing or sending anything. Only the real processes of `make chaos` are armed, at their start
//! (`BASALT_FAILPOINT=NAME:N`). Without the feature `failpoints`, which the crate `cli` alone forwards and no default build
//! has, `pass` does nothing. `cargo xtask tidy` proves that, and that every point has its hook.
//!
//! Invariant: at most one point is armed in a process, and an armed point has no effect but to end the process.

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub point: Point,
    /// In kebab-case; what `BASALT_FAILPOINT` takes.
    pub name: &'static str,
    /// The role that passes it.
    pub by: By,
}

/// A role that passes a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Osd,
    /// An OSD that installs a stream.
    Streamed,
    Meta,
}

macro_rules! registry {
    ($($point:ident, $name:literal, $by:ident, $says:literal;)*) => {
        /// A moment at which a process can be made to die.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point { $(#[doc = $says] $point,)* }

        /// Every point, by role.
        pub const REGISTRY: &[Row] = &[$(Row { point: Point::$point, name: $name, by: By::$by },)*];
    };
}

registry! {
    LogWritten, "after-log-write-before-flush", Osd, "A log batch is written; its flush has not begun.";
    LogDurable, "after-flush-before-reply", Osd, "A log batch is durable; no reply has been sent.";
    RepliesReady, "after-apply-before-send", Osd, "A turn's frames, replies among them, are made and have not left.";
    HomeWritten, "round-written-before-flush", Osd, "A destage round has written home and slots; nothing is flushed.";
    HomeFlushed, "round-flushed-before-checkpoint", Osd, "Home is durable; no checkpoint names it yet.";
    CheckpointDurable, "round-checkpoint-before-flip", Osd, "The checkpoint is durable; memory does not know.";
    MountRecorded, "mount-recorded-before-serving", Osd, "A start has its mount record; it serves no request yet.";
    PieceStaged, "stream-piece-staged", Streamed, "A piece of a stream is written beside the old replica.";
    InstallBegun, "install-begun", Streamed, "A stream is whole; its installation begins.";
    InstallFlushed, "install-flushed-before-checkpoint", Streamed, "What a stream brought is durable; nothing names it.";
    InstallDurable, "install-checkpoint-before-flip", Streamed, "The replica is the new one on the device alone.";
    MetaWritten, "meta-written-before-commit", Meta, "Meta's store has the writes of a transaction and not its commit.";
    MetaCommitted, "meta-committed-before-answer", Meta, "A transaction is durable; no answer has been sent.";
}

impl Point {
    pub fn row(self) -> &'static Row {
        &REGISTRY[self as usize]
    }

    /// Returns the point of this name.
    pub fn named(name: &str) -> Option<Point> {
        REGISTRY.iter().find(|row| row.name == name).map(|row| row.point)
    }
}

/// Parses `NAME:N`: the N-th pass of a point, counted from 1. Without a number it is the first.
///
/// # Errors
/// Names the fault in the text.
pub fn parse(text: &str) -> Result<(Point, u64), String> {
    let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
    let point = Point::named(name).ok_or_else(|| format!("no failpoint is named `{name}`"))?;
    match nth.parse() {
        Ok(0) => Err("passes are counted from 1".to_owned()),
        Ok(nth) => Ok((point, nth)),
        Err(_) => Err(format!("`{nth}` is no count of passes")),
    }
}

/// Passes this point; does nothing in a build without the feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn pass(_point: Point) {}

/// Whether this point is armed: never, in a build without the feature. A caller asks when it must act differently for a point
/// to be reached at all.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn is_armed(_point: Point) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use armed::{arm, is_armed, pass};

#[cfg(feature = "failpoints")]
mod armed {
    use super::Point;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    const NONE: usize = usize::MAX;
    static ARMED: AtomicUsize = AtomicUsize::new(NONE);
    static LEFT: AtomicU64 = AtomicU64::new(0);

    /// Arms a point: its N-th pass ends this process.
    ///
    /// # Panics
    /// When `nth` is 0: passes are counted from 1.
    pub fn arm(point: Point, nth: u64) {
        assert!(nth > 0, "passes are counted from 1");
        LEFT.store(nth, Ordering::SeqCst);
        ARMED.store(point as usize, Ordering::SeqCst);
    }

    /// Whether this point is armed.
    #[inline]
    pub fn is_armed(point: Point) -> bool {
        ARMED.load(Ordering::Relaxed) == point as usize
    }

    /// Passes this point; the pass for which the point was armed does not return.
    #[inline]
    pub fn pass(point: Point) {
        if is_armed(point) && LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_registry_names_every_point_once() {
        let names: BTreeSet<&str> = REGISTRY.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), REGISTRY.len(), "a name is used twice");
        for row in REGISTRY {
            assert_eq!((row.point.row(), Point::named(row.name)), (row, Some(row.point)));
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", row.name);
        }
    }

    #[test]
    fn failpoint_spec_names_the_point_and_the_pass() {
        assert_eq!(parse("after-flush-before-reply:12"), Ok((Point::LogDurable, 12)));
        assert_eq!(parse("install-begun"), Ok((Point::InstallBegun, 1)));
        for wrong in ["", "install", "install-begun:0", "install-begun:x", "install-begun:"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    #[cfg(not(feature = "failpoints"))]
    fn without_the_feature_no_point_is_ever_armed_and_every_pass_returns() {
        for row in REGISTRY {
            pass(row.point);
            assert!(!is_armed(row.point));
        }
    }
}
