//! Bounded queues and memory (what must never happen, 7): what fills an OSD stays under its stated limits.

/// What an observer sees of one OSD.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fill {
    pub segments_in_use: u64,
    pub segments: u64,
    pub overlay_bytes: u64,
    /// The whole log: the overlay holds nothing that is not in it.
    pub log_bytes: u64,
    pub limbo_bytes: u64,
    pub capacity_bytes: u64,
    /// The fullest connection.
    pub queued_bytes: u64,
}

/// What may wait on one connection.
pub const QUEUED_BYTES_MAX: u64 = bus::QUEUE_BYTES_MAX as u64;

/// # Errors
/// What is beyond its limit.
pub fn check(fill: &Fill) -> Result<(), String> {
    let limits = [
        ("log segments in use", fill.segments_in_use, fill.segments),
        ("bytes in the overlay", fill.overlay_bytes, fill.log_bytes),
        ("bytes in limbo", fill.limbo_bytes, fill.capacity_bytes / 2),
        ("bytes that wait on a connection", fill.queued_bytes, QUEUED_BYTES_MAX),
    ];
    match limits.into_iter().find(|(_, now, max)| now > max) {
        Some((what, now, max)) => Err(format!("{now} {what}; at most {max}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_beyond_its_limit_is_named() {
        let fill = Fill { segments: 16, log_bytes: 1 << 24, capacity_bytes: 1 << 28, ..Fill::default() };
        check(&fill).expect("empty");
        for (beyond, name) in [
            (Fill { segments_in_use: 17, ..fill }, "segments"),
            (Fill { overlay_bytes: (1 << 24) + 1, ..fill }, "overlay"),
            (Fill { limbo_bytes: (1 << 27) + 1, ..fill }, "limbo"),
            (Fill { queued_bytes: QUEUED_BYTES_MAX + 1, ..fill }, "connection"),
        ] {
            assert!(check(&beyond).expect_err(name).contains(name));
        }
    }
}
