//! Golden bytes and round trips of home's pages.

use super::*;

const GEOMETRY: Geometry = Geometry { slot_count: 1024, au_count: 4096 };
const CHUNK: ChunkKey = ChunkKey { generation: GenerationId(7), index: 3 };
const REPLICA: ReplicaId = ReplicaId(0x1122);

fn map() -> MapSlots {
    let mut slots = [MapSlot::default(); AUS_PER_CHUNK as usize];
    slots[0] = MapSlot { au: 5, valid: 0x7fff, zeros: 0x8000 };
    slots[1] = MapSlot { au: 0, valid: 0, zeros: 2 };
    slots[255] = MapSlot { au: 4095, valid: 1, zeros: 0 };
    slots
}

fn entry() -> DirEntry {
    let mut pages = [None; CHUNK_PAGES];
    pages[0] = Some(PagePtr { slot: 9, crc: 0xdead_beef });
    pages[4] = Some(PagePtr { slot: 1023, crc: 1 });
    DirEntry { chunk: CHUNK, pages }
}

fn dir_page() -> Vec<u8> {
    let mut page = vec![0xff; PAGE];
    let entry = entry();
    encode_dir_page(PageId::directory(REPLICA, 2), 77, [(71, &entry), (0, &entry)].into_iter(), &mut page);
    page
}

fn map_page() -> Vec<u8> {
    let mut page = vec![0xff; PAGE];
    encode_map_page(PageId::of_chunk(REPLICA, CHUNK, 0), 77, &map(), &mut page);
    page
}

#[test]
fn layout_constants_never_change() {
    assert_eq!((PAGE, CHUNK_PAGES, DIR_ENTRIES, CRCS_PER_PAGE, HOME_VERSION), (4096, 5, 72, 1024, 2));
    let kinds = [Map, CrcPage, Directory, Decision, Dissolved].map(|kind| kind as u8);
    assert_eq!(kinds, [1, 2, 3, 4, 5]);
    assert_eq!(Geometry::of(4 << 30), Some(Geometry { slot_count: 16384, au_count: 64512 }));
    assert_eq!(GEOMETRY.block_offset(1, 2), (4 << 20) + (64 << 10) + (8 << 10));
}

#[test]
fn golden_pages_keep_their_bytes() {
    let map = map_page();
    let head: Vec<u8> = [
        b"BMAP\x02\x00\x00\x01".as_slice(),
        &0x1122u64.to_le_bytes(),
        &7u64.to_le_bytes(),
        &3u32.to_le_bytes(),
        &0u32.to_le_bytes(),
        &77u64.to_le_bytes(),
    ]
    .concat();
    assert_eq!(map[..head.len()], head);
    assert_eq!(map[64..80], [5, 0, 0, 0, 0xff, 0x7f, 0, 0x80, 0, 0, 0, 0, 0, 0, 2, 0]);
    let dir = dir_page();
    assert_eq!(dir[..8], *b"BDIR\x02\x00\x48\x00");
    assert_eq!(
        dir[64..96],
        *b"\x07\0\0\0\0\0\0\0\x03\0\0\0\x01\0\0\0\x09\0\0\0\xef\xbe\xad\xde\xff\xff\xff\xff\0\0\0\0"
    );
    let crcs: CrcTable = std::array::from_fn(|i| i as u32);
    let mut page = vec![0; PAGE];
    encode_crc_page(&crcs, &mut page);
    let sums = [
        PageId::of_chunk(REPLICA, CHUNK, 0).crc(&map),
        PageId::directory(REPLICA, 2).crc(&dir),
        PageId::of_chunk(REPLICA, CHUNK, 4).crc(&page),
        PageId::decision(REPLICA, 0).crc(&page),
        PageId::dissolved(REPLICA, 0).crc(&page),
    ];
    assert_eq!(sums, GOLDEN_SUMS);
}

const GOLDEN_SUMS: [u32; 5] = [386_287_454, 2_011_168_625, 3_207_427_199, 2_305_927_645, 708_403_603];

