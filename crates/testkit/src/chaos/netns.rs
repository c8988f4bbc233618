//! A network namespace for each OSD, with nftables in it: packets are really dropped, one way, under live TCP.
//!
//! Every namespace is connected to this one by a veth pair. The proxies listen at one address (the hub) that all of
//! them reach. Namespaces need root, iproute2, nftables and a kernel that supports both. Without these there are none,
//! and the report says so.
//!
//! Invariant: everything that was set up is taken down again, however the run ends. The next run removes the remains of
//! a killed one.

use crate::cluster::OSD_ID_MAX;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use types::rng::Rng;

const PREFIX: &str = "basalt-chaos-";
/// Subnets are 10.NET.x.0/24, x by the process id.
const NET: u8 = 231;
/// Number of addresses of each veth pair.
const STEP: u8 = 4;

/// The namespaces of a cluster's OSDs, by id.
pub struct Namespaces {
    net: u8,
    ids: BTreeSet<u32>,
    hub_is_up: bool,
}

/// The packets that an OSD loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Drops the packets that it sends; otherwise those that arrive.
    pub sent: bool,
    /// Drops only packets of connections that it has dialled to this port.
    pub port: Option<u16>,
    /// Percentage of dropped packets, drawn by the kernel; 100: all.
    pub percent: u8,
}

impl Loss {
    /// Draws a loss; `ports` are those that OSD `osd` dials.
    pub fn draw(rng: &mut Rng, ports: &[u16], percent: u8) -> Loss {
        let sent = rng.chance(1, 2);
        let port = rng.chance(1, 2).then(|| ports[rng.below(ports.len() as u64) as usize]);
        Loss { sent, port, percent }
    }

    /// Returns chain and rule, as `nft` takes them.
    fn rule(self) -> Vec<String> {
        let chain = if self.sent { "sent" } else { "came" };
        let mut words: Vec<String> = ["add", "rule", "inet", "chaos", chain].map(str::to_owned).to_vec();
        if let Some(port) = self.port {
            let side = if self.sent { "dport" } else { "sport" };
            words.extend(["tcp".to_owned(), side.to_owned(), port.to_string()]);
        }
        if self.percent < 100 {
            words.extend(["numgen", "random", "mod", "100", "<"].map(str::to_owned));
            words.push(self.percent.to_string());
        }
        words.push("drop".to_owned());
        words
    }
}

