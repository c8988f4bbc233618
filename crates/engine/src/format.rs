//! Making a device ours, and finding out whether it is.
//!
//! `basalt osd format` comes in with an env and a disk; these functions turn the env themselves, because
//! nothing else runs beside them.
//!
//! Invariant: a device that carries something else is not touched unless forced; the superblocks are written
//! last, so that a format cut short leaves no device that mounts.

use env::{DiskError, DiskInfo, Env, EnvError, Event, Op, Token};
use layout::log::{BATCH_ALIGN, BatchHeader, FIXED_LEN, put};
use layout::superblock::{MARGIN, SUPERBLOCK_LEN, Superblock, SuperblockError};
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
    /// Take the device whatever it carries.
    pub force: bool,
    /// Write zeros over the whole log (R10); needed wherever extents may be unwritten (files).
    pub prezero: bool,
    /// Seconds since 1970, for people.
    pub unix_s: u64,
}

/// Why a device was not formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// BSLT-3003
    #[error("the device carries other data in its {place} MiB; use --force to overwrite it")]
    Foreign { place: &'static str },
    /// BSLT-3005
    #[error("the device belongs to another cluster, {found}; use --force to overwrite it")]
    OtherCluster { found: ClusterId },
    /// BSLT-3006
    #[error("a device of {device_bytes} bytes does not hold a log of {log_bytes} bytes and a home")]
    TooSmall { device_bytes: u64, log_bytes: u64, source: SuperblockError },
    #[error("{during}: {source}")]
    Disk { during: &'static str, source: DiskError },
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
}

/// One write of the prezeroing.
const ZERO_STEP: u64 = 1 << 20;
/// Writes of the prezeroing in flight.
const ZERO_DEPTH: u64 = 4;
/// `Token.room` of these operations: nothing else runs.
const ROOM: u8 = u8::MAX;

/// What formatting writes on a device of zeros, in order: for whoever makes an image without an env.
///
/// # Errors
/// When log and home do not fit.
pub fn format_image(
    device_bytes: u64,
    params: &FormatParams,
    salt: u64,
) -> Result<(Superblock, Vec<(u64, IoBuf)>), FormatError> {
    let superblock = divide(device_bytes, params)?;
    let page = IoBuf::copy_of(&superblock.encode());
    let [first, last] = Superblock::offsets(device_bytes);
    let writes = vec![(superblock.log_start, first_batch(&superblock, salt)), (first, page.clone()), (last, page)];
    Ok((superblock, writes))
}

/// Whether [`format_device`] would take `disk`: it is large enough, and may be overwritten. Nothing is written.
///
/// # Errors
/// What formatting would fail with.
pub fn check_format(env: &mut dyn Env, disk: &DiskInfo, params: &FormatParams) -> Result<(), FormatError> {
    divide(disk.size_bytes, params)?;
    if params.force { Ok(()) } else { check_ours_or_empty(env, disk, params.cluster) }
}

/// Formats `disk`. `progress` gets (bytes done, bytes in all) of the zeroing.
///
/// # Errors
/// When the device carries something else and `force` is not set, does not fit, or fails.
pub fn format_device(
    env: &mut dyn Env,
    disk: &DiskInfo,
    params: &FormatParams,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Superblock, FormatError> {
    check_format(env, disk, params)?;
    let (superblock, writes) = format_image(disk.size_bytes, params, env.random())?;
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
    for (offset, page) in writes {
        write(env, disk, offset, page, "writing the first log batch and the superblocks")?;
    }
    Ok(superblock)
}

/// The batch that opens the first segment: a log without any batch is a lost one, not a new one.
fn first_batch(superblock: &Superblock, salt: u64) -> IoBuf {
    let mut records = Vec::new();
    put::segment_open(&mut records, 0, true);
    put::state_end(&mut records);
    put::mount(&mut records);
    let header = BatchHeader {
        header_len: BATCH_ALIGN as u32,
        records_len: records.len() as u32,
        record_count: 3,
        records_crc: types::crc32c(&records),
        payload_len: 0,
        salt,
        mount: 1,
        seq: 1,
        offset: superblock.log_start,
        durable_seq: 0,
        tail_seq: 1,
        segment_seq: 1,
    };
    let mut page = IoBufMut::zeroed(BATCH_ALIGN);
    page[..FIXED_LEN].copy_from_slice(&header.encode(superblock.uuid));
    page[FIXED_LEN..FIXED_LEN + records.len()].copy_from_slice(&records);
    page.freeze()
}

fn divide(device_bytes: u64, params: &FormatParams) -> Result<Superblock, FormatError> {
    use layout::superblock::{SEGMENT_LEN_MAX, SEGMENT_LEN_MIN, SEGMENTS_MIN};
    let page = SUPERBLOCK_LEN as u64;
    let segment = match params.segment_bytes {
        0 => (params.log_bytes / u64::from(SEGMENTS_MIN)).clamp(SEGMENT_LEN_MIN, SEGMENT_LEN_MAX) / page * page,
        given => given,
    };
    let count = u32::try_from(params.log_bytes.checked_div(segment).unwrap_or(0)).unwrap_or(u32::MAX);
    let ids = (params.cluster, params.osd, params.uuid);
    Superblock::divide(ids, device_bytes, segment, count, params.unix_s).map_err(|source| FormatError::TooSmall {
        device_bytes,
        log_bytes: params.log_bytes,
        source,
    })
}

/// The rule for foreign devices: this cluster's superblock, or zeros at both ends.
fn check_ours_or_empty(env: &mut dyn Env, disk: &DiskInfo, cluster: ClusterId) -> Result<(), FormatError> {
    match read_superblock(env, disk) {
        Ok(superblock) if superblock.cluster == cluster => return Ok(()),
        Ok(superblock) => return Err(FormatError::OtherCluster { found: superblock.cluster }),
        Err(FormatError::Superblock(_)) => {}
        Err(other) => return Err(other),
    }
    let margin = MARGIN.min(disk.size_bytes);
    for (offset, place) in [(0, "first"), (disk.size_bytes - margin, "last")] {
        let align = u64::from(disk.align_bytes.max(1));
        let offset = offset / align * align;
        let len = (disk.size_bytes - offset).min(margin) / align * align;
        let bytes = read(env, disk, offset, len as usize)?;
        if bytes.iter().any(|b| *b != 0) {
            return Err(FormatError::Foreign { place });
        }
    }
    Ok(())
}

/// Reads whichever superblock is good.
///
/// # Errors
/// [`FormatError::Superblock`] when there is none that this build can use; otherwise the device failed.
pub fn read_superblock(env: &mut dyn Env, disk: &DiskInfo) -> Result<Superblock, FormatError> {
    if disk.size_bytes < 2 * MARGIN {
        return Err(SuperblockError::Absent.into());
    }
    let [first, last] = Superblock::offsets(disk.size_bytes);
    let first = read(env, disk, first, SUPERBLOCK_LEN)?;
    let last = read(env, disk, last, SUPERBLOCK_LEN)?;
    Ok(Superblock::choose(&first, &last)?)
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
            let token = Token::new(ROOM, 0, key as u32);
            let bufs = vec![IoBuf::zeros(step as usize)];
            ops.push(Op::DiskWrite { token, disk: disk.id, offset: start + at, bufs, flush: false });
            at += step;
        }
        run(env, ops, "zeroing the log")?;
        done = at;
        progress(done, len_bytes);
    }
    run(env, vec![Op::DiskFlush { token: Token::new(ROOM, 0, 0), disk: disk.id }], "flushing the log")?;
    Ok(())
}

