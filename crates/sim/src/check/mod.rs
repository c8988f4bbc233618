//! Observers outside the system: they know what users asked and were told, and nothing else.

pub mod linear;
