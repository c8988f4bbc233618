//! `basalt volume fault`: rehearsed faults of volumes.

use crate::admin::Admin;
use crate::completion;
use crate::duration::{moment, now_ms, show};
use crate::output::{json, table};
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use control::admin::{FaultAdd, FaultView, VolumeView};
use serde_json::json;
use std::time::Duration;
use types::faults::{Fault as Rehearsed, FaultEffect};

/// Commands about rehearsed faults.
#[derive(Subcommand, Debug)]
pub enum Fault {
    /// Rehearse storage trouble on a volume for a limited time: late requests, errors, or a pause
    #[command(after_help = "Examples:\n  basalt volume fault add main/vm1 --latency 500ms --pct 10 --for 15m\n  \
        basalt volume fault add main/vm1 --error --pct 1 --writes --for 1h\n  \
        basalt volume fault add main/vm1 --pause --for 30s")]
    Add {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        #[command(flatten)]
        effect: Effect,
        /// Share of the requests in percent, 1 to 100; not for a pause
        #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "pause", value_parser = clap::value_parser!(u8).range(1..=100))]
        pct: u8,
        /// The fault ends by itself after this time: 1s to 24h
        #[arg(long = "for", value_name = "TIME", value_parser = crate::duration::parse)]
        time: Duration,
        /// Only reads
        #[arg(long, conflicts_with = "writes")]
        reads: bool,
        /// Only writes, trims and write-zeroes
        #[arg(long)]
        writes: bool,
    },
    /// List the faults of all volumes, or of one
    #[command(visible_alias = "list")]
    Ls {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: Option<String>,
    },
    /// End a fault now
    #[command(after_help = "Examples:\n  basalt volume fault rm main/vm1 3\n  basalt volume fault rm main/vm1 --all")]
    Rm {
        /// POOL/VOLUME
        #[arg(add = completion::volumes())]
        name: String,
        /// Number of the fault, as `volume fault ls` shows it
        #[arg(required_unless_present = "all", add = completion::faults())]
        id: Option<u32>,
        /// All faults of the volume
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
}

/// Effect of the fault.
#[derive(Args, Debug, Clone, Copy)]
#[group(required = true, multiple = false)]
pub struct Effect {
    /// Requests begin so much later: 1ms to 60s
    #[arg(long, value_name = "TIME", value_parser = latency)]
    latency: Option<u32>,
    /// Requests fail with EIO; nothing is sent or done
    #[arg(long)]
    error: bool,
    /// All requests wait until the fault ends
    #[arg(long)]
    pause: bool,
}

impl Effect {
    fn value(self) -> FaultEffect {
        match self.latency {
            Some(ms) => FaultEffect::Latency(ms),
            None if self.error => FaultEffect::Error,
            None => FaultEffect::Pause,
        }
    }
}

/// Parses `500ms`, `2s`, `1m` to milliseconds.
fn latency(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a latency; write 500ms or 2s, at most 60s");
    let ms = match text.strip_suffix("ms") {
        Some(number) => number.parse::<u64>().map_err(|_| wrong())?,
        None => u64::try_from(crate::duration::parse(text).map_err(|_| wrong())?.as_millis()).map_err(|_| wrong())?,
    };
    u32::try_from(ms).ok().filter(|ms| (1..=types::limits::FAULT_LATENCY_MS_MAX).contains(ms)).ok_or_else(wrong)
}

/// Runs `basalt volume fault ...`.
pub fn run(admin: &Admin, command: &Fault, as_json: bool) -> Result<()> {
    match command {
        Fault::Add { name, effect, pct, time, reads, writes } => {
            let both = !reads && !writes;
            let fault =
                Rehearsed { effect: effect.value(), percent: *pct, reads: both || *reads, writes: both || *writes };
            let for_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let volume = admin.add_fault(name, FaultAdd { fault, for_ms })?;
            let added = volume.faults.last().ok_or_else(|| anyhow!("the metadata server named no fault"))?;
            if as_json {
                return json("volume.fault.add", json!({ "volume": volume.name, "fault": added }));
            }
            out!("volume {}: fault {}, {}, until {}", volume.name, added.id, words(added), moment(added.until_ms));
            let client = volume.holder.map_or_else(String::new, |holder| format!(" ({})", holder.name));
            out!("its client{client} learns it within about 2 s, read-only clients when they open it");
            Ok(())
        }
        Fault::Ls { name } => {
            let volumes = match name {
                Some(name) => vec![admin.volume_info(name)?],
                None => admin.volumes(None)?,
            };
            list(&volumes, as_json)
        }
        Fault::Rm { name, id, all: _ } => {
            let before = admin.volume_info(name)?;
            let volume = admin.remove_fault(name, *id)?;
            let stays = |fault: &&FaultView| volume.faults.iter().any(|other| other.id == fault.id);
            let gone: Vec<u32> = before.faults.iter().filter(|fault| !stays(fault)).map(|fault| fault.id).collect();
            if as_json {
                return json("volume.fault.rm", json!({ "done": true, "volume": volume.name, "removed": gone }));
            }
            let numbers: Vec<String> = gone.iter().map(u32::to_string).collect();
            match numbers.is_empty() {
                true => out!("volume {} has no fault", volume.name),
                false => out!("volume {}: removed fault {}", volume.name, numbers.join(", ")),
            }
            Ok(())
        }
    }
}

fn list(volumes: &[VolumeView], as_json: bool) -> Result<()> {
    let all = volumes.iter().flat_map(|volume| volume.faults.iter().map(move |fault| (&volume.name, fault)));
    if as_json {
        let faults: Vec<_> = all.map(|(volume, fault)| json!({ "volume": volume, "fault": fault })).collect();
        return json("volume.fault.ls", json!({ "faults": faults }));
    }
    let now = now_ms();
    let row = |(volume, fault): (&String, &FaultView)| {
        let by = if fault.by.is_empty() { "-" } else { &fault.by };
        vec![volume.clone(), fault.id.to_string(), words(fault), left(fault, now), by.to_owned()]
    };
    table(&["volume", "fault", "what", "ends in", "asked by"], all.map(row));
    Ok(())
}

fn left(fault: &FaultView, now_ms: u64) -> String {
    show(Duration::from_millis(fault.until_ms.saturating_sub(now_ms)))
}

/// Returns a fault in words.
fn words(fault: &FaultView) -> String {
    let effect = match (fault.kind.as_str(), fault.latency_ms) {
        ("latency", Some(ms)) => FaultEffect::Latency(ms),
        ("pause", _) => FaultEffect::Pause,
        _ => FaultEffect::Error,
    };
    let percent = u8::try_from(fault.percent).unwrap_or(100);
    control::plan::fault_words(&Rehearsed { effect, percent, reads: fault.reads, writes: fault.writes })
}

/// Prints the faults on the page of a volume.
pub fn show_all(volume: &VolumeView) {
    let now = now_ms();
    for fault in &volume.faults {
        out!("fault      {}: {}, ends in {}", fault.id, words(fault), left(fault, now));
    }
}

#[cfg(test)]
mod tests {
    use super::latency;

    #[test]
    fn latency_is_a_time_of_at_most_a_minute() {
        for (text, ms) in [("1ms", 1), ("500ms", 500), ("2s", 2_000), ("1m", 60_000), ("60000ms", 60_000)] {
            assert_eq!(latency(text), Ok(ms), "{text}");
        }
        for wrong in ["", "0ms", "0s", "500", "61s", "60001ms", "-1ms", "1h", "ms", "99999999999ms"] {
            assert!(latency(wrong).is_err(), "{wrong}");
        }
    }
}
