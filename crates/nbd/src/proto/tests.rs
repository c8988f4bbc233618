//! The protocol alone: handshakes byte by byte, header checks, garbage.

use super::request::*;
use super::*;
use types::rng::Rng;

fn export() -> Export {
    Export { name: "p/v".into(), description: "a volume".into(), len_bytes: 1 << 30, read_only: false }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

fn string(s: &str) -> Vec<u8> {
    let mut out = (s.len() as u32).to_be_bytes().to_vec();
    out.extend(s.as_bytes());
    out
}

fn info(name: &str, asked: &[u16]) -> Vec<u8> {
    let mut out = string(name);
    out.extend((asked.len() as u16).to_be_bytes());
    asked.iter().for_each(|a| out.extend(a.to_be_bytes()));
    out
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = string(name);
    out.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| out.extend(string(q)));
    out
}

type Reply = (u32, u32, Vec<u8>);

/// Splits option replies: (option, type, data).
fn replies(mut bytes: &[u8]) -> Vec<Reply> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let mut reader = Reader(bytes);
        assert_eq!(reader.u64(), Some(0x0003_e889_0455_65a9), "{bytes:?}");
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        let len = reader.u32().unwrap() as usize;
        out.push((option, kind, reader.take(len).unwrap().to_vec()));
        bytes = reader.0;
    }
    out
}

const NO_ZEROES: [u8; 4] = [0, 0, 0, 3];

/// Runs `script` after a fixed newstyle greeting. Returns the bytes after the greeting and the result.
fn haggle(script: &[Vec<u8>]) -> (Vec<u8>, Result<Progress, HandshakeError>) {
    haggle_with(&NO_ZEROES, script)
}

fn haggle_with(client_flags: &[u8], script: &[Vec<u8>]) -> (Vec<u8>, Result<Progress, HandshakeError>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    out.clear();
    let mut input = client_flags.to_vec();
    script.iter().for_each(|part| input.extend(part));
    let result = handshake.feed(&input, &export(), &mut out);
    if let Ok((taken, progress)) = &result {
        assert!(*taken == input.len() || *progress != Progress::More, "{taken} of {}", input.len());
    }
    (out, result.map(|(_, progress)| progress))
}

fn error_of(script: &[Vec<u8>]) -> u32 {
    let (out, end) = haggle(script);
    assert_eq!(end, Ok(Progress::More));
    let last = replies(&out).pop().expect("a reply");
    assert!(last.1 & 1 << 31 != 0, "{last:?} is no error");
    last.1 & !(1 << 31)
}

