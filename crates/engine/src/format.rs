//! Formatting a device, and finding out whether it belongs to this cluster.
//!
//! `basalt osd format` passes in an env and a disk; these functions run the turns of the env themselves, because
//! nothing else runs beside them.
//!
//! Invariant: a device that carries data is not touched unless forced. The superblocks are written last, so that a
//! device with a superblock is whole. The intent page is written first, so that the next format continues. A device
//! that an OSD has started on has no intent page.

use env::{DiskError, DiskInfo, Env, EnvError, Event, Op, Token};
use layout::intent::{INTENT_AT, INTENT_LEN, Intent};
use layout::log::{BATCH_ALIGN, BatchHeader, FIXED_LEN, Record, SALT_KEY_LEN, SaltKey};
use layout::poison::{self, BEHIND_AT, POISON_AT, POISON_LEN};
use layout::superblock::{DeviceIds, MARGIN, Part, SUPERBLOCK_LEN, Superblock, SuperblockError};
use types::{ClusterId, IoBuf, IoBufMut, OsdId, OsdUuid, Time};

/// How to format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatParams {
    pub cluster: ClusterId,
    pub osd: OsdId,
    /// Fresh and random: tells two formats of one device apart.
    pub uuid: OsdUuid,
    /// Length of the log; rounded down to whole segments. Production: clamp(1 % of the device, 1 GiB); dev 256 MiB.
    pub log_bytes: u64,
    /// Length of a segment; 0: `log_bytes` ÷ 16, at most 64 MiB, at least 1 MiB.
    pub segment_bytes: u64,
    /// Format the device whatever it carries.
    pub force: bool,
    /// Write zeros over the whole log (R10); needed wherever extents may be unwritten (files).
    pub prezero: bool,
    /// Seconds since 1970, for administrators.
    pub unix_s: u64,
    /// The part of an OSD that the device is to hold.
    pub part: Part,
}

