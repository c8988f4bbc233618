//! Devices that must not be formatted, or not be run: each refusal has its code and a reason. Empty devices are taken without
//! `--force`.

use crate::cluster::Cluster;
use crate::report::Outcome;
use anyhow::{Context, Result};
use engine::FormatParams;
use layout::superblock::{FORMAT_VERSION, Superblock};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use types::{ClusterId, OsdId, OsdUuid};

const DEVICE: u64 = 1 << 30;
const LOG: u64 = 64 << 20;
/// The OSD on devices that another cluster has formatted.
const STRANGER: OsdUuid = OsdUuid([7; 16]);

/// Makes one refusal after another, and lists the refused devices with their codes.
struct Desk<'a> {
    cluster: &'a Cluster,
    outcome: &'a mut Outcome,
    refused: Vec<String>,
}

impl Desk<'_> {
    fn refuse(&mut self, what: &str, [code, why]: [&str; 2], args: &[&str]) -> Result<()> {
        let said = self.cluster.basalt.refusal(args).with_context(|| what.to_owned())?;
        // A command prints its error, and a daemon logs it.
        let named = said.contains(&format!("basalt: {code}: ")) || said.contains(&format!("\"code\":\"{code}\""));
        let told = named && said.contains(why);
        self.outcome.need(told, || format!("{what}: expected {code} and `{why}`, was told {said}"));
        self.refused.push(format!("{what} ({code})"));
        Ok(())
    }

    fn format<'b>(&self, path: &'b str, more: &[&'b str]) -> Vec<&'b str> {
        [&["osd", "format", "--log-size", "64MiB", "--device", path][..], more].concat()
    }

    fn file(&self, name: &str, parts: &[(u64, &[u8])]) -> Result<String> {
        device(&self.cluster.dir.join(name), parts)
    }

    /// Makes a device that another cluster has formatted; `change` may make its superblocks odd.
    fn stranger(&self, name: &str, change: impl Fn(&mut Superblock)) -> Result<String> {
        let (cluster, osd, uuid) = (ClusterId([0x5a; 16]), OsdId(1), STRANGER);
        let (log_bytes, segment_bytes) = (LOG, 0);
        let params = FormatParams {
            cluster,
            osd,
            uuid,
            log_bytes,
            segment_bytes,
            force: false,
            prezero: false,
            unix_s: 0,
            part: engine::DevicePart::Whole,
        };
        let (mut superblock, mut writes) = engine::format_image(DEVICE, &params, engine::SaltKey::new([1; 16]))?;
        change(&mut superblock);
        for (_, page) in writes.iter_mut().skip(1) {
            *page = types::IoBuf::copy_of(&superblock.encode());
        }
        let parts: Vec<(u64, &[u8])> = writes.iter().map(|(offset, page)| (*offset, &page[..])).collect();
        self.file(name, &parts)
    }
}

/// Makes a sparse file with some bytes in it.
fn device(path: &Path, parts: &[(u64, &[u8])]) -> Result<String> {
    let file = std::fs::File::options().create(true).truncate(true).write(true).open(path)?;
    file.set_len(DEVICE)?;
    for (offset, bytes) in parts {
        file.write_all_at(bytes, *offset)?;
    }
    Ok(path.display().to_string())
}

pub fn refused(cluster: &mut Cluster, outcome: &mut Outcome) -> Result<()> {
    let osds = |cluster: &Cluster| -> Result<usize> {
        Ok(cluster.basalt.json(&["osd", "ls"])?["osds"].as_array().context("osds")?.len())
    };
    let before = osds(cluster)?;
    let mut desk = Desk { cluster, outcome, refused: Vec::new() };
    format(&mut desk)?;
    let among = osds(desk.cluster)?;
    desk.outcome.need(among == before, || format!("{} OSDs came of devices that were refused", among - before));
    run(&mut desk)?;
    let taken = taken(&mut desk)?;
    let refused = std::mem::take(&mut desk.refused);
    outcome.figure(format!("refused: {}", refused.join(", ")));
    outcome.figure(format!("taken: {}", taken.join(", ")));
    Ok(())
}

