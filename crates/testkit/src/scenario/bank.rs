//! A bank in two volumes, whose accounts lie in many PGs: money moves between them while both are cut at one point, again and again.
//!
//! ```text
//! debit (the account also names the transfer) → credit (the account also names what it has received) → next transfer
//! ```
//!
//! Each step is acknowledged before the next one begins. A snapshot of both volumes at one point shows the sum that the bank began with, if money
//! of the last transfer that a debit names, and no credit does, is counted as on its way. A part that was cut earlier or later than another one
//! makes money or loses some. All OSDs are killed in the end; then the snapshots that are left are counted again, from the devices.

use super::Settings;
use crate::basalt::Basalt;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape};
use crate::report::Outcome;
use crate::session::{Open, Session};
use anyhow::{Context, Result, anyhow, bail, ensure};
use device::{Answer, Request};
use std::sync::atomic::{AtomicBool, Ordering};
use types::rng::Rng;
use types::{BLOCK, IoBufMut, SEGMENT};

const VOLUMES: usize = 2;
/// Accounts of a volume, each in a segment of its own.
const ACCOUNTS: usize = 8;
const FIRST: u64 = 1_000_000;
/// One of so many snapshots stays until the end.
const KEPT: u32 = 100;

/// An account. Transfers are numbered through the whole bank; those from one account rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    balance: u64,
    /// The last transfer from here: number, receiver and amount.
    sent: (u64, u64, u64),
    /// Number of the last transfer to here.
    received: u64,
}

impl Account {
    fn encode(&self) -> IoBufMut {
        let mut buf = IoBufMut::new(BLOCK as usize);
        let (number, receiver, amount) = self.sent;
        let words = [self.balance, number, receiver, amount, self.received];
        for (at, word) in words.iter().enumerate() {
            buf[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        buf
    }

    fn decode(bytes: &[u8]) -> Account {
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("8 bytes"));
        Account { balance: word(0), sent: (word(1), word(2), word(3)), received: word(4) }
    }
}

/// Returns the sum of all accounts, and whether a transfer is on its way.
fn sum(accounts: &[Account]) -> Result<(u64, bool)> {
    let balances: u64 = accounts.iter().map(|account| account.balance).sum();
    // Transfers follow each other, so only the last one may be without its credit.
    let (number, receiver, amount) = accounts.iter().map(|account| account.sent).max().context("an account")?;
    let receiver = accounts.get(receiver as usize).context("a receiver that is an account")?;
    let under_way = number > receiver.received;
    Ok((balances + if under_way { amount } else { 0 }, under_way))
}

fn volume(n: usize) -> String {
    format!("{POOL}/bank{n}")
}

fn place(account: usize) -> (usize, u64) {
    (account % VOLUMES, (account / VOLUMES) as u64 * SEGMENT)
}

fn read(sessions: &mut [Session]) -> Result<Vec<Account>> {
    let one = |account: usize| {
        let (volume, offset) = place(account);
        match sessions[volume].call(Request::Read { offset, len: BLOCK })? {
            Ok(Answer::Data(pieces)) => Ok(Account::decode(&pieces.first().context("a piece")?[..])),
            other => Err(anyhow!("reading account {account}: {other:?}")),
        }
    };
    (0..VOLUMES * ACCOUNTS).map(one).collect()
}

fn write(sessions: &mut [Session], account: usize, value: &Account) -> Result<()> {
    let (volume, offset) = place(account);
    let request = Request::Write { offset, buf: value.encode().freeze(), fua: false };
    let answer = sessions[volume].call(request)?;
    answer.map(drop).map_err(|errno| anyhow!("writing account {account}: {errno}"))
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "bank", Shape { pgs: 16, ..Shape::default() })?;
    if let Err(error) = open_for_business(&mut cluster, settings, outcome) {
        outcome.faults.push(format!("{error:#}"));
    }
    super::close(&mut cluster, settings, outcome);
    Ok(())
}

fn open_for_business(cluster: &mut Cluster, settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let basalt = cluster.basalt.clone();
    for n in 0..VOLUMES {
        cluster.volume(&format!("bank{n}"), ACCOUNTS as u64 * SEGMENT)?;
    }
    let rounds = settings.rounds(1000, 30);
    let ended = AtomicBool::new(false);
    let (transfers, taken) = std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            let done = transfer(&basalt, settings.seed, &ended);
            ended.store(true, Ordering::Relaxed);
            done
        });
        let taken = cut(&basalt, rounds, &ended);
        ended.store(true, Ordering::Relaxed);
        let transfers = teller.join().expect("the teller does not panic")?;
        Ok::<_, anyhow::Error>((transfers, taken?))
    })?;
    outcome.figure(format!(
        "{rounds} snapshots of {VOLUMES} volumes at one point balance, {} of them within a transfer; {transfers} transfers",
        taken.within
    ));
    outcome.need(transfers > u64::from(rounds), || format!("only {transfers} transfers"));
    outcome.need(taken.within > 0, || "no snapshot fell within a transfer".to_owned());

    cluster.osds.values_mut().for_each(|osd| osd.kill());
    for osd in cluster.ids() {
        cluster.osd(osd).start()?;
    }
    cluster.basalt.wait_healthy(READY_MAX)?;
    for name in &taken.kept {
        count(&basalt, name).with_context(|| format!("{name} after a restart of all OSDs"))?;
    }
    outcome.figure(format!("{} of them counted again after kill -9 of all OSDs", taken.kept.len()));
    Ok(())
}