/// Why a device was not formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// BSLT-3003
    #[error("the device carries other data in its {place} MiB; use --force to overwrite it")]
    Foreign { place: &'static str },
    /// BSLT-3003
    #[error("the device holds {osd} of this cluster")]
    Ours { osd: OsdId, uuid: OsdUuid },
    /// BSLT-3005
    #[error("the device belongs to another cluster, {found}; use --force to overwrite it")]
    OtherCluster { found: ClusterId },
    /// BSLT-3006
    #[error("the device ({device_bytes} bytes) and its log ({log_bytes} bytes) do not fit each other")]
    TooSmall { device_bytes: u64, log_bytes: u64, source: SuperblockError },
    #[error("{during}: {source}")]
    Disk { during: &'static str, source: DiskError },
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
}

/// Bytes of one write of the prezeroing.
const ZERO_STEP: u64 = 1 << 20;
/// Writes of the prezeroing in flight.
const ZERO_DEPTH: u64 = 4;
/// `Token.owner` of these operations: nothing else runs.
const OWNER: u8 = u8::MAX;

/// Returns the writes that format a device of zeros, in order, for callers that create an image without an env.
///
/// # Errors
/// When log and home do not fit.
pub fn format_image(
    device_bytes: u64,
    params: &FormatParams,
    salt_key: SaltKey,
) -> Result<(Superblock, Vec<(u64, IoBuf)>), FormatError> {
    let superblock = divide(device_bytes, params, salt_key)?;
    let page = IoBuf::copy_of(&superblock.encode());
    let [first, last] = Superblock::offsets(device_bytes);
    let mut writes = vec![(first, page.clone()), (last, page)];
    if params.part != Part::Home {
        writes.insert(0, (superblock.log_start, first_batch(&superblock)));
    }
    Ok((superblock, writes))
}

/// Contents of a device, as a format finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceContents {
    /// Both margins are zeros.
    Empty,
    /// A superblock. With the intent page of the same format, only the registration of the OSD may be missing.
    Osd { superblock: Superblock, unfinished: bool },
    /// Superblocks that are damaged, and the ids that one of them names.
    Damaged(DeviceIds),
    /// A format that was interrupted before its superblock.
    Begun(Intent),
    /// Other data, in this margin.
    Foreign { place: &'static str },
}

/// Determines what `disk` carries.
///
/// # Errors
/// When a newer version has formatted the device, or the device fails.
pub fn inspect(env: &mut dyn Env, disk: &DiskInfo) -> Result<DeviceContents, FormatError> {
    let intent = match disk.size_bytes < 2 * MARGIN {
        true => None,
        false => Intent::decode(&read(env, disk, INTENT_AT, INTENT_LEN)?),
    };
    match read_superblock(env, disk) {
        Ok(superblock) => {
            let ids = Intent { cluster: superblock.cluster, osd: superblock.osd, uuid: superblock.uuid };
            return Ok(DeviceContents::Osd { superblock, unfinished: intent == Some(ids) });
        }
        Err(FormatError::Superblock(SuperblockError::Absent)) => {}
        // A format that was interrupted may leave half a superblock.
        Err(FormatError::Superblock(SuperblockError::Damaged)) if intent.is_some() => {}
        Err(FormatError::Superblock(why @ (SuperblockError::Damaged | SuperblockError::Geometry))) => {
            for offset in Superblock::offsets(disk.size_bytes) {
                if let Some(claimed) = Superblock::claimed_ids(&read(env, disk, offset, SUPERBLOCK_LEN)?) {
                    return Ok(DeviceContents::Damaged(claimed));
                }
            }
            return Err(why.into());
        }
        Err(other) => return Err(other),
    }
    if let Some(intent) = intent {
        return Ok(DeviceContents::Begun(intent));
    }
    let margin = MARGIN.min(disk.size_bytes);
    for (offset, place) in [(0, "first"), (disk.size_bytes - margin, "last")] {
        let align = u64::from(disk.align_bytes.max(1));
        let offset = offset / align * align;
        let len = (disk.size_bytes - offset).min(margin) / align * align;
        if read(env, disk, offset, len as usize)?.iter().any(|b| *b != 0) {
            return Ok(DeviceContents::Foreign { place });
        }
    }
    Ok(DeviceContents::Empty)
}

/// Whether [`format_device`] would take `disk`: it is large enough, and may be overwritten. Nothing is written.
///
/// # Errors
/// The error that formatting would return.
pub fn check_format(env: &mut dyn Env, disk: &DiskInfo, params: &FormatParams) -> Result<(), FormatError> {
    // Only the division counts: no superblock is made of it.
    divide(disk.size_bytes, params, SaltKey::new([0; SALT_KEY_LEN]))?;
    if params.force {
        return Ok(());
    }
    match inspect(env, disk)? {
        DeviceContents::Empty => Ok(()),
        DeviceContents::Begun(intent) if intent.cluster == params.cluster => Ok(()),
        DeviceContents::Begun(Intent { cluster, .. }) => Err(FormatError::OtherCluster { found: cluster }),
        DeviceContents::Osd { superblock, .. } if superblock.cluster != params.cluster => {
            Err(FormatError::OtherCluster { found: superblock.cluster })
        }
        DeviceContents::Osd { superblock, .. } => Err(FormatError::Ours { osd: superblock.osd, uuid: superblock.uuid }),
        DeviceContents::Damaged(_) => Err(SuperblockError::Damaged.into()),
        DeviceContents::Foreign { place } => Err(FormatError::Foreign { place }),
    }
}

/// Writes the intent page. The next format continues one that is interrupted from here on; so does its registration,
/// until [`finish_format`].
///
/// # Errors
/// The errors of [`check_format`], or a failure of the device.
pub fn begin_format(env: &mut dyn Env, disk: &DiskInfo, params: &FormatParams) -> Result<(), FormatError> {
    check_format(env, disk, params)?;
    let intent = Intent { cluster: params.cluster, osd: params.osd, uuid: params.uuid };
    write(env, disk, INTENT_AT, IoBuf::copy_of(&intent.encode()), "writing the intent page")
}

/// Erases the intent page, if there is one: the OSD is registered, or starts. A page that cannot be read counts as
/// empty.
///
/// # Errors
/// When the page cannot be written.
pub fn finish_format(env: &mut dyn Env, disk: &DiskInfo) -> Result<(), FormatError> {
    match read(env, disk, INTENT_AT, INTENT_LEN) {
        Ok(page) if Intent::decode(&page).is_some() => {
            write(env, disk, INTENT_AT, IoBuf::zeros(INTENT_LEN), "erasing the intent page")
        }
        _ => Ok(()),
    }
}

/// Formats `disk`, with a new salt key. `progress` gets the bytes zeroed and the bytes in all.
///
/// # Errors
/// When the device carries other data and `force` is not set, does not fit, or fails.
pub fn format_device(
    env: &mut dyn Env,
    disk: &DiskInfo,
    params: &FormatParams,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Superblock, FormatError> {
    check_format(env, disk, params)?;
    let (superblock, writes) = format_image(disk.size_bytes, params, SaltKey::new(env.secret()?))?;
    // The old superblocks go first: from here to the end the device mounts as nothing.
    let offsets = Superblock::offsets(disk.size_bytes);
    for offset in offsets {
        write(env, disk, offset, IoBuf::zeros(SUPERBLOCK_LEN), "erasing the old superblock")?;
    }
    if params.prezero {
        let len_bytes = superblock.segment_bytes * u64::from(superblock.segment_count);
        zero(env, disk, superblock.log_start, len_bytes, progress)?;
    } else {
        for segment in 0..u64::from(superblock.segment_count) {
            let offset = superblock.log_start + segment * superblock.segment_bytes;
            write(env, disk, offset, IoBuf::zeros(SUPERBLOCK_LEN), "erasing old log segments")?;
        }
    }
    // Marks are written when something has failed: in a file, their pages must be allocated before that.
    for offset in [POISON_AT, BEHIND_AT] {
        write(env, disk, offset, IoBuf::zeros(POISON_LEN), "writing empty marks")?;
    }
    for (offset, page) in writes {
        write(env, disk, offset, page, "writing the first log batch and the superblocks")?;
    }
    Ok(superblock)
}

/// Builds the batch that opens the first segment: a log without any batch is a lost log, not a new one.
fn first_batch(superblock: &Superblock) -> IoBuf {
    let first = [Record::SegmentOpen { replicas: 0, mount: true }, Record::StateEnd, Record::Mount];
    let mut records = Vec::new();
    first.iter().for_each(|record| record.encode(&mut records));
    let header = BatchHeader {
        mount: 1,
        seq: 1,
        offset: superblock.log_start,
        durable_seq: 0,
        tail_seq: 1,
        segment_seq: 1,
        ..BatchHeader::of_records(&records, first.len() as u32)
    };
    let mut page = IoBufMut::zeroed(BATCH_ALIGN);
    page[..FIXED_LEN].copy_from_slice(&header.encode(&superblock.log_identity()));
    page[FIXED_LEN..FIXED_LEN + records.len()].copy_from_slice(&records);
    page.freeze()
}

fn divide(device_bytes: u64, params: &FormatParams, salt_key: SaltKey) -> Result<Superblock, FormatError> {
    use layout::superblock::{SEGMENT_LEN_MAX, SEGMENT_LEN_MIN, SEGMENTS_MIN, Segments};
    let page = SUPERBLOCK_LEN as u64;
    let segment = match params.segment_bytes {
        0 => (params.log_bytes / u64::from(SEGMENTS_MIN)).clamp(SEGMENT_LEN_MIN, SEGMENT_LEN_MAX) / page * page,
        given => given,
    };
    let count = u32::try_from(params.log_bytes.checked_div(segment).unwrap_or(0)).unwrap_or(u32::MAX);
    let ids = DeviceIds { cluster: params.cluster, osd: params.osd, uuid: params.uuid };
    let log_bytes = params.log_bytes;
    let log = Segments { segment_bytes: segment, segment_count: count };
    Superblock::divide(ids, params.part, device_bytes, log, params.unix_s, salt_key)
        .map_err(|source| FormatError::TooSmall { device_bytes, log_bytes, source })
}

/// Marks a device that meta has refused as an older copy (ADR 0012). Every start advances the device's position, so the
/// position alone does not identify it at a later start.
///
/// # Errors
/// When the device fails.
pub fn mark_behind(env: &mut dyn Env, disk: &DiskInfo, uuid: OsdUuid, reason: &str) -> Result<(), FormatError> {
    write(env, disk, BEHIND_AT, IoBuf::copy_of(&poison::encode(uuid, reason)), "marking an older copy")
}

/// Returns why meta has refused this device, if it has. An unreadable page does not prevent a start (R11): it counts as
/// no mark.
pub fn behind_mark(env: &mut dyn Env, disk: &DiskInfo, uuid: OsdUuid) -> Option<String> {
    match read(env, disk, BEHIND_AT, POISON_LEN) {
        Ok(page) => poison::decode(&page, uuid),
        Err(error) => {
            tracing::warn!(%error, offset = BEHIND_AT, "the mark of an older copy cannot be read: the device counts as unmarked");
            None
        }
    }
}

/// Reads the superblock from the copy that is good.
///
/// # Errors
/// [`FormatError::Superblock`] when no copy is usable by this build; otherwise the device failed.
pub fn read_superblock(env: &mut dyn Env, disk: &DiskInfo) -> Result<Superblock, FormatError> {
    if disk.size_bytes < 2 * MARGIN {
        return Err(SuperblockError::Absent.into());
    }
    let [first, last] = Superblock::offsets(disk.size_bytes).map(|offset| read(env, disk, offset, SUPERBLOCK_LEN));
    match (first, last) {
        (Ok(first), Ok(last)) => Ok(Superblock::choose(&first, &last)?),
        // The unreadable copy may be the superblock: without the other copy the device is not called empty.
        (Ok(copy), Err(error)) | (Err(error), Ok(copy)) => match Superblock::decode(&copy) {
            Ok(superblock) => {
                tracing::warn!(%error, "a copy of the superblock cannot be read: the other one counts");
                Ok(superblock)
            }
            Err(_) => Err(error),
        },
        (Err(error), Err(_)) => Err(error),
    }
}

fn zero(
    env: &mut dyn Env,
    disk: &DiskInfo,
    start: u64,
    len_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), FormatError> {
    let mut done = 0;
    while done < len_bytes {
        let mut ops = Vec::new();
        let mut at = done;
        for key in 0..ZERO_DEPTH {
            let step = ZERO_STEP.min(len_bytes - at);
            if step == 0 {
                break;
            }
            let token = Token::new(OWNER, 0, key as u32);
            let bufs = vec![IoBuf::zeros(step as usize)];
            ops.push(Op::DiskWrite { token, disk: disk.id, offset: start + at, bufs, flush: false });
            at += step;
        }
        run(env, ops, "zeroing the log")?;
        done = at;
        progress(done, len_bytes);
    }
    run(env, vec![Op::DiskFlush { token: Token::new(OWNER, 0, 0), disk: disk.id }], "flushing the log")?;
    Ok(())
}

fn write(env: &mut dyn Env, disk: &DiskInfo, offset: u64, buf: IoBuf, during: &'static str) -> Result<(), FormatError> {
    let token = Token::new(OWNER, 0, 0);
    run(env, vec![Op::DiskWrite { token, disk: disk.id, offset, bufs: vec![buf], flush: true }], during)?;
    Ok(())
}

pub(crate) fn read(env: &mut dyn Env, disk: &DiskInfo, offset: u64, len: usize) -> Result<IoBufMut, FormatError> {
    let token = Token::new(OWNER, 0, 0);
    let op = Op::DiskRead { token, disk: disk.id, offset, buf: IoBufMut::new(len) };
    let buf = run(env, vec![op], "reading")?;
    Ok(buf.expect("a read that succeeded gives its buffer back"))
}

/// Runs `ops` until they have completed; returns the buffer of the last read among them.
fn run(env: &mut dyn Env, mut ops: Vec<Op>, during: &'static str) -> Result<Option<IoBufMut>, FormatError> {
    let mut waiting = ops.len();
    let mut events = Vec::new();
    let mut last = None;
    while waiting > 0 {
        env.turn(&mut ops, &mut events, Time::NEVER)?;
        for event in events.drain(..) {
            let result = match event {
                Event::DiskRead { token, buf, result } if token.owner == OWNER => {
                    last = Some(buf);
                    result
                }
                Event::DiskWrite { token, result } | Event::DiskFlush { token, result } if token.owner == OWNER => {
                    result
                }
                _ => continue,
            };
            waiting -= 1;
            result.map_err(|source| FormatError::Disk { during, source })?;
        }
    }
    Ok(last)
}