fn sh(words: &[&str]) -> Result<String> {
    let out = Command::new(words[0]).args(&words[1..]).output().with_context(|| words[0].to_owned())?;
    if !out.status.success() {
        bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Removes the namespaces of runs that were killed.
fn sweep() -> Result<()> {
    for line in sh(&["ip", "netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or("");
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !PathBuf::from("/proc").join(pid.to_string()).exists() {
            let _ = sh(&["ip", "netns", "del", name]);
            let _ = sh(&["ip", "address", "del", &format!("{}/32", hub(subnet(pid))), "dev", "lo"]);
        }
    }
    Ok(())
}

/// Returns the number of a run's subnet.
fn subnet(pid: u32) -> u8 {
    (pid % 256) as u8
}

/// Returns the name of an OSD's namespace.
fn name(n: u32) -> String {
    format!("{PREFIX}{}-{n}", std::process::id())
}

fn hub(net: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, NET, net, 254)
}

impl Namespaces {
    /// Makes a namespace for each OSD.
    ///
    /// # Errors
    /// The machine lacks something; then nothing is left behind.
    pub fn set_up(osds: u32) -> Result<Namespaces> {
        sweep()?;
        let mut this = Namespaces { net: subnet(std::process::id()), ids: BTreeSet::new(), hub_is_up: false };
        let hub = format!("{}/32", this.hub());
        // This fails beside a living run of the same subnet.
        sh(&["ip", "address", "add", &hub, "dev", "lo"])?;
        this.hub_is_up = true;
        (1..=osds).try_for_each(|n| this.add(n))?;
        Ok(this)
    }

    /// Makes a namespace for one more OSD, if it has none.
    ///
    /// # Errors
    /// The subnet has no room for it, or a command fails.
    pub fn add(&mut self, n: u32) -> Result<()> {
        ensure!(n <= OSD_ID_MAX, "osd.{n} does not fit the subnet");
        if self.ids.contains(&n) {
            return Ok(());
        }
        sh(&["ip", "netns", "add", &name(n)])?;
        self.ids.insert(n);
        self.connect(n).with_context(|| format!("the namespace of osd.{n}"))
    }

    /// Removes the namespace of an OSD that is gone, with this side's end of its veth pair.
    pub fn remove(&mut self, n: u32) {
        if self.ids.remove(&n) {
            let _ = sh(&["ip", "netns", "del", &name(n)]);
        }
    }

    /// Returns the address of the proxies.
    pub fn hub(&self) -> IpAddr {
        IpAddr::V4(hub(self.net))
    }

    /// Returns the address of an OSD.
    pub fn osd(&self, n: u32) -> IpAddr {
        IpAddr::V4(self.end(n, 2))
    }

    fn end(&self, n: u32, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, NET, self.net, STEP * (n as u8 - 1) + host)
    }

    /// Returns the words before an OSD's program that put it into its namespace.
    pub fn enter(&self, n: u32) -> Vec<String> {
        vec![format!("--net=/run/netns/{}", name(n)), "--".to_owned()]
    }

    fn connect(&self, n: u32) -> Result<()> {
        let name = &name(n);
        let pid = std::process::id();
        let (here, there) = (format!("b{pid}h{n}"), format!("b{pid}o{n}"));
        let (ours, theirs) = (format!("{}/30", self.end(n, 1)), format!("{}/30", self.end(n, 2)));
        let gateway = self.end(n, 1).to_string();
        sh(&["ip", "link", "add", &here, "type", "veth", "peer", "name", &there, "netns", name])?;
        sh(&["ip", "address", "add", &ours, "dev", &here])?;
        sh(&["ip", "link", "set", &here, "up"])?;
        let inside = |words: &[&str]| sh(&[&["ip", "netns", "exec", name][..], words].concat());
        inside(&["ip", "link", "set", "lo", "up"])?;
        inside(&["ip", "address", "add", &theirs, "dev", &there])?;
        inside(&["ip", "link", "set", &there, "up"])?;
        inside(&["ip", "route", "add", "default", "via", &gateway])?;
        inside(&["nft", "add", "table", "inet", "chaos"])?;
        for (chain, hook) in [("came", "input"), ("sent", "output")] {
            let hook = format!("{{ type filter hook {hook} priority 0 ; }}");
            inside(&["nft", "add", "chain", "inet", "chaos", chain, &hook])?;
        }
        // A kernel that cannot draw fails here, and not in the storm.
        self.lose(n, Loss { sent: true, port: Some(1), percent: 1 })?;
        self.heal(n)
    }

    fn nft(&self, n: u32, words: &[&str]) -> Result<String> {
        sh(&[&["ip", "netns", "exec", &name(n), "nft"][..], words].concat())
    }

    /// Drops packets of an OSD from now on.
    pub fn lose(&self, n: u32, loss: Loss) -> Result<()> {
        let rule = loss.rule();
        let words: Vec<&str> = rule.iter().map(String::as_str).collect();
        self.nft(n, &words).map(drop)
    }

    /// Lets all packets of an OSD pass again.
    pub fn heal(&self, n: u32) -> Result<()> {
        for chain in ["came", "sent"] {
            self.nft(n, &["flush", "chain", "inet", "chaos", chain])?;
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        while let Some(n) = self.ids.first() {
            self.remove(*n);
        }
        if self.hub_is_up {
            let _ = sh(&["ip", "address", "del", &format!("{}/32", self.hub()), "dev", "lo"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_one_way_and_of_one_dialled_port_when_it_says_so() {
        let all = Loss { sent: false, port: None, percent: 100 };
        assert_eq!(all.rule().join(" "), "add rule inet chaos came drop");
        let some = Loss { sent: true, port: Some(7), percent: 20 };
        assert_eq!(some.rule().join(" "), "add rule inet chaos sent tcp dport 7 numgen random mod 100 < 20 drop");
        let back = Loss { sent: false, port: Some(7), percent: 100 };
        assert_eq!(back.rule().join(" "), "add rule inet chaos came tcp sport 7 drop");
    }
}
