//! Effects of the shell on a command: environment and redirected output. No cluster is needed.

use crate::dev::{home, run, run_env, run_into, spawn_logging_to};
use crate::golden::ready_line;
use std::fs::File;
use std::process::Command;

#[test]
fn an_output_that_takes_nothing_fails_and_a_closed_pipe_is_quiet() {
    let home = home("output");
    let commands: &[&[&str]] = &[
        &["explain", "metrics"],
        &["explain", "3003"],
        &["explain", "3003", "--json"],
        &["completion", "bash"],
        &["completion", "zsh"],
        &["--help"],
        &["volume", "create", "--help"],
        &["version"],
    ];
    for args in commands {
        let full = File::options().write(true).open("/dev/full").expect("a full device");
        run_into(home.path(), full, args).says("BSLT-1012", "df -h");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ran = run_into(home.path(), writer, args);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}: {ran:?}");
    }
    // An error under --json goes to standard output, too.
    let full = File::options().write(true).open("/dev/full").expect("a full device");
    assert_eq!(run_into(home.path(), full, &["status", "--json"]).code, 1);
}

#[test]
fn a_daemon_whose_log_cannot_be_written_goes_on() {
    let home = home("fulllog");
    let full = File::options().write(true).open("/dev/full").expect("a full device");
    let dir = home.path().join("meta").to_string_lossy().into_owned();
    let mut meta = spawn_logging_to(home.path(), full, &["meta", "--dir", &dir, "--listen", "127.0.0.1:0", "--json"]);
    let listen = ready_line("meta.run", &mut meta)["listen"].as_str().expect("an address").to_owned();
    let status = run(home.path(), "none", &["--meta", &listen, "status"]);
    let sent = Command::new("kill").args(["-TERM", &meta.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(meta.wait().expect("it ends").code(), Some(0), "it writes log lines before that");
    assert_eq!(status.code, 0, "{status:?}");
}

#[test]
fn an_empty_variable_is_unset_and_a_bad_one_fails_what_needs_it() {
    let home = home("vars");
    let run = |vars: &[(&str, &str)], args: &[&str]| run_env(home.path(), vars, args);
    for empty in ["", " "] {
        let vars = [("BASALT_META", empty), ("BASALT_CLUSTER", empty), ("BASALT_LOG", empty)];
        run(&vars, &["status"]).says("BSLT-1002", "dev up");
    }
    for args in [&["explain", "2020"][..], &["completion", "bash"], &["--version"], &["dev", "status"]] {
        let ran = run(&[("BASALT_META", "nonsense")], args);
        assert!(!ran.err.contains("BASALT_META"), "{ran:?}");
    }
    let ran = run(&[("BASALT_META", "127.0.0.1:7300,nonsense")], &["status"]);
    ran.says_usage("BSLT-1001", "BASALT_META");
    assert!(ran.err.contains("BASALT_META holds `nonsense`"), "{ran:?}");
    let ran = run(&[("BASALT_CLUSTER", "other")], &["status"]);
    ran.says("BSLT-1002", "dev up");
    assert!(ran.err.contains("named other"), "{ran:?}");
    run(&[("BASALT_CLUSTER", "../x")], &["status"]).says_usage("BSLT-1001", "BASALT_CLUSTER");
    run(&[("BASALT_LOG", "bogus")], &["status"]).says_usage("BSLT-1001", "BASALT_LOG=info");
    assert_eq!(run(&[("BASALT_LOG", "bogus")], &["explain", "1001"]).code, 0);
    let ran = run_env(home.path(), &[("XDG_STATE_HOME", ""), ("HOME", "")], &["status"]);
    ran.says("BSLT-1008", "HOME");
}

#[test]
fn a_wrong_command_line_has_a_code_and_proposes_no_other_verb() {
    let home = home("usage");
    let run = |args: &[&str]| run(home.path(), "none", args);
    for args in [&["osd", "forma", "1"][..], &["volume", "renam", "main/a"], &["pool", "delet", "main"]] {
        let ran = run(args);
        ran.says_usage("BSLT-1001", "--help");
        assert!(!ran.err.contains("similar"), "{ran:?}");
    }
    for args in [
        &["osd", "reweight", "1"][..],
        &["osd", "crush", "move", "/dev/x"],
        &["volume", "export", "main/a"],
        &["volume", "snapshot", "--help"],
    ] {
        run(args).says_usage("BSLT-1011", "What is missing today");
    }
    let ran = run(&["osd", "reweight", "1", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!((ran.code, error["code"].as_str()), (2, Some("BSLT-1011")), "{ran:?}");
    let ran = run(&["volume", "create", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!((ran.code, error["schema"].as_str()), (2, Some("basalt.error/1")), "{ran:?}");
    for args in
        [&["help"][..], &["help", "volume"], &["version"], &["vol", "delete", "--help"], &["osd", "list", "--help"]]
    {
        assert_eq!(run(args).code, 0, "{args:?}");
    }
}
