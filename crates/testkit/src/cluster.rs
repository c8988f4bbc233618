//! A cluster of processes under a folder of its own: metas on redb or etcd, OSDs on files, NBD servers.

use crate::basalt::{Basalt, binary, binary_with_failpoints};
use crate::chaos::netns::Namespaces;
use crate::chaos::proxy::{End, Proxy, Sky};
use crate::clock;
use crate::devices::{Devices, LoopDevice};
use crate::procs::{Proc, Spec};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::rng::Rng;

/// First port. It is below those that the kernel gives to outgoing connections, so a killed daemon's port stays free.
const PORT_MIN: u16 = 12_000;
const PORT_BLOCK: u16 = 256;
const PORT_BLOCKS: u16 = 75;
/// Offsets of ports in the block of a cluster. Metas and OSDs have two ports each.
const METAS_AT: u16 = 10;
const OSDS_AT: u16 = 20;
const PROXIES_AT: u16 = 130;
const EXPORT_AT: u16 = 200;
/// Highest id of an OSD: ports and networks follow from it.
pub const OSD_ID_MAX: u32 = 50;
/// Longest time until a daemon listens.
pub const READY_MAX: Duration = Duration::from_secs(30);
pub const POOL: &str = "main";

/// Composition of a cluster.
#[derive(Clone, Debug)]
pub struct Shape {
    pub metas: u32,
    /// Keeps the records in a real etcd instead of redb.
    pub etcd: bool,
    pub osds: u32,
    pub device_bytes: u64,
    pub log_bytes: u64,
    pub replicas: u32,
    pub pgs: u32,
    /// OSDs flush nothing, as on devices with power-loss protection.
    pub assume_plp: bool,
    /// Proxies stand before all OSDs and the first meta; this seed draws what happens there.
    pub proxies: Option<u64>,
    /// Daemons are of the build that has failpoints.
    pub failpoints: bool,
    pub devices: Devices,
    /// Each OSD has its log on a file of its own, and the device is its home.
    pub log_apart: bool,
    /// Further flags of `osd run`.
    pub osd_flags: Vec<String>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            metas: 1,
            etcd: false,
            osds: 3,
            device_bytes: 4 << 30,
            log_bytes: 256 << 20,
            replicas: 3,
            pgs: 8,
            assume_plp: false,
            proxies: None,
            failpoints: false,
            devices: Devices::Fresh,
            log_apart: false,
            osd_flags: Vec::new(),
        }
    }
}

/// A running cluster. Dropping it kills its processes and removes its folder, unless it is kept.
pub struct Cluster {
    pub dir: PathBuf,
    pub shape: Shape,
    pub basalt: Basalt,
    pub etcd: Option<Proc>,
    pub metas: Vec<Proc>,
    /// OSDs by id; a replaced one is not among them any more.
    pub osds: BTreeMap<u32, Proc>,
    pub exports: Vec<Proc>,
    /// Rules of the proxies, when there are proxies.
    pub sky: Option<Sky>,
    pub proxies: Vec<Proxy>,
    ports: u16,
    /// Each OSD has a network of its own, when there are namespaces.
    pub net: Option<Namespaces>,
    /// Block devices of the OSDs; detached after the processes have ended.
    block_devices: Vec<LoopDevice>,
    pub keep: bool,
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns the first port of a block of free ports.
fn free_ports() -> Result<u16> {
    let mut rng = Rng::new(u64::from(std::process::id()));
    for _ in 0..PORT_BLOCKS {
        let first = PORT_MIN + PORT_BLOCK * rng.below(u64::from(PORT_BLOCKS)) as u16;
        if (first..first + PORT_BLOCK).all(|port| TcpListener::bind(local(port)).is_ok()) {
            return Ok(first);
        }
    }
    bail!("no free block of {PORT_BLOCK} ports from {PORT_MIN} on")
}

impl Cluster {
    /// Makes the folder, formats the devices, starts everything, creates the pool, and waits until all PGs serve.
    pub fn up(base: &Path, name: &str, shape: Shape) -> Result<Cluster> {
        Cluster::up_within(base, name, shape, None)
    }