#[test]
fn pages_come_back_as_they_were_written() {
    let id = PageId::of_chunk(REPLICA, CHUNK, 0);
    assert_eq!(decode_map_page(id, &map_page(), GEOMETRY).unwrap(), map());
    let dir = decode_dir_page(PageId::directory(REPLICA, 2), &dir_page(), GEOMETRY).unwrap();
    assert_eq!(dir, vec![(0, entry()), (71, entry())]);
    let crcs: CrcTable = std::array::from_fn(|i| (i as u32).wrapping_mul(0x9e37_79b9));
    let mut page = vec![0; PAGE];
    encode_crc_page(&crcs, &mut page);
    assert_eq!(*decode_crc_page(&page), crcs);
}

#[test]
fn page_verifies_only_under_its_own_identity() {
    let page = map_page();
    let id = PageId::of_chunk(REPLICA, CHUNK, 0);
    let crc = id.crc(&page);
    assert!(id.verify(&page, crc));
    let others = [
        PageId { replica: ReplicaId(1), ..id },
        PageId { chunk: ChunkKey { index: 4, ..CHUNK }, ..id },
        PageId { kind: CrcPage, ..id },
        PageId { n: 1, ..id },
    ];
    for other in others {
        assert!(!other.verify(&page, crc), "{other} took the page of {id}");
    }
    let moved = PageId { chunk: ChunkKey { index: 4, ..CHUNK }, ..id };
    assert_eq!(decode_map_page(moved, &page, GEOMETRY), Err(PageError::Identity));
}

#[test]
fn values_that_are_never_written_are_refused() {
    let id = PageId::of_chunk(REPLICA, CHUNK, 0);
    let with = |at: usize, byte: u8| {
        let mut page = map_page();
        page[at] = byte;
        decode_map_page(id, &page, GEOMETRY)
    };
    assert_eq!(with(4, 1), Err(PageError::Version(1)));
    assert_eq!(with(64 + 8, 1), Err(PageError::Value), "an AU for a mark alone");
    assert_eq!(with(64 + 16, 1), Err(PageError::Value), "an AU without a valid block");
    assert_eq!(with(64 + 3, 1), Err(PageError::Value), "an AU beyond the device");
    assert_eq!(with(64 + 6, 1), Err(PageError::Value), "a block with data and a mark");
    assert_eq!(with(50, 1), Err(PageError::Identity), "reserved bytes");
    let dir = PageId::directory(REPLICA, 2);
    let with = |at: usize, byte: u8| {
        let mut page = dir_page();
        page[at] = byte;
        decode_dir_page(dir, &page, GEOMETRY).map(|_| ())
    };
    assert_eq!(with(64 + 12, 2), Err(PageError::Value), "an unknown flag");
    assert_eq!(with(64 + 18, 1), Err(PageError::Value), "a slot beyond the area");
}

#[test]
fn a_region_is_divided_without_overlap() {
    for len in [HOME_LEN_MIN, (64 << 20) + 65536, 4 << 30, 1 << 40, 16 << 40] {
        let g = Geometry::of(len).unwrap();
        assert!(g.len_bytes() <= len && len - g.len_bytes() < AU, "{len}: {g:?}");
        assert!((u64::from(g.slot_count) * PAGE as u64).is_multiple_of(AU), "AUs are aligned");
        assert!(g.slot_offset(g.slot_count - 1) + PAGE as u64 <= g.block_offset(0, 0));
    }
    assert_eq!(Geometry::of(HOME_LEN_MIN - 1), None);
    assert_eq!(Geometry::with_slots(1 << 20, 4096), None);
}

#[test]
fn page_encoding_is_canonical() {
    // Fuzzing found that bytes behind a map, of an unused entry, and of an absent page were ignored.
    let map_id = PageId::of_chunk(REPLICA, CHUNK, 0);
    let dir_id = PageId::directory(REPLICA, 2);
    for at in 0..PAGE {
        let mut page = map_page();
        page[at] ^= 0x20;
        // Bytes 32 to 40 name the checkpoint that first named the page; they are informative only.
        let told = (32..40).contains(&at);
        assert!(told || decode_map_page(map_id, &page, GEOMETRY) != Ok(map()), "byte {at} of a map");
        let mut page = dir_page();
        page[at] ^= 0x20;
        let entries = decode_dir_page(dir_id, &page, GEOMETRY);
        assert!(told || entries != Ok(vec![(0, entry()), (71, entry())]), "byte {at} of a directory page");
    }
}
