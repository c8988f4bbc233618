//! A volume that several exports write to, and the fence of one of them.

use crate::bytes::Nbd;
use crate::dev::Dev;
use crate::golden;

pub fn several_exports_write_to_one_volume_and_one_is_fenced(dev: &Dev) {
    let volume = "main/shared";
    let made = dev.json(&["volume", "create", volume, "64MiB", "--multi-writer"]);
    assert_eq!((&made["multi_writer"], made["writers"].as_array().map(Vec::len)), (&true.into(), Some(0)));
    let open = |name: &str| {
        let socket = dev.file(name);
        let export = dev.spawn(&["nbd", volume, "--socket", &socket]);
        let mut nbd = None;
        dev.wait("the export", || {
            nbd = Nbd::connect(&socket, volume).ok();
            nbd.is_some()
        });
        (export, nbd.expect("just connected"))
    };
    let (one, mut first) = open("shared1.sock");
    let (mut two, mut second) = open("shared2.sock");
    let mut seen = vec![0; 4096];
    // The second one takes the place for a hole; then the first one fills it.
    second.read(0, &mut seen).expect("read");
    assert_eq!(seen, [0; 4096]);
    first.write(0, &[1; 4096]).expect("written");
    second.read(0, &mut seen).expect("read");
    assert_eq!(seen, [1; 4096]);
    second.write(2048, &[2; 2048]).expect("written");
    first.read(0, &mut seen).expect("read");
    assert!(seen[..2048] == [1; 2048] && seen[2048..] == [2; 2048]);

    let shown = dev.json(&["volume", "info", volume]);
    let writers = shown["writers"].as_array().expect("a list");
    let session = |at: usize| writers[at]["session"].to_string();
    assert!(writers.len() == 2 && writers[0]["name"].to_string().contains(&format!("pid {}", one.id())), "{shown}");
    dev.run(&["volume", "set", volume, "--multi-writer=off"]).says("BSLT-2020", "");
    dev.run(&["volume", "set", volume, "--multi-writer=no"]).says_usage("BSLT-1001", "");
    let host = writers[0]["name"].as_str().and_then(|name| name.split(' ').nth(2)).expect("nbd on HOST pid N");
    crate::completion::offers(dev, &format!("volume fence {volume} "), host);
    dev.run(&["volume", "fence", volume, "elsewhere"]).says("BSLT-2067", "volume info");
    golden::matches("volume.fence", &dev.json(&["volume", "fence", volume, "--session", &session(1)]));
    second.write(0, &[3; 512]).expect_err("it is fenced");
    assert_eq!(two.wait().expect("it ends").code(), Some(5), "systemd does not start it again");
    let again = ["volume", "fence", volume, "--session", &session(1)];
    dev.json(&again);
    first.write(0, &[4; 512]).expect("it goes on");
    let info = dev.run(&["volume", "info", volume]);
    assert!(
        info.out.contains(&format!("session {}", session(0))) && !info.out.contains(&format!("session {}", session(1))),
        "{}",
        info.out
    );

    // It comes back, and each sees the other one as before.
    let (three, mut third) = open("shared3.sock");
    third.read(0, &mut seen).expect("read");
    assert!(seen[..512] == [4; 512] && seen[512..2048] == [1; 1536]);
    for mut export in [one, three] {
        assert!(std::process::Command::new("kill").arg(export.id().to_string()).status().expect("kill runs").success());
        export.wait().expect("it ends");
    }
    assert_eq!(dev.json(&["volume", "set", volume, "--multi-writer=off"])["multi_writer"], false);
    let events = dev.json(&["events", "--since", "1h", "--of", volume]);
    let fenced = |event: &&serde_json::Value| event["kind"] == "volume.fenced";
    let events = events["events"].as_array().expect("a list");
    assert!(events.iter().all(|event| event.to_string().contains(volume)), "{events:?}");
    let event = events.iter().find(fenced).expect("an event");
    assert!(event["by"].to_string().contains("basalt on "), "{event}");
    assert_eq!(dev.json(&["volume", "rm", volume, "--now"])["trashed"], false);
}
