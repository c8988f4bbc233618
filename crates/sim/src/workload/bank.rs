//! A bank over two volumes: money moves between accounts, and none is made or lost.
//!
//! Accounts of both volumes belong to lanes; a lane moves money between two of its accounts at a time:
//!
//! ```text
//! note (number, both accounts, both new balances) → both accounts, at once → the next note over this one
//! ```
//!
//! A process that opens the volumes reads each lane's note, writes both its accounts again, and goes on. So at every
//! rest the balances of a lane add up, and no note is older than the last that was acknowledged. A violation would be a
//! write that is lost, torn, or taken from an opener that is fenced.
//!
//! Invariant: the numbers of acknowledged notes are kept here, outside the system, for all openers together.

use super::{Ask, Turn, VOLUME, Workload, name};
use device::{Answer, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::rng::Rng;
use types::units::{CHUNK, SECTOR};
use types::{Errno, IoBuf, IoBufMut};

/// The second volume.
pub const SECOND: &str = "main/w";
/// Balance of an account that was never written.
const OPENING: u64 = 1_000;
/// Number of accounts of a lane in each volume.
const ACCOUNTS: u64 = 3;
const LANES: usize = 4;
const MAGIC: u64 = 0x6b6e_6162_6b6e_6162;

/// Number of each lane's last note that any opener has seen acknowledged.
pub type Ledger = Rc<RefCell<[u64; LANES]>>;

/// One move: its number, and for both accounts which it is and what it holds afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    number: u64,
    sides: [(u64, u64); 2],
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing is known of the lane, and its note is to be read.
    Lost,
    ReadingNote,
    /// The balances of its accounts are read, one after the other, after the note was made good.
    Reading(Vec<u64>),
    Idle,
    Noting(Note),
    /// Both accounts are written; `left` of the writes are not acknowledged. `fresh`: not a repeated move.
    Moving {
        note: Note,
        left: u8,
        fresh: bool,
    },
}

struct Lane {
    state: State,
    number: u64,
    balances: Vec<u64>,
    /// Requests of the state that are not submitted yet.
    todo: Vec<(usize, Request)>,
}

/// One opener's bank.
pub struct Bank {
    ledger: Ledger,
    lanes: Vec<Lane>,
    /// By token: the lane, and the time of the submission.
    inflight: BTreeMap<u64, (usize, u64)>,
    next_token: u64,
    rng: Rng,
    moves: u64,
    moved: u64,
    answered: u64,
    len_bytes: u64,
    finishing: bool,
}

impl Bank {
    pub fn new(ledger: Ledger, moves: u64, len_bytes: u64, rng: Rng) -> Bank {
        let lane = |_| Lane { state: State::Lost, number: 0, balances: Vec::new(), todo: Vec::new() };
        Bank {
            ledger,
            lanes: (0..LANES).map(lane).collect(),
            inflight: BTreeMap::new(),
            next_token: 0,
            rng,
            moves,
            moved: 0,
            answered: 0,
            len_bytes,
            finishing: false,
        }
    }

    fn offset(&self, lane: usize, place: u64) -> u64 {
        offset(self.len_bytes, lane, place)
    }

    fn account(&self, lane: usize, n: u64) -> (usize, u64) {
        account(self.len_bytes, lane, n)
    }

    fn write_accounts(&self, lane: usize, note: Note) -> Vec<(usize, Request)> {
        let write = |(account, balance): (u64, u64)| {
            let (slot, offset) = self.account(lane, account);
            let buf = sector([account, balance, note.number, lane as u64, 0, 0]);
            (slot, Request::Write { offset, buf, fua: false })
        };
        note.sides.into_iter().map(write).collect()
    }

    /// Starts the next request of an idle or lost lane.
    fn begin(&mut self, lane: usize) {
        let (number, balances) = (self.lanes[lane].number, self.lanes[lane].balances.clone());
        if matches!(self.lanes[lane].state, State::Lost) {
            let offset = self.offset(lane, 0);
            self.lanes[lane].todo = vec![read(0, offset)];
            self.lanes[lane].state = State::ReadingNote;
            return;
        }
        if !matches!(self.lanes[lane].state, State::Idle) || self.moved >= self.moves {
            return;
        }
        self.moved += 1;
        let from = self.rng.below(2 * ACCOUNTS);
        let to = (from + 1 + self.rng.below(2 * ACCOUNTS - 1)) % (2 * ACCOUNTS);
        let amount = self.rng.between(0, balances[from as usize]);
        let sides = [(from, balances[from as usize] - amount), (to, balances[to as usize] + amount)];
        let note = Note { number: number + 1, sides };
        let buf = sector([sides[0].0, sides[0].1, note.number, lane as u64, sides[1].0, sides[1].1]);
        let offset = self.offset(lane, 0);
        self.lanes[lane].todo = vec![(0, Request::Write { offset, buf, fua: false })];
        self.lanes[lane].state = State::Noting(note);
    }

