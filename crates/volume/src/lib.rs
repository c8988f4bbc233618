//! The client side of one volume.

pub mod request;

pub use request::{Answer, Busy, Completion, REQUEST_LEN_MAX, Request};
