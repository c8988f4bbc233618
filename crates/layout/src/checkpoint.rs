//! The bytes of a checkpoint record: what home flips with, opaque to the log.
