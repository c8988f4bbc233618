//! `fio` through NBD, with verification, and the gaps in its completions from its own log.