#[test]
fn go_describes_the_export_and_enters_transmission() {
    let script =
        [option(8, &[]), option(10, &contexts("p/v", &["x:y", "base:allocation"])), option(7, &info("", &[3, 1]))];
    let (out, end) = haggle(&script);
    assert_eq!(end, Ok(Progress::Enter(Session { structured: true, block_status: true })));
    let mut context = 1u32.to_be_bytes().to_vec();
    context.extend(b"base:allocation");
    // has flags, flush, fua, trim, write zeroes, df, multi conn, fast zero
    let flags = (1u16 | 4 | 8 | 32 | 64 | 128 | 256 | 2048).to_be_bytes();
    let want: Vec<Reply> = vec![
        (8, 1, vec![]),
        (10, 4, context),
        (10, 1, vec![]),
        (7, 3, [&[0, 0], &(1u64 << 30).to_be_bytes()[..], &flags].concat()),
        (7, 3, [&[0, 1], &b"p/v"[..]].concat()),
        (7, 3, [&[0, 3], &512u32.to_be_bytes()[..], &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat()),
        (7, 1, vec![]),
    ];
    assert_eq!(replies(&out), want);
}

#[test]
fn export_name_enters_at_once_with_or_without_padding() {
    let (out, end) = haggle(&[option(1, b"p/v")]);
    assert_eq!(end, Ok(Progress::Enter(Session { structured: false, block_status: false })));
    assert_eq!(out.len(), 10);
    assert_eq!(out[..8], (1u64 << 30).to_be_bytes());
    assert_eq!(u16::from_be_bytes([out[8], out[9]]) & flag::SEND_DF, 0, "no DF without structured replies");
    let (padded, _) = haggle_with(&[0, 0, 0, 1], &[option(1, b"")]);
    assert_eq!((padded.len(), &padded[..10]), (134, &out[..]));
    let (_, end) = haggle(&[option(1, b"other")]);
    assert_eq!(end, Err(HandshakeError::NoExport("other".into())));
}

#[test]
fn list_abort_and_info_answer_and_haggling_goes_on() {
    let (out, end) = haggle(&[option(3, &[]), option(6, &info("p/v", &[2])), option(2, &[])]);
    assert_eq!(end, Ok(Progress::Leave));
    let replies = replies(&out);
    assert_eq!(replies[0], (3, 2, string("p/v")));
    assert_eq!(replies[1], (3, 1, vec![]));
    assert_eq!(replies[3], (6, 3, b"\0\x02a volume".to_vec()));
    assert_eq!(replies.last(), Some(&(2, 1, vec![])));
}

#[test]
fn wrong_options_get_the_protocols_errors_and_the_next_one_is_heard() {
    const UNSUP: u32 = 1;
    const INVALID: u32 = 3;
    const UNKNOWN: u32 = 6;
    const TOO_BIG: u32 = 9;
    for (want, script) in [
        (UNSUP, vec![option(5, &[])]),
        (UNSUP, vec![option(11, &[])]),
        (UNSUP, vec![option(0xdead_beef, b"something")]),
        (INVALID, vec![option(3, b"x")]),
        (INVALID, vec![option(8, b"x")]),
        (INVALID, vec![option(7, b"")]),
        (INVALID, vec![option(7, &[0, 0, 0, 9, 1])]),
        (INVALID, vec![option(7, &[info("", &[]), vec![0]].concat())]),
        (INVALID, vec![option(7, &[string(""), vec![0xff, 0xff]].concat())]),
        (UNKNOWN, vec![option(7, &info("other", &[]))]),
        (UNKNOWN, vec![option(6, &info("p/v\0", &[]))]),
        (INVALID, vec![option(10, &contexts("", &["base:allocation"]))]),
        (UNKNOWN, vec![option(8, &[]), option(9, &contexts("other", &[]))]),
        (INVALID, vec![option(8, &[]), option(10, &[string(""), vec![0xff; 4]].concat())]),
        (TOO_BIG, vec![option(7, &vec![0; 100_000])]),
    ] {
        assert_eq!(error_of(&script), want, "{:?}", &script[script.len() - 1][..16]);
        let mut script = script;
        script.push(option(2, &[]));
        assert_eq!(haggle(&script).1, Ok(Progress::Leave), "the option after it is heard");
    }
}

#[test]
fn a_handshake_that_is_none_is_hung_up_on() {
    assert_eq!(haggle_with(&[0, 0, 0, 4], &[]).1, Err(HandshakeError::Flags(4)));
    assert!(matches!(haggle(&[vec![0; 16]]).1, Err(HandshakeError::Magic(0))));
    let mut endless = b"IHAVEOPT".to_vec();
    endless.extend([0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(haggle(&[endless]).1, Err(HandshakeError::TooLong(u32::MAX)));
    assert_eq!(haggle(&vec![option(3, &[]); 300]).1, Err(HandshakeError::TooMany));
}

#[test]
fn meta_contexts_follow_their_queries() {
    let listed = |queries: &[&str]| {
        let (out, _) = haggle(&[option(8, &[]), option(9, &contexts("", queries))]);
        replies(&out).len() - 2
    };
    assert_eq!(
        (listed(&[]), listed(&["base:"]), listed(&["base:allocation", "base:"]), listed(&["qemu:"])),
        (1, 1, 1, 0)
    );
    let set = |queries: &[&[&str]]| {
        let mut script = vec![option(8, &[])];
        queries.iter().for_each(|q| script.push(option(10, &contexts("", q))));
        script.push(option(7, &info("", &[])));
        match haggle(&script).1 {
            Ok(Progress::Enter(session)) => session.block_status,
            other => panic!("{other:?}"),
        }
    };
    assert!(set(&[&["base:allocation"]]));
    assert!(!set(&[&["base:"]]), "a wildcard selects nothing");
    assert!(!set(&[&["base:allocation"], &[]]), "the last selection counts");
    assert!(!set(&[]));
}

#[test]
fn a_handshake_may_come_in_any_pieces() {
    let script = [option(8, &[]), option(77, &[1; 50]), option(6, &vec![1; 20_000]), option(7, &info("p/v", &[3]))];
    let whole = haggle(&script);
    let mut input = NO_ZEROES.to_vec();
    script.iter().for_each(|part| input.extend(part));
    for cut in (0..200).chain(input.len() - 60..=input.len()) {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(&mut out);
        out.clear();
        let (taken, progress) = handshake.feed(&input[..cut], &export(), &mut out).unwrap();
        let end = if progress == Progress::More {
            handshake.feed(&input[taken..], &export(), &mut out).unwrap().1
        } else {
            progress
        };
        assert_eq!((&out, Ok(end)), (&whole.0, whole.1.clone()), "cut at {cut}");
    }
}

fn header(flags: u16, kind: u16, offset: u64, len: u32) -> Header {
    Header { flags, kind, cookie: 1, offset, len }
}

#[test]
fn requests_are_judged_by_the_protocols_rules() {
    use NbdError::*;
    let plain = Session { structured: false, block_status: false };
    let full = Session { structured: true, block_status: true };
    let end = 1u64 << 30;
    for (session, request, want) in [
        (plain, header(0, CMD_READ, 0, 4096), Ok(Command::Read { whole: false })),
        (plain, header(FLAG_FUA, CMD_READ, 0, 512), Ok(Command::Read { whole: false })),
        (full, header(FLAG_DF, CMD_READ, end - 512, 512), Ok(Command::Read { whole: true })),
        (plain, header(FLAG_DF, CMD_READ, 0, 512), Err(Invalid)),
        (plain, header(0, CMD_READ, end, 512), Err(Invalid)),
        (plain, header(0, CMD_READ, u64::MAX - 511, 512), Err(Invalid)),
        (plain, header(0, CMD_READ, 1, 512), Err(Invalid)),
        (plain, header(0, CMD_READ, 0, 511), Err(Invalid)),
        (plain, header(0, CMD_READ, 0, 0), Err(Invalid)),
        (plain, header(0, CMD_READ, 0, REQUEST_LEN_MAX), Ok(Command::Read { whole: false })),
        (plain, header(0, CMD_READ, 0, REQUEST_LEN_MAX + 512), Err(Invalid)),
        (plain, header(FLAG_FUA, CMD_WRITE, 0, 512), Ok(Command::Write { fua: true })),
        (plain, header(0, CMD_WRITE, end - 512, 1024), Err(NoSpace)),
        (plain, header(0, CMD_WRITE, u64::MAX - 511, 512), Err(NoSpace)),
        (plain, header(FLAG_REQ_ONE, CMD_WRITE, 0, 512), Err(Invalid)),
        (plain, header(0, CMD_FLUSH, 0, 0), Ok(Command::Flush)),
        (plain, header(0, CMD_TRIM, 0, 1 << 30), Ok(Command::Trim)),
        (plain, header(0, CMD_TRIM, 512, 1 << 30), Err(Invalid)),
        (plain, header(FLAG_NO_HOLE, CMD_WRITE_ZEROES, 0, 1 << 30), Ok(Command::WriteZeroes { no_hole: true })),
        (plain, header(FLAG_FAST_ZERO, CMD_WRITE_ZEROES, 0, 512), Ok(Command::WriteZeroes { no_hole: false })),
        (plain, header(FLAG_FAST_ZERO | FLAG_NO_HOLE, CMD_WRITE_ZEROES, 0, 512), Err(NotSupported)),
        (plain, header(0, CMD_WRITE_ZEROES, end, 512), Err(NoSpace)),
        (plain, header(0, CMD_BLOCK_STATUS, 0, 512), Err(Invalid)),
        (full, header(FLAG_REQ_ONE, CMD_BLOCK_STATUS, 0, 512), Ok(Command::BlockStatus { one: true })),
        (full, header(0, CMD_BLOCK_STATUS, end, 512), Err(Invalid)),
        (full, header(0, 5, 0, 512), Err(Invalid)),
        (full, header(0, 8, 0, 512), Err(Invalid)),
        (full, header(1 << 15, CMD_READ, 0, 512), Err(Invalid)),
        (full, header(0xffff, CMD_DISC, 9, 9), Ok(Command::Disconnect)),
    ] {
        assert_eq!(request.judge(session, &export()), want, "{request:?}");
    }
    let read_only = Export { read_only: true, ..export() };
    for kind in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
        assert_eq!(header(0, kind, 0, 512).judge(full, &read_only), Err(Perm));
    }
    assert_eq!(read_only.flags(false) & (flag::READ_ONLY | flag::SEND_TRIM), flag::READ_ONLY);
}

#[test]
fn a_header_needs_its_magic_and_a_payload_that_can_be_drained() {
    let mut bytes = [0u8; HEADER_LEN];
    assert_eq!(Header::parse(&bytes), Err(RequestError::Magic(0)));
    bytes[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    bytes[7] = CMD_WRITE as u8;
    bytes[8..16].copy_from_slice(&7u64.to_be_bytes());
    bytes[24..].copy_from_slice(&512u32.to_be_bytes());
    let header = Header::parse(&bytes).unwrap();
    assert_eq!((header.cookie, header.len, header.payload_len()), (7, 512, 512));
    bytes[24..].copy_from_slice(&(PAYLOAD_DRAIN_MAX + 1).to_be_bytes());
    assert_eq!(Header::parse(&bytes), Err(RequestError::TooLong(PAYLOAD_DRAIN_MAX + 1)));
}

#[test]
fn every_error_of_ours_has_a_word_in_the_protocol() {
    let known = [1, 5, 12, 22, 28, 75, 95, 108];
    for code in 1..=u8::MAX {
        let Some(errno) = Errno::from_u8(code) else { continue };
        assert!(known.contains(&(NbdError::from(errno) as u32)), "{errno}");
    }
    assert_eq!(NbdError::from(Errno::NoSpace) as u32, 28);
    assert_eq!(NbdError::from(Errno::ReadOnly) as u32, 1);
}

#[test]
fn no_garbage_panics_the_handshake() {
    let mut rng = Rng::new(42);
    let parts: Vec<Vec<u8>> =
        vec![option(8, &[]), option(10, &contexts("p/v", &["base:"])), option(7, &info("p/v", &[3]))];
    let mut entered = 0;
    for _ in 0..20_000 {
        let mut input = NO_ZEROES.to_vec();
        for _ in 0..rng.below(6) {
            input.extend(&parts[rng.below(3) as usize]);
        }
        for _ in 0..rng.below(4) {
            let at = rng.below(input.len() as u64) as usize;
            input[at] = rng.next_u64() as u8;
        }
        let mut out = Vec::new();
        let mut handshake = Handshake::new(&mut out);
        let (mut at, mut end) = (0, 0);
        while end < input.len() {
            end = (end + 1 + rng.below(40) as usize).min(input.len());
            match handshake.feed(&input[at..end], &export(), &mut out) {
                Ok((taken, Progress::More)) => at += taken,
                Ok((_, progress)) => {
                    entered += usize::from(matches!(progress, Progress::Enter(_)));
                    break;
                }
                Err(_) => break,
            }
        }
        assert!(out.len() < 4096);
    }
    assert!(entered > 100, "the garbage is not all garbage: {entered} handshakes ended well");
}
