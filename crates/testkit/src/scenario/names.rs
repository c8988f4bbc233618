//! Every address is a name: OSDs, an NBD server and commands get `localhost` for their numbers; OSDs listen on all
//! interfaces.

use super::Settings;
use crate::basalt::binary;
use crate::clock;
use crate::cluster::{Cluster, POOL, READY_MAX, Shape, greets};
use crate::procs::{Proc, Spec};
use crate::report::Outcome;
use anyhow::{Context, Result};
use std::process::Command;

const VOLUME: u64 = 64 << 20;

fn named(arg: &str) -> String {
    arg.replace("127.0.0.1:", "localhost:")
}

/// Returns the arguments of an OSD with names in them.
fn arguments(args: &[String], port: u16) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for arg in args {
        let listens = out.last().is_some_and(|last| last == "--listen");
        out.push(if listens { format!("0.0.0.0:{port}") } else { named(arg) });
    }
    out.push(format!("--advertise=localhost:{port}"));
    out
}

pub fn run(settings: &Settings, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::up(&settings.base, "names", Shape { device_bytes: 1 << 30, ..Shape::default() })?;
    for n in 1..=3 {
        let port = cluster.osd_addr(n).port();
        let osd = cluster.osd(n);
        osd.signal("TERM")?;
        osd.finish(READY_MAX)?;
        osd.spec.args = arguments(&osd.spec.args, port);
        osd.start()?;
        cluster.basalt.wait_healthy(READY_MAX)?;
    }
    let osds = cluster.basalt.json(&["osd", "ls"])?;
    for osd in osds["osds"].as_array().context("osds")? {
        let addr = osd["addr"].as_str().unwrap_or("");
        outcome.need(addr.starts_with("127.0.0.1:"), || format!("{} is registered at {addr}", osd["osd"]));
    }
    let volume = format!("{POOL}/named");
    cluster.basalt.run(&["volume", "create", &volume, &VOLUME.to_string()])?;
    let socket = cluster.dir.join("named.sock");
    let meta = named(&cluster.basalt.meta_flag());
    let args = ["nbd", &volume, &meta, "--socket", &socket.display().to_string()].map(str::to_owned).to_vec();
    let (name, log) = ("nbd.named".to_owned(), cluster.dir.join("nbd.named.log"));
    let mut export = Proc::new(Spec { name, program: binary()?, args, log });
    export.start()?;
    clock::wait_until("the export", READY_MAX, || {
        export.must_live()?;
        Ok(greets(&socket))
    })?;
    let uri = format!("nbd+unix:///{volume}?socket={}", socket.display());
    let io = ["-f", "raw", "-c", "write -P 7 0 4M", "-c", "read -P 7 0 4M", &uri];
    let ran = Command::new("qemu-io").args(io).output().context("qemu-io")?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    outcome.need(ran.status.success() && !text.contains("failed"), || format!("qemu-io: {text}"));
    export.signal("INT")?;
    let ended = export.finish(READY_MAX)?;
    outcome.need(ended.success(), || format!("the export ended with {ended}"));
    let info = cluster.basalt.json(&["volume", "info", &volume])?;
    outcome.need(info["holder"].is_null(), || format!("SIGINT left a holder: {}", info["holder"]));
    outcome.figure("three OSDs on 0.0.0.0 that advertise localhost, metas by name: written, read, released".to_owned());
    super::close(&mut cluster, settings, outcome);
    Ok(())
}
