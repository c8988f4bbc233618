//! Tools of the workspace: `cargo xtask tidy|ci|sim`.
fn main() {}
