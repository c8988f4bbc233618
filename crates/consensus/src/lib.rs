//! One raft group, with `raft` hidden: values in, values out.
