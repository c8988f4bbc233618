//! The version of this program: the release, and the commit that it was built from (`build.rs` finds it).

/// Version in `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit as `git describe` names it, or `unknown`.
pub const COMMIT: &str = env!("BASALT_COMMIT");
/// Text of `--version`.
pub const LONG: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BASALT_COMMIT"), ")");