    fn note_read(&mut self, lane: usize, bytes: &[u8]) -> Result<(), String> {
        let note = match words(bytes)? {
            None => Note { number: 0, sides: [(0, OPENING), (1, OPENING)] },
            Some([a, x, number, l, b, y]) if l == lane as u64 => Note { number, sides: [(a, x), (b, y)] },
            Some(other) => return Err(format!("lane {lane} holds the note {other:?}")),
        };
        let noted = self.ledger.borrow()[lane];
        if note.number < noted {
            return Err(format!("lane {lane} is at move {}, and {noted} was acknowledged", note.number));
        }
        self.lanes[lane].number = note.number;
        if note.number == 0 {
            self.read_account(lane, Vec::new());
        } else {
            self.lanes[lane].todo = self.write_accounts(lane, note);
            self.lanes[lane].state = State::Moving { note, left: 2, fresh: false };
        }
        Ok(())
    }

    fn read_account(&mut self, lane: usize, balances: Vec<u64>) {
        let (slot, offset) = self.account(lane, balances.len() as u64);
        self.lanes[lane].todo = vec![read(slot, offset)];
        self.lanes[lane].state = State::Reading(balances);
    }

    fn account_read(&mut self, lane: usize, mut balances: Vec<u64>, bytes: &[u8]) -> Result<(), String> {
        let account = balances.len() as u64;
        balances.push(match words(bytes)? {
            None => OPENING,
            Some([a, balance, number, l, ..])
                if (a, l) == (account, lane as u64) && number <= self.lanes[lane].number =>
            {
                balance
            }
            Some(other) => return Err(format!("account {account} of lane {lane} holds {other:?}")),
        });
        if balances.len() < 2 * ACCOUNTS as usize {
            self.read_account(lane, balances);
            return Ok(());
        }
        let sum: u64 = balances.iter().sum();
        if sum != 2 * ACCOUNTS * OPENING {
            return Err(format!("lane {lane} holds {sum} in all after move {}: {balances:?}", self.lanes[lane].number));
        }
        (self.lanes[lane].balances, self.lanes[lane].state) = (balances, State::Idle);
        Ok(())
    }

    fn step(&mut self, lane: usize, answer: Answer) -> Result<(), String> {
        let bytes: Vec<u8> = match &answer {
            Answer::Data(bufs) => bufs.iter().flat_map(|b| b.iter().copied()).collect(),
            _ => Vec::new(),
        };
        match self.lanes[lane].state.clone() {
            State::ReadingNote => return self.note_read(lane, &bytes),
            State::Reading(balances) => return self.account_read(lane, balances, &bytes),
            State::Noting(note) => {
                self.ledger.borrow_mut()[lane] = note.number;
                self.lanes[lane].number = note.number;
                self.lanes[lane].todo = self.write_accounts(lane, note);
                self.lanes[lane].state = State::Moving { note, left: 2, fresh: true };
            }
            State::Moving { note, left: 2, fresh } => {
                self.lanes[lane].state = State::Moving { note, left: 1, fresh };
            }
            State::Moving { note, fresh, .. } => {
                if fresh {
                    for (account, balance) in note.sides {
                        self.lanes[lane].balances[account as usize] = balance;
                    }
                    self.lanes[lane].state = State::Idle;
                } else {
                    self.read_account(lane, Vec::new());
                }
            }
            State::Lost | State::Idle => return Err(format!("lane {lane} was answered and has asked nothing")),
        }
        Ok(())
    }
}

/// Returns where a lane's note (place 0) and accounts (from 1) lie: borders of blocks and chunks, never shared.
fn offset(len_bytes: u64, lane: usize, place: u64) -> u64 {
    let chunk = (lane as u64 * (ACCOUNTS + 1) + place) * 13 % (len_bytes / CHUNK);
    chunk * CHUNK + lane as u64 * 8192 + place * (4096 + SECTOR)
}

/// Returns the slot of an account's volume, and its offset.
fn account(len_bytes: u64, lane: usize, n: u64) -> (usize, u64) {
    ((n % 2) as usize, offset(len_bytes, lane, 1 + n / 2))
}

/// Returns the places that an audit reads: by lane the note, and then each account.
pub(super) fn places(len_bytes: u64) -> impl Iterator<Item = ((usize, u64), (usize, u64))> {
    let of_lane = move |lane| {
        let accounts = (0..2 * ACCOUNTS).map(move |n| ((lane, n + 1), account(len_bytes, lane, n)));
        std::iter::once(((lane, 0), (0, offset(len_bytes, lane, 0)))).chain(accounts)
    };
    (0..LANES).flat_map(of_lane)
}

