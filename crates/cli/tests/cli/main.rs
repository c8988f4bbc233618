//! The command line against a real cluster of processes: exit codes, JSON, errors.
//!
//! One cluster serves all steps, in order; it is removed when the test ends, however it ends.

mod back;
mod backups;
mod bytes;
mod completion;
mod deaths;
mod dev;
mod devices;
mod disks;
mod errors;
mod examples;
mod exports;
mod forced;
mod full;
mod golden;
mod metrics;
mod moves;
mod outages;
mod refusals;
mod rehearsals;
mod shared;
mod shell;
mod snapshots;
mod streams;
mod trace;
mod volumes;

use dev::Dev;
use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

#[test]
fn exit_codes_without_a_cluster_are_done_failed_and_usage() {
    let home = dev::home("exits");
    let run = |args: &[&str]| dev::run(home.path(), "none", args);
    assert_eq!(run(&["explain", "BSLT-2020"]).code, 0);
    assert_eq!(run(&["--help"]).code, 0);
    assert_eq!(run(&["--version"]).code, 0);
    assert_eq!(run(&["explain", "1"]).code, 2);
    assert_eq!(run(&["frobnicate"]).code, 2);
    assert_eq!(run(&["volume", "create", "main/x", "1GB"]).code, 2, "GB is ambiguous");
    let create = ["volume", "create", "main/x", "1GiB"];
    for stripes in
        [&["--stripe-unit", "64KiB"][..], &["--stripe-count", "3"], &["--stripe-count", "2", "--stripe-unit", "6k"]]
    {
        assert_eq!(run(&[&create[..], stripes].concat()).code, 2, "{stripes:?}");
    }
    assert_eq!(run(&["pool", "create", "x", "--pgs", "0"]).code, 2);
    assert_eq!(run(&["pg", "verify", "1-2"]).code, 2);
    assert_eq!(run(&["events", "--since", "1w"]).code, 2, "w is no unit of time");
    let none = run(&["status"]);
    assert_eq!(none.code, 1);
    none.says("BSLT-1002", "basalt dev up");
}

#[test]
fn wrong_meta_is_named_and_the_command_ends() {
    let home = dev::home("nometa");
    let run = |args: &[&str]| dev::run(home.path(), "none", &[&["--meta", "127.0.0.1:1"], args].concat());
    let nowhere = || dev::run(home.path(), "none", &["--meta", "nowhere.invalid:7300", "status"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ran = nowhere();
            ran.says("BSLT-2001", "a meta runs");
            assert!(ran.err.contains("cannot be resolved (BSLT-4006)"), "{ran:?}");
        });
        scope.spawn(|| run(&["status"]).says("BSLT-2001", "a meta runs"));
        scope.spawn(|| run(&["nbd", "main/demo", "--listen", "127.0.0.1:0"]).says("BSLT-2001", "basalt status"));
    });
}

/// Longer than a command needs, on a busy machine, to find that no metadata server is at an address.
const FOUND_MAX: Duration = Duration::from_secs(7);

#[test]
#[allow(clippy::disallowed_methods, reason = "the test measures how long commands take")]
fn a_port_without_a_meta_is_said_soon_with_what_was_found_there() {
    let home = dev::home("notmeta");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let speaking = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = |listener: &TcpListener| listener.local_addr().expect("bound").to_string();
    let ssh = addr(&speaking);
    std::thread::spawn(move || {
        for mut stream in speaking.incoming().flatten() {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
        }
    });
    let cases = [
        (addr(&silent), "accepts connections there and says nothing"),
        (ssh.clone(), "an SSH server answers there"),
        ("nowhere.invalid:7300".to_owned(), "nowhere.invalid:7300: the name cannot be resolved (BSLT-4006)"),
        (format!("{ssh},nowhere.invalid:7300"), "an SSH server answers there"),
    ];
    std::thread::scope(|scope| {
        for (meta, found) in cases {
            let path = home.path();
            scope.spawn(move || {
                let begun = Instant::now();
                let ran = dev::run(path, "none", &["--meta", &meta, "status"]);
                let took = begun.elapsed();
                ran.says("BSLT-2001", "a meta runs");
                assert!(ran.err.contains(found), "{meta}: {ran:?}");
                assert!(took < FOUND_MAX, "{meta}: {took:?}");
            });
        }
    });
    let list = dev::run(home.path(), "none", &["--meta", &format!("{ssh},127.0.0.1:1"), "meta", "ls"]);
    assert_eq!(list.code, 4, "none leads: {list:?}");
    assert!(list.out.contains("unreachable: an SSH server") && list.out.contains("refused"), "{list:?}");
}

#[test]
fn a_cluster_of_processes_keeps_the_laws_of_the_command_line() {
    let dev = Dev::up();
    golden::every_json_output_has_its_schema_and_its_fields(&dev);
    metrics::every_daemon_tells_its_version_and_top_sees_the_io(&dev);
    metrics::every_daemon_serves_metrics_that_promtool_accepts(&dev);
    errors::records(&dev);
    errors::devices(&dev);
    exports::host_names_do_where_addresses_do(&dev);
    devices::an_osd_is_never_erased_by_mistake(&dev);
    devices::a_copy_of_a_running_device_is_refused_and_an_older_one_comes_back_by_its_peers(&dev);
    exports::an_address_that_cannot_be_used_leaves_the_volume_alone(&dev);
    exports::a_device_that_cannot_be_served_leaves_the_volume_alone(&dev);
    exports::an_export_says_where_it_is_and_a_signal_frees_its_volume(&dev);
    exports::the_hold_of_a_killed_export_ends_soon(&dev);
    outages::exports_do_in_an_outage_what_they_were_told(&dev);
    rehearsals::rehearsed_faults_reach_the_clients_of_an_export_and_end(&dev);
    shared::several_exports_write_to_one_volume_and_one_is_fenced(&dev);
    volumes::volumes_are_renamed_labelled_resized_in_use_and_taken_back(&dev);
    snapshots::snapshots_are_made_in_use_named_protected_and_deleted(&dev);
    refusals::volumes_refuse_what_cannot_be_done(&dev);
    backups::backups_save_what_has_changed_and_come_back_checked(&dev);
    streams::streams_carry_volumes_and_their_changes(&dev);
    errors::second_opener_is_told_the_holder_and_may_steal_the_volume(&dev);
    errors::a_listing_is_shown_again_and_again(&dev);
    errors::up_again_changes_nothing(&dev);
    errors::bench_writes_over_no_data_unasked(&dev);
    errors::exports_come_back_and_share_no_socket(&dev);
    completion::live_names_are_offered(&dev);
    examples::examples_of_the_manual_run(&dev);
    errors::a_gentle_stop_hands_leaders_over(&dev);
    errors::degraded_has_an_exit_code_of_its_own(&dev);
    back::an_older_copy_of_the_metadata_store_is_refused_until_it_is_recovered(&dev);
}
