//! Opens that the program has given up, and the stop, on a thread whose metadata server never answers.

use super::IoThread;
use crate::cluster::Volume;
use crate::failure::Failure;
use crate::mailbox::{Command, Mailbox};
use crate::pending::Pending;
use clientloop::{ClientLoop, LoopConfig, OPEN_MAX, PART_MAX};
use env::Env;
use env::real::{RealConfig, RealEnv};
use std::sync::Arc;
use std::time::Duration;
use types::Time;

const WRITE: (bool, bool) = (true, false);
const STEAL: (bool, bool) = (true, true);

fn thread() -> IoThread<u64> {
    let env = RealEnv::new(RealConfig::default()).expect("a ring");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let mailbox = Arc::new(Mailbox::new(env.waker()));
    let (metas, holder) = (vec!["127.0.0.1:1".to_owned()], clientloop::holder("test"));
    let on_unavailable = client::OnUnavailable::Freeze;
    let config = LoopConfig { metas, holder, timeout: None, full_wait: Duration::ZERO, on_unavailable };
    IoThread::new(mailbox, ClientLoop::new(env, runtime, config))
}

fn open(thread: &mut IoThread<u64>, flags: (bool, bool)) -> Pending<Volume<u64>> {
    let (reply, pending) = Pending::new(Failure::bug("no answer"));
    let (counted, asked) = (Mailbox::add_volume(&thread.mailbox), Mailbox::add_open(&thread.mailbox));
    let (counted, asked) = (counted.expect("open"), asked.expect("room"));
    thread.mailbox.send(Command::Open { name: "a/b".into(), flags, reply, counted, asked }).expect("open");
    thread.take_commands(Time::ZERO);
    pending
}

/// The failure that a program has, if it has one.
fn errno(pending: &Pending<Volume<u64>>) -> Option<i32> {
    pending.wait_for(Duration::ZERO).map(|answer| answer.expect_err("no volume").errno)
}

#[test]
fn an_open_that_was_given_up_is_adopted_by_the_next_one() {
    let mut thread = thread();
    drop(open(&mut thread, STEAL));
    let again = open(&mut thread, STEAL);
    assert_eq!((thread.opening.len(), errno(&again)), (1, None), "one request is with meta");
    let beside = open(&mut thread, STEAL);
    assert_eq!((thread.opening.len(), errno(&beside)), (2, None), "another thread of the program may wait beside it");
}

#[test]
fn an_open_with_other_flags_than_one_that_was_given_up_is_refused() {
    let mut thread = thread();
    open(&mut thread, STEAL).abandon();
    let other = open(&mut thread, WRITE);
    assert_eq!((thread.opening.len(), errno(&other)), (1, Some(libc::EAGAIN)));
}

#[test]
fn an_open_that_took_too_long_is_adopted_by_the_next_one() {
    let mut thread = thread();
    let slow = open(&mut thread, WRITE);
    thread.expire_opens(Time::ZERO + OPEN_MAX);
    assert_eq!(errno(&slow), Some(libc::ETIMEDOUT));
    let again = open(&mut thread, WRITE);
    assert_eq!((thread.opening.len(), errno(&again)), (1, None));
}

#[test]
fn a_stop_refuses_opens_and_waits_for_meta_for_a_bounded_time() {
    let mut thread = thread();
    assert!(!thread.has_stopped(Time::NEVER));
    let waits = open(&mut thread, WRITE);
    let stop = thread.mailbox.begin_stop();
    thread.take_commands(Time::ZERO);
    assert_eq!(errno(&waits), Some(libc::ESHUTDOWN));
    let end = Time::ZERO + PART_MAX;
    assert_eq!((thread.has_stopped(Time::ZERO), thread.next_deadline(), thread.has_stopped(end)), (false, end, true));
    thread.opening.clear();
    assert!(thread.has_stopped(Time::ZERO) && stop.wait_for(Duration::ZERO).is_none());
}

#[test]
fn an_open_that_took_too_long_does_not_keep_a_program_that_left() {
    let mut thread = thread();
    let given_up = open(&mut thread, WRITE);
    thread.mailbox.leave();
    thread.take_commands(Time::ZERO);
    assert!(thread.stopping.is_none(), "the program may still take the volume");
    thread.expire_opens(Time::ZERO + OPEN_MAX);
    thread.take_commands(Time::ZERO);
    assert!(thread.has_stopped(Time::ZERO + PART_MAX) && errno(&given_up) == Some(libc::ETIMEDOUT));
}