fn write(env: &mut dyn Env, disk: &DiskInfo, offset: u64, buf: IoBuf, during: &'static str) -> Result<(), FormatError> {
    let token = Token::new(ROOM, 0, 0);
    run(env, vec![Op::DiskWrite { token, disk: disk.id, offset, bufs: vec![buf], flush: true }], during)?;
    Ok(())
}

fn read(env: &mut dyn Env, disk: &DiskInfo, offset: u64, len: usize) -> Result<IoBufMut, FormatError> {
    let token = Token::new(ROOM, 0, 0);
    let op = Op::DiskRead { token, disk: disk.id, offset, buf: IoBufMut::new(len) };
    let buf = run(env, vec![op], "reading")?;
    Ok(buf.expect("a read that succeeded gives its buffer back"))
}

/// Runs `ops` to their ends; gives the buffer of the last read among them.
fn run(env: &mut dyn Env, mut ops: Vec<Op>, during: &'static str) -> Result<Option<IoBufMut>, FormatError> {
    let mut waiting = ops.len();
    let mut events = Vec::new();
    let mut last = None;
    while waiting > 0 {
        env.turn(&mut ops, &mut events, Time::NEVER)?;
        for event in events.drain(..) {
            let result = match event {
                Event::DiskRead { token, buf, result } if token.room == ROOM => {
                    last = Some(buf);
                    result
                }
                Event::DiskWrite { token, result } | Event::DiskFlush { token, result } if token.room == ROOM => result,
                _ => continue,
            };
            waiting -= 1;
            result.map_err(|source| FormatError::Disk { during, source })?;
        }
    }
    Ok(last)
}
