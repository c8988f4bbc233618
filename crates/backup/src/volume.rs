//! The volume that is saved, and the one that gets the contents back.

use std::ops::Range;

/// A failure of the volume, as its owner describes it.
pub type VolumeFailure = Box<dyn std::error::Error + Send + Sync>;

/// Contents that do not change: a snapshot.
///
/// Calls block, and come from several threads at a time.
pub trait Source: Send + Sync + 'static {
    /// Length in bytes, a multiple of 512.
    fn len_bytes(&self) -> u64;

    /// Returns the runs that tile a range, `true` where data is stored.
    ///
    /// # Errors
    /// The failure of the volume.
    fn data(&self, range: Range<u64>) -> Result<Vec<(u64, bool)>, VolumeFailure>;

    /// Returns the runs that tile a range, `true` where it may differ from the contents of the older backup. `None`: they cannot be
    /// told, and all of the contents have to be saved.
    ///
    /// # Errors
    /// The failure of the volume.
    fn changed(&self, range: Range<u64>) -> Result<Option<Vec<(u64, bool)>>, VolumeFailure>;

    /// Returns the bytes of several ranges, one behind the other.
    ///
    /// # Errors
    /// The failure of the volume.
    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<u8>, VolumeFailure>;
}

/// A volume that has no other user. It reads as zeros, or has the contents with which an increment begins.
///
/// Calls block, and come from several threads at a time.
pub trait Target: Send + Sync + 'static {
    /// Writes pieces of bytes, each with its offset.
    ///
    /// # Errors
    /// The failure of the volume.
    fn write(&self, pieces: Vec<(u64, &[u8])>) -> Result<(), VolumeFailure>;

    /// Ranges read as zeros from now on.
    ///
    /// # Errors
    /// The failure of the volume.
    fn clear(&self, ranges: Vec<Range<u64>>) -> Result<(), VolumeFailure>;
}