    /// Does the same as [`Cluster::up`], with each OSD in its namespace.
    pub fn up_within(base: &Path, name: &str, shape: Shape, net: Option<Namespaces>) -> Result<Cluster> {
        let dir = base.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let ports = free_ports()?;
        let metas: Vec<SocketAddr> = (0..shape.metas as u16).map(|i| local(ports + METAS_AT + 2 * i)).collect();
        let basalt = Basalt::new(&metas)?;
        let mut cluster = Cluster {
            dir,
            shape,
            basalt,
            etcd: None,
            metas: Vec::new(),
            osds: BTreeMap::new(),
            exports: Vec::new(),
            sky: None,
            proxies: Vec::new(),
            ports,
            net,
            block_devices: Vec::new(),
            keep: false,
        };
        cluster.start_proxies()?;
        if cluster.shape.etcd {
            cluster.start_etcd()?;
        }
        for i in 0..cluster.shape.metas {
            let mut meta = Proc::new(cluster.meta_spec(i)?);
            meta.start()?;
            cluster.metas.push(meta);
            let addr = cluster.meta_addr(i);
            wait_listening(cluster.metas.last_mut().expect("just pushed"), addr)?;
        }
        clock::wait_until("a meta that leads", READY_MAX, || {
            Ok(cluster.basalt.output(&["status"])?.status.code() != Some(1))
        })?;
        for n in 1..=cluster.shape.osds {
            let made = cluster.format_osd(&["format"])?;
            ensure!(made == n, "osd.{made} was made instead of osd.{n}");
            let device = cluster.device(n).display().to_string();
            cluster.insert_osd(n, &device)?.start()?;
            let addr = cluster.osd_addr(n);
            wait_listening(cluster.osd(n), addr)?;
        }
        let (replicas, pgs) = (cluster.shape.replicas.to_string(), cluster.shape.pgs.to_string());
        let create = ["pool", "create", POOL, "--replicas", &replicas, "--pgs", &pgs, "--domain", "osd"];
        // An OSD that listens has not necessarily reached meta.
        let mut refused = String::new();
        clock::wait_until("OSDs for a pool", READY_MAX, || {
            let out = cluster.basalt.output(&create)?;
            refused = String::from_utf8_lossy(&out.stderr).into_owned();
            Ok(out.status.success())
        })
        .with_context(|| refused.clone())?;
        cluster.basalt.wait_healthy(READY_MAX)?;
        Ok(cluster)
    }

    /// Starts the proxy of meta, before meta is dialled; those of the OSDs come with the OSDs.
    fn start_proxies(&mut self) -> Result<()> {
        let Some(seed) = self.shape.proxies else { return Ok(()) };
        let sky = Sky::new(seed);
        self.proxies.push(Proxy::start(self.proxy_addr(0), self.meta_addr(0), End::Meta, sky.clone())?);
        self.sky = Some(sky);
        Ok(())
    }