fn format(desk: &mut Desk) -> Result<()> {
    let file = desk.file("first.device", &[(4096, b"somebody's data")])?;
    desk.refuse("foreign data in the first MiB", ["BSLT-3003", "its first MiB"], &desk.format(&file, &[]))?;
    let file = desk.file("last.device", &[(DEVICE - 512, b"somebody's data")])?;
    desk.refuse("foreign data in the last MiB", ["BSLT-3003", "its last MiB"], &desk.format(&file, &[]))?;
    let file = desk.stranger("stranger.device", |_| {})?;
    let whose = ["BSLT-3005", "another cluster, 5a5a5a5a-"];
    desk.refuse("another cluster's device", whose, &desk.format(&file, &[]))?;
    let small = desk.cluster.dir.join("small.device");
    std::fs::write(&small, [])?;
    let args = [small.display().to_string()];
    std::fs::File::options().write(true).open(&small)?.set_len(20 << 20)?;
    desk.refuse("a small device", ["BSLT-3006", "20 MiB do not hold a log of 64 MiB"], &desk.format(&args[0], &[]))?;
    let shm = format!("/dev/shm/basalt-testkit-{}", std::process::id());
    let told = desk.refuse("a device in memory", ["BSLT-3001", "O_DIRECT"], &desk.format(&shm, &["--size", "1GiB"]));
    std::fs::remove_file(&shm).ok();
    told
}

fn run(desk: &mut Desk) -> Result<()> {
    let spare = desk.cluster.export_addr();
    let port = |n: u16| SocketAddr::new(spare.ip(), spare.port() + n).to_string();
    let (listen, http) = (port(1), port(2));
    let run = |device| vec!["osd", "run", "--listen", &listen, "--http", &http, "--device", device];
    let used = desk.cluster.device(1).display().to_string();
    desk.refuse("a device in use", ["BSLT-3002", "another process"], &run(&used))?;
    let plain = desk.file("plain.device", &[])?;
    desk.refuse("a device that was never formatted", ["BSLT-3004", "no Basalt superblock"], &run(&plain))?;
    let stranger = desk.stranger("served.device", |_| {})?;
    desk.refuse("serving another cluster's device", ["BSLT-2026", "belongs to cluster 5a5a5a5a-"], &run(&stranger))?;
    let newer = desk.stranger("newer.device", |superblock| superblock.format_version = FORMAT_VERSION + 1)?;
    desk.refuse("a newer format", ["BSLT-3007", "this build reads up to"], &run(&newer))?;
    let older = desk.stranger("older.device", |superblock| superblock.format_version = FORMAT_VERSION - 1)?;
    desk.refuse("an older format", ["BSLT-3008", "an older build"], &run(&older))?;
    let featured = desk.stranger("featured.device", |superblock| superblock.incompat = 1 << 60)?;
    desk.refuse("an unknown feature", ["BSLT-3007", "does not know"], &run(&featured))?;
    let missing = desk.cluster.dir.join("no.device").display().to_string();
    desk.refuse("a device that is not there", ["BSLT-1006", "No such file"], &run(&missing))
}

/// Formats the devices that the rule permits: zeros at both ends, foreign data by force, an OSD by force and its uuid.
fn taken(desk: &mut Desk) -> Result<Vec<String>> {
    let middle = desk.file("middle.device", &[(DEVICE / 2, b"somebody's data, out of sight")])?;
    let stranger = desk.stranger("forced.device", |_| {})?;
    let foreign = desk.file("foreign.device", &[(0, b"somebody's data")])?;
    let uuid = STRANGER.to_string();
    let mut taken = Vec::new();
    for (what, path, more) in [
        ("zeros in the first and last MiB", &middle, &[][..]),
        ("another cluster's OSD, by --force and its uuid", &stranger, &["--force", "--erase-osd", &uuid][..]),
        ("foreign data, by --force", &foreign, &["--force"][..]),
    ] {
        desk.cluster.basalt.run(&desk.format(path, more)).with_context(|| what.to_owned())?;
        taken.push(what.to_owned());
    }
    desk.refuse("an OSD of this cluster", ["BSLT-3003", "holds osd."], &desk.format(&middle, &["--force"]))?;
    Ok(taken)
}
