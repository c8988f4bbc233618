//! Streams: the contents of a snapshot, or its difference from an older one, for a file or a pipe.

mod export;
mod format;
mod import;

pub use export::export;
pub use format::{Base, Decoder, Encoder, Frame, Head, StreamPlace, Totals};
pub use import::Import;
