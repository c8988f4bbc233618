//! The functions of the header. Each checks its arguments, and hands the rest to safe code.
//!
//! A handle of the program is never dereferenced ([`crate::registry`]). The header states what the program must vouch for: that
//! strings, structs and buffers are where it says, for as long as it says. The `# Safety` sections below refer to that.
#![allow(unsafe_code)]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "a handle is a number, and no function dereferences it")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract of all of them")]

pub mod aio;
pub mod cluster;
pub mod queue;
pub mod sync;
pub mod volume;
