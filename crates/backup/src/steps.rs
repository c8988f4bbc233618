//! Work that is done in steps, and that can go on in another process.

use crate::create::Progress;
use crate::error::Error;
use std::future::Future;

/// A restore or an import.
pub trait Steps {
    /// Result of the last step.
    type End;

    /// How far the volume is, in the unit of the implementor.
    fn done(&self) -> u64;

    /// Does one step. `None`: there are more. `tell` learns the progress.
    ///
    /// # Errors
    /// The failure of the source or of the volume. What lies before [`Steps::done`] is written.
    fn step(
        &mut self,
        tell: &(dyn Fn(Progress) + Sync),
    ) -> impl Future<Output = Result<Option<Self::End>, Error>> + Send;
}
