//! Placeholder module head; tests follow.