    /// Returns the address at which others reach OSD `n`, or the first meta with 0, when there are proxies.
    pub fn proxy_addr(&self, n: u32) -> SocketAddr {
        let hub = self.net.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), Namespaces::hub);
        SocketAddr::new(hub, self.ports + PROXIES_AT + n as u16)
    }

    /// Returns an address of OSD `n`'s own.
    fn osd_at(&self, n: u32, port: u16) -> SocketAddr {
        let ip = self.net.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |net| net.osd(n));
        SocketAddr::new(ip, port)
    }

    fn daemon(&self) -> Result<PathBuf> {
        if self.shape.failpoints { binary_with_failpoints() } else { binary() }
    }

    /// Returns the addresses of the metas for daemons and clients.
    pub fn metas_for_daemons(&self) -> Vec<SocketAddr> {
        if self.sky.is_some() { vec![self.proxy_addr(0)] } else { self.basalt.metas().to_vec() }
    }

    fn start_etcd(&mut self) -> Result<()> {
        let (client, peer) = (self.ports, self.ports + 1);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let args = [
            ("--data-dir", self.dir.join("etcd").display().to_string()),
            ("--listen-client-urls", url(client)),
            ("--advertise-client-urls", url(client)),
            ("--listen-peer-urls", url(peer)),
            ("--initial-advertise-peer-urls", url(peer)),
            ("--initial-cluster", format!("default={}", url(peer))),
        ];
        let args = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let log = self.dir.join("etcd.log");
        let mut etcd = Proc::new(Spec { name: "etcd".into(), program: "etcd".into(), args, log });
        etcd.start().context("Debian's package etcd-server")?;
        wait_listening(&mut etcd, local(client))?;
        self.etcd = Some(etcd);
        Ok(())
    }

    fn meta_spec(&self, i: u32) -> Result<Spec> {
        let name = format!("meta.{i}");
        let mut args: Vec<String> = vec!["meta".into(), "--dir".into(), self.dir.join(&name).display().to_string()];
        args.extend(["--listen".to_owned(), self.meta_addr(i).to_string()]);
        args.extend(["--http".to_owned(), self.meta_http(i).to_string()]);
        if self.shape.etcd {
            args.extend(["--etcd".to_owned(), format!("http://127.0.0.1:{}", self.ports)]);
        }
        Ok(Spec { log: self.dir.join(format!("{name}.log")), program: self.daemon()?, args, name })
    }

    /// Formats a new device with `osd format` or `osd replace N`, and returns the id of its OSD.
    ///
    /// A second call goes on where a failed one has ended.
    ///
    /// # Errors
    /// The command fails.
    pub fn format_osd(&mut self, command: &[&str]) -> Result<u32> {
        let file = self.dir.join("next.device");
        let (size, log) = (self.shape.device_bytes.to_string(), self.shape.log_bytes.to_string());
        let block_device = self.shape.devices.prepare(&file, self.shape.device_bytes)?;
        let device = block_device.as_ref().map_or_else(|| file.display().to_string(), |device| device.path.clone());
        let mut flags = vec!["--device", &device, "--log-size", &log];
        let log_file = self.dir.join("next.log-device");
        let log_path = log_file.display().to_string();
        if self.shape.log_apart {
            // The superblocks take the rest.
            std::fs::File::create(&log_file)?.set_len(self.shape.log_bytes + (4 << 20))?;
            flags.extend(["--log-device", &log_path]);
        }
        if block_device.is_none() {
            flags.extend(["--size", &size]);
        }
        let made = self.basalt.json(&[&["osd"], command, &flags].concat())?;
        let id = u32::try_from(made["osd"].as_u64().context("the id of the OSD")?)?;
        if self.shape.log_apart {
            std::fs::rename(&log_file, self.log_device(id))?;
        }
        match block_device {
            None => std::fs::rename(&file, self.device(id))?,
            Some(block_device) => {
                std::fs::rename(&file, self.dir.join(format!("osd.{id}.file")))?;
                std::os::unix::fs::symlink(&device, self.device(id))?;
                self.block_devices.push(block_device);
            }
        }
        Ok(id)
    }

    /// Adds an OSD on a formatted device, with network and proxy if the cluster has them. The process is not started.
    pub fn insert_osd(&mut self, n: u32, device: &str) -> Result<&mut Proc> {
        ensure!(n <= OSD_ID_MAX, "osd.{n} has no ports");
        if let Some(net) = &mut self.net {
            net.add(n)?;
        }
        if let Some(sky) = &self.sky {
            self.proxies.push(Proxy::start(self.proxy_addr(n), self.osd_addr(n), End::Osd(n), sky.clone())?);
        }
        let osd = Proc::new(self.osd_spec(n, device)?);
        Ok(self.osds.entry(n).insert_entry(osd).into_mut())
    }

    /// Kills an OSD for good and removes its device.
    pub fn lose_osd(&mut self, n: u32) -> Result<()> {
        drop(self.osds.remove(&n));
        std::fs::remove_file(self.device(n)).with_context(|| format!("the device of osd.{n}"))
    }

    /// Returns the ids of the OSDs, ascending.
    pub fn ids(&self) -> Vec<u32> {
        self.osds.keys().copied().collect()
    }

    /// Returns how OSD `n` is run on a device.
    pub fn osd_spec(&self, n: u32, device: &str) -> Result<Spec> {
        let name = format!("osd.{n}");
        let host = format!("host{n}");
        let (listen, http) = (self.osd_addr(n).to_string(), self.osd_http(n).to_string());
        let args = ["osd", "run", "--device", device, "--listen", &listen, "--http", &http, "--host", &host];
        let mut args: Vec<String> = args.map(str::to_owned).to_vec();
        let metas: Vec<String> = self.metas_for_daemons().iter().map(SocketAddr::to_string).collect();
        args.push(format!("--meta={}", metas.join(",")));
        if self.shape.assume_plp {
            args.push("--assume-plp".to_owned());
        }
        if self.shape.log_apart {
            args.extend(["--log-device".to_owned(), self.log_device(n).display().to_string()]);
        }
        args.extend(self.shape.osd_flags.iter().cloned());
        if self.sky.is_some() {
            args.push(format!("--advertise={}", self.proxy_addr(n)));
        }
        let mut program = self.daemon()?;
        if let Some(net) = &self.net {
            let inside = std::mem::replace(&mut program, PathBuf::from("nsenter"));
            args.splice(0..0, net.enter(n).into_iter().chain([inside.display().to_string()]));
        }
        Ok(Spec { log: self.dir.join(format!("{name}.log")), program, args, name })
    }

    pub fn meta_addr(&self, i: u32) -> SocketAddr {
        local(self.ports + METAS_AT + 2 * i as u16)
    }

    pub fn meta_http(&self, i: u32) -> SocketAddr {
        local(self.ports + METAS_AT + 1 + 2 * i as u16)
    }

    pub fn osd_addr(&self, n: u32) -> SocketAddr {
        self.osd_at(n, self.ports + OSDS_AT + 2 * n as u16)
    }

    pub fn osd_http(&self, n: u32) -> SocketAddr {
        self.osd_at(n, self.ports + OSDS_AT + 1 + 2 * n as u16)
    }

    /// Returns the TCP address of an NBD server.
    pub fn export_addr(&self) -> SocketAddr {
        local(self.ports + EXPORT_AT)
    }

    fn log_device(&self, n: u32) -> PathBuf {
        self.dir.join(format!("osd.{n}.log-device"))
    }

    pub fn device(&self, n: u32) -> PathBuf {
        self.dir.join(format!("osd.{n}.device"))
    }

    /// Creates a volume.
    pub fn volume(&self, name: &str, bytes: u64) -> Result<String> {
        let full = format!("{POOL}/{name}");
        self.basalt.run(&["volume", "create", &full, &bytes.to_string()])?;
        Ok(full)
    }

    /// Exports a volume on a unix socket and returns the URI.
    pub fn export(&mut self, volume: &str) -> Result<String> {
        let socket = self.dir.join(format!("{}.sock", volume.replace('/', "-")));
        let _ = std::fs::remove_file(&socket);
        let mut export = self.spawn_export(volume, &["--socket".to_owned(), socket.display().to_string()])?;
        let name = export.spec.name.clone();
        clock::wait_until(&format!("{name} to listen"), READY_MAX, || {
            export.must_live()?;
            Ok(greets(&socket))
        })?;
        self.exports.push(export);
        Ok(format!("nbd+unix:///{volume}?socket={}", socket.display()))
    }

    /// Exports a volume on [`Cluster::export_addr`].
    pub fn export_tcp(&mut self, volume: &str) -> Result<()> {
        let mut export = self.spawn_export(volume, &["--listen".to_owned(), self.export_addr().to_string()])?;
        wait_listening(&mut export, self.export_addr())?;
        let log = export.spec.log.clone();
        clock::wait_until("the export", READY_MAX, || {
            export.must_live()?;
            Ok(std::fs::read_to_string(&log)?.contains("\"exported\""))
        })?;
        self.exports.push(export);
        Ok(())
    }

    fn spawn_export(&self, volume: &str, place: &[String]) -> Result<Proc> {
        let name = format!("nbd.{}", volume.replace('/', "-"));
        let mut args = vec!["nbd".to_owned(), volume.to_owned(), "--steal".to_owned(), self.basalt.meta_flag()];
        args.extend_from_slice(place);
        let mut export = Proc::new(Spec { log: self.dir.join(format!("{name}.log")), program: binary()?, args, name });
        export.start()?;
        Ok(export)
    }

    /// Returns the process of OSD `n`.
    ///
    /// # Panics
    /// The cluster has no such OSD.
    pub fn osd(&mut self, n: u32) -> &mut Proc {
        self.osds.get_mut(&n).unwrap_or_else(|| panic!("no osd.{n}"))
    }

    /// Checks that every process runs.
    pub fn must_live(&mut self) -> Result<()> {
        let all = self.metas.iter_mut().chain(self.osds.values_mut()).chain(&mut self.exports).chain(&mut self.etcd);
        for proc in all {
            proc.must_live()?;
        }
        Ok(())
    }

    /// Returns the lines of all logs that report a panic: none may be there.
    pub fn panics(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let logs = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "log"));
        let lines = logs.flat_map(|path| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let all: Vec<&str> = text.lines().collect();
            let at = all.iter().enumerate().filter(|(_, line)| line.contains("panicked at"));
            let found = at.map(|(i, line)| format!("{}: {line} {}", path.display(), all.get(i + 1).unwrap_or(&"")));
            found.collect::<Vec<_>>()
        });
        lines.collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for proc in self.exports.iter_mut().chain(self.osds.values_mut()).chain(&mut self.metas).chain(&mut self.etcd) {
            proc.kill();
        }
        if self.keep {
            eprintln!("kept for a look: {}", self.dir.display());
        } else if let Err(e) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("{} stays: {e}", self.dir.display());
        }
    }
}

/// Waits until a process accepts connections at `addr`.
pub fn wait_listening(proc: &mut Proc, addr: SocketAddr) -> Result<()> {
    let name = proc.spec.name.clone();
    clock::wait_until(&format!("{name} to listen at {addr}"), READY_MAX, || {
        proc.must_live()?;
        Ok(TcpStream::connect_timeout(&addr, Duration::from_millis(200)).is_ok())
    })?;
    Ok(())
}

/// Whether an NBD server greets at the socket: it does so once its volume is open.
pub fn greets(socket: &Path) -> bool {
    let greeting = || -> std::io::Result<[u8; 8]> {
        let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut word = [0; 8];
        std::io::Read::read_exact(&mut stream, &mut word)?;
        Ok(word)
    };
    greeting().is_ok_and(|word| &word == b"NBDMAGIC")
}
