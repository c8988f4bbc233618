//! `docs/formats.md` against this crate: every constant, and the byte map of every struct.
//!
//! Invariant: a number of the disk that changes, or a new one, changes the page in the same commit.

mod page;

use crate::home::{MAGIC_DIR, MAGIC_MAP, PageKind};
use page::File;
use types::{limits, units};

/// A magic number of eight bytes as its letters.
fn letters(magic: [u8; 8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&magic))
}

/// One of four bytes.
fn four_letters(magic: u32) -> String {
    format!("{:?}", String::from_utf8_lossy(&magic.to_le_bytes()))
}

macro_rules! rows {
    ($prefix:literal, $($module:ident)::+ { $($name:ident),+ $(,)? }) => {{
        use crate::$($module)::+ as module;
        [$((concat!($prefix, stringify!($name)), module::$name.to_string())),+]
    }};
}

fn first_mib() -> [File; 3] {
    let superblock = rows!(
        "",
        superblock {
            FORMAT_VERSION,
            SEPARATE_LOG,
            INCOMPAT_KNOWN,
            SUPERBLOCK_LEN,
            MARGIN,
            SEGMENTS_MIN,
            SEGMENTS_MAX,
            SEGMENT_LEN_MIN,
            SEGMENT_LEN_MAX,
            CRC_AT
        }
    );
    let poison = rows!("", poison { POISON_AT, BEHIND_AT, POISON_LEN, HEAD_LEN, REASON_MAX });
    let intent = rows!("", intent { INTENT_AT, INTENT_LEN, HEAD_LEN });
    [
        file("superblock", include_str!("../superblock.rs"), letters(crate::superblock::MAGIC), &superblock),
        file("poison", include_str!("../poison.rs"), letters(crate::poison::MAGIC), &poison),
        file("intent", include_str!("../intent.rs"), letters(crate::intent::MAGIC), &intent),
    ]
}

fn log() -> [File; 2] {
    let batch = rows!(
        "",
        log {
            BATCH_VERSION,
            BATCH_ALIGN,
            FIXED_LEN,
            HEADER_AREA_MAX,
            RECORDS_MAX,
            PAYLOAD_AREA_MAX,
            RUNS_MAX,
            CHECKPOINT_PART_MAX,
            CHECKPOINT_PARTS_MAX,
            RECORD_DECISION_MAX,
            REASON_MAX,
            STATE_BATCH_MAX,
            SALT_KEY_LEN,
            MAP_MAX,
            CRC_AT
        }
    );
    let kinds = rows!(
        "kind::",
        log::record::kind {
            APPEND,
            HARD_STATE,
            CREATE,
            DESTROY,
            CHECKPOINT,
            MOUNT,
            SEGMENT_OPEN,
            REPLICA_STATE,
            TOMBSTONES,
            BLOCK,
            RESET,
            MAP,
            LOST_ENTRY,
            PAST,
            REVIVED,
            CREATES_LOST,
            STATE_MORE,
            STATE_END,
            REPLICA_FLOOR,
            PLACED
        }
    );
    let flags = rows!("", log::record { FLAG_COPIED, FLAG_VOTED, FLAG_MOUNT, FLAG_PAST, FLAG_RESTATED });
    let constants = kinds.into_iter().chain(flags).collect();
    let record = File { module: "record", text: include_str!("../log/record.rs"), constants };
    [file("log", include_str!("../log.rs"), letters(crate::log::MAGIC), &batch), record]
}

fn home() -> [File; 2] {
    let checkpoint = rows!("", checkpoint { CHECKPOINT_VERSION, PART_BODY_MAX });
    let mut constants = vec![("MAGIC_MAP", four_letters(MAGIC_MAP)), ("MAGIC_DIR", four_letters(MAGIC_DIR))];
    constants.extend(rows!(
        "",
        home {
            HOME_VERSION,
            PAGE,
            AUS_PER_CRC_PAGE,
            CRC_PAGES,
            CRCS_PER_PAGE,
            CHUNK_PAGES,
            DIR_ENTRIES,
            SLOT_SHARE,
            SLOTS_MIN,
            HOME_LEN_MIN,
            ENTRY_USED,
            NO_SLOT,
            NO_CHUNK
        }
    ));
    let kinds = [
        ("PageKind::Map", PageKind::Map),
        ("PageKind::CrcPage", PageKind::CrcPage),
        ("PageKind::Directory", PageKind::Directory),
        ("PageKind::Decision", PageKind::Decision),
        ("PageKind::Dissolved", PageKind::Dissolved),
    ];
    constants.extend(kinds.map(|(name, kind)| (name, (kind as u8).to_string())));
    let magic = four_letters(crate::checkpoint::MAGIC);
    [
        File { module: "home", text: include_str!("../home.rs"), constants },
        file("checkpoint", include_str!("../checkpoint.rs"), magic, &checkpoint),
    ]
}

fn file(module: &'static str, text: &'static str, magic: String, rows: &[(&'static str, String)]) -> File {
    let constants = std::iter::once(("MAGIC", magic)).chain(rows.iter().cloned()).collect();
    File { module, text, constants }
}

#[test]
fn formats_page_has_the_constants_and_byte_maps_of_the_disk() {
    let files: Vec<File> = first_mib().into_iter().chain(log()).chain(home()).collect();
    let others = [
        ("types::units::SECTOR", units::SECTOR),
        ("types::units::BLOCK", units::BLOCK),
        ("types::units::AU", units::AU),
        ("types::units::CHUNK", units::CHUNK),
        ("types::units::SEGMENT", units::SEGMENT),
        ("types::limits::PART_MAX", limits::PART_MAX),
        ("types::limits::FRAGMENTS_MAX", limits::FRAGMENTS_MAX as u64),
        ("types::limits::DESCRIPTOR_MAX", limits::DESCRIPTOR_MAX as u64),
        ("types::limits::BATCH_PAYLOAD_MAX", limits::BATCH_PAYLOAD_MAX as u64),
        ("types::limits::SESSION_WINDOW", limits::SESSION_WINDOW),
        ("types::limits::REPLICAS_MAX", limits::REPLICAS_MAX as u64),
    ];
    let others = others.map(|(name, value)| (name, value.to_string()));
    let lens = [("CHUNK_PAGES", crate::home::CHUNK_PAGES), ("SALT_KEY_LEN", crate::log::SALT_KEY_LEN)];
    page::check("layout", &files, &others, &lens);
}
