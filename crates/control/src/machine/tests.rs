//! Laws of meta, against OSDs that are a few lines of test.