/// Checks what both volumes held at one moment, by lane and place: with the move of its note the balances of a lane add up.
///
/// # Errors
/// Two volumes, or two PGs, of different moments.
pub(super) fn audit(seen: &BTreeMap<(usize, u64), Vec<u8>>) -> Result<(), String> {
    for lane in 0..LANES {
        let number = |note: &[u64; 6]| note[2];
        let note = words(&seen[&(lane, 0)])?;
        let mut balances = Vec::new();
        for n in 0..2 * ACCOUNTS {
            balances.push(match words(&seen[&(lane, n + 1)])? {
                None => OPENING,
                Some(account) if note.as_ref().is_some_and(|note| number(&account) <= number(note)) => account[1],
                Some(account) => {
                    return Err(format!("account {n} of lane {lane} holds {account:?}, and the note {note:?}"));
                }
            });
        }
        for (n, balance) in note.iter().flat_map(|[a, x, _, _, b, y]| [(*a, *x), (*b, *y)]) {
            let balance_of = balances.get_mut(n as usize).ok_or_else(|| format!("a note names account {n}"))?;
            *balance_of = balance;
        }
        let sum: u64 = balances.iter().sum();
        if sum != 2 * ACCOUNTS * OPENING {
            return Err(format!("lane {lane} holds {sum} in all, with the note {note:?}: {balances:?}"));
        }
    }
    Ok(())
}

fn read(slot: usize, offset: u64) -> (usize, Request) {
    (slot, Request::Read { offset, len: SECTOR })
}

/// Returns the last word of a sector. It is not the CRC itself: all sectors that end in their own CRC32C have the same
/// CRC32C. A device that brings back an older sector could not be caught then (see known issues).
fn seal(bytes: &[u8]) -> u64 {
    u64::from(types::crc32c(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Makes a sector that holds six words and a checksum.
fn sector(words: [u64; 6]) -> IoBuf {
    let mut buf = IoBufMut::zeroed(SECTOR as usize);
    let all = std::iter::once(MAGIC).chain(words);
    for (bytes, word) in buf.chunks_exact_mut(8).zip(all) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let seal = seal(&buf[..56]);
    buf[56..64].copy_from_slice(&seal.to_le_bytes());
    buf.freeze()
}

/// Returns the words of a sector; `None`: zeros.
fn words(bytes: &[u8]) -> Result<Option<[u64; 6]>, String> {
    if bytes.len() != SECTOR as usize {
        return Err(format!("a read of one sector brought {} bytes", bytes.len()));
    }
    if bytes.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC || word(7) != seal(&bytes[..56]) {
        return Err("a sector holds bytes that the bank never wrote".to_owned());
    }
    Ok(Some(std::array::from_fn(|n| word(n + 1))))
}

impl Workload for Bank {
    fn volumes(&self) -> Vec<String> {
        vec![VOLUME.to_owned(), SECOND.to_owned()]
    }

    fn opened(&mut self, _slot: usize) {
        for lane in &mut self.lanes {
            (lane.state, lane.todo) = (State::Lost, Vec::new());
        }
    }

    fn wants_more(&self) -> bool {
        let wants = |lane: &Lane| match lane.state {
            State::Lost => true,
            State::Idle => self.moved < self.moves,
            _ => !lane.todo.is_empty(),
        };
        self.lanes.iter().any(wants)
    }

    fn next(&mut self, turn: &mut Turn<'_>) -> Option<Ask> {
        for lane in 0..LANES {
            if self.lanes[lane].todo.is_empty() {
                self.begin(lane);
            }
            if let Some((slot, request)) = self.lanes[lane].todo.pop() {
                let token = self.next_token;
                self.next_token += 1;
                self.inflight.insert(token, (lane, turn.now));
                return Some(Ask { slot, request, token });
            }
        }
        None
    }

    fn completed(&mut self, token: u64, result: Result<Answer, Errno>, turn: &mut Turn<'_>) -> Result<(), String> {
        let (lane, _) = self.inflight.remove(&token).ok_or_else(|| format!("token {token} was never asked"))?;
        self.answered += 1;
        match result {
            // A preempted opener may read old bytes, and it may not write: its accounts prove nothing any more.
            _ if turn.stolen => Ok(()),
            Ok(answer) => self.step(lane, answer),
            Err(Errno::Damaged) if turn.lenient => Ok(()),
            Err(errno) => Err(format!("a request of the bank failed: {}", name(errno))),
        }
    }

    fn forget_inflight(&mut self) {
        self.inflight.clear();
        self.opened(0);
    }

    fn limit(&mut self, more: u64) {
        self.moves = self.moves.min(self.moved + more);
    }

    fn finish(&mut self) {
        self.finishing = true;
        self.moves = self.moved;
        // Every lane is read again.
        self.opened(0);
    }

    fn is_finishing(&self) -> bool {
        self.finishing
    }

    fn oldest(&self) -> Option<u64> {
        self.inflight.values().map(|(_, since)| *since).min()
    }

    fn is_done(&self) -> bool {
        let rests = |lane: &Lane| matches!(lane.state, State::Idle);
        self.moved >= self.moves && self.inflight.is_empty() && self.lanes.iter().all(rests)
    }

    fn inflight(&self) -> usize {
        self.inflight.len()
    }

    fn operations(&self) -> u64 {
        3 * self.moves
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn waiting(&self) -> String {
        let states: Vec<String> = self.lanes.iter().map(|lane| format!("{:?}", lane.state)).collect();
        format!("{} [{}]", self.inflight.len(), states.join(", "))
    }
}