/// Moves money until the end. Returns the number of transfers.
fn transfer(basalt: &Basalt, seed: u64, ended: &AtomicBool) -> Result<u64> {
    let open = |n| Session::open(basalt.metas(), &volume(n), Open::default());
    let mut sessions: Vec<Session> = (0..VOLUMES).map(open).collect::<Result<_>>()?;
    let mut accounts = vec![Account { balance: FIRST, ..Account::default() }; VOLUMES * ACCOUNTS];
    for (n, account) in accounts.iter().enumerate() {
        write(&mut sessions, n, account)?;
    }
    let mut rng = Rng::new(seed);
    let mut number = 0;
    while !ended.load(Ordering::Relaxed) {
        let from = rng.below(accounts.len() as u64) as usize;
        let to = (from + 1 + rng.below(accounts.len() as u64 - 1) as usize) % accounts.len();
        let amount = rng.below(accounts[from].balance / 2 + 1);
        number += 1;
        accounts[from].balance -= amount;
        accounts[from].sent = (number, to as u64, amount);
        write(&mut sessions, from, &accounts[from])?;
        accounts[to].balance += amount;
        accounts[to].received = number;
        write(&mut sessions, to, &accounts[to])?;
    }
    sessions.into_iter().try_for_each(Session::close)?;
    Ok(number)
}

#[derive(Debug, Default)]
struct Taken {
    /// Number of snapshots with a debit whose credit they do not have.
    within: u64,
    kept: Vec<String>,
}

/// Makes snapshots of both volumes, and counts each one.
fn cut(basalt: &Basalt, rounds: u32, ended: &AtomicBool) -> Result<Taken> {
    wait_open(basalt, ended)?;
    let mut taken = Taken::default();
    for round in 0..rounds {
        // Its error says more.
        ensure!(!ended.load(Ordering::Relaxed), "the teller has stopped");
        let name = format!("s{round}");
        let both: Vec<String> = (0..VOLUMES).map(|n| format!("{}@{name}", volume(n))).collect();
        let command = ["snapshot", "create", &both[0], &both[1]];
        basalt.run(&command)?;
        taken.within += u64::from(count(basalt, &name)?);
        if round % KEPT == 0 {
            taken.kept.push(name);
            continue;
        }
        for snapshot in &both {
            basalt.run(&["snapshot", "rm", snapshot])?;
        }
    }
    Ok(taken)
}

/// Waits until all accounts have their first balance.
fn wait_open(basalt: &Basalt, ended: &AtomicBool) -> Result<()> {
    crate::clock::wait_until("the first balance of all accounts", READY_MAX, || {
        ensure!(!ended.load(Ordering::Relaxed), "the teller has stopped");
        let how = Open { write: false, steal: false, timeout: None };
        let mut sessions: Vec<Session> =
            (0..VOLUMES).map(|n| Session::open(basalt.metas(), &volume(n), how)).collect::<Result<_>>()?;
        let accounts = read(&mut sessions)?;
        sessions.into_iter().try_for_each(Session::close)?;
        Ok(accounts.iter().all(|account| account.balance > 0))
    })?;
    Ok(())
}

/// Counts the money in a snapshot of both volumes. Returns whether a transfer was on its way.
fn count(basalt: &Basalt, name: &str) -> Result<bool> {
    let how = Open { write: false, steal: false, timeout: None };
    let open = |n| Session::open(basalt.metas(), &format!("{}@{name}", volume(n)), how);
    let mut sessions: Vec<Session> = (0..VOLUMES).map(open).collect::<Result<_>>()?;
    let accounts = read(&mut sessions)?;
    sessions.into_iter().try_for_each(Session::close)?;
    let (sum, under_way) = sum(&accounts)?;
    let all = FIRST * accounts.len() as u64;
    if sum != all {
        bail!("{name} has {sum} instead of {all}: {accounts:?}");
    }
    Ok(under_way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bank_that_was_cut_at_two_points_does_not_balance() {
        let first = Account { balance: 10, ..Account::default() };
        let debit = Account { balance: 7, sent: (1, 1, 3), ..first };
        let credit = Account { balance: 13, received: 1, ..first };
        let later = Account { balance: 5, sent: (2, 1, 2), ..debit };
        assert_eq!(sum(&[first, first]).unwrap(), (20, false));
        assert_eq!(sum(&[debit, first]).unwrap(), (20, true));
        assert_eq!(sum(&[debit, credit]).unwrap(), (20, false));
        assert_eq!(sum(&[later, credit]).unwrap(), (20, true));
        assert_eq!(sum(&[first, credit]).unwrap().0, 23);
        assert_eq!(sum(&[later, first]).unwrap().0, 17);
        assert_eq!(Account::decode(&later.encode()), later);
    }
}
