//! Changes that a command line or the shrinker makes to a drawn run. The dice are thrown all the same, so everything
//! that is not changed stays as the seed decided.
//!
//! Invariant: [`Overrides::to_args`] gives the words that parse to the same value.

use crate::faults::Class;
use crate::options::Options;
use crate::workload::Kind;
use clap::Args;
use simenv::NetConfig;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Changes to a run.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// How the volumes are used, instead of a drawn way
    #[arg(long, value_parser = kind)]
    pub workload: Option<Kind>,
    /// Stop after this many simulated seconds, without the checks that need rest
    #[arg(long)]
    pub until: Option<f64>,
    /// Requests that each client means to ask
    #[arg(long)]
    pub operations: Option<u64>,
    /// Requests in flight
    #[arg(long)]
    pub depth: Option<usize>,
    /// Replicas of the pool (1 to 5); there are at least 3 OSDs
    #[arg(long)]
    pub replicas: Option<u32>,
    #[arg(long)]
    pub pgs: Option<u32>,
    /// Only these classes of the drawn faults strike (names as in the summary, `,` between them)
    #[arg(long, value_delimiter = ',', value_parser = class)]
    pub classes: Vec<Class>,
    /// Only these of the drawn faults strike: `none`, or numbers as in the trace (`1,4,7-9`)
    #[arg(long)]
    pub only_faults: Option<Numbers>,
    /// All clocks run true
    #[arg(long)]
    pub no_drift: bool,
    /// The network is neither slow nor lossy by itself
    #[arg(long)]
    pub plain_net: bool,
    /// No OSD is away until the logs have dropped the entries that it needs
    #[arg(long)]
    pub never_away: bool,
    /// All tunables of the product have their defaults
    #[arg(long)]
    pub default_tunables: bool,
}

impl Overrides {
    /// Applies the changes to drawn options.
    pub fn apply(&self, options: &mut Options) {
        if let Some(replicas) = self.replicas {
            options.replicas = replicas.clamp(1, types::limits::REPLICAS_MAX as u32);
            options.osds = options.replicas.max(3);
        }
        options.pgs = self.pgs.unwrap_or(options.pgs).max(1);
        options.workload = self.workload.unwrap_or(options.workload);
        options.shape.operations = self.operations.unwrap_or(options.shape.operations);
        options.shape.depth = self.depth.unwrap_or(options.shape.depth).max(1);
        options.drift &= !self.no_drift;
        if self.plain_net {
            options.net = NetConfig::default();
        }
    }

    /// Whether the `n`-th drawn fault, of this class, strikes.
    pub fn strikes(&self, n: u64, class: Class) -> bool {
        (self.classes.is_empty() || self.classes.contains(&class))
            && self.only_faults.as_ref().is_none_or(|only| only.0.contains(&n))
    }

    /// Returns the words of a command line.
    pub fn to_args(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        let mut add = |name: &str, value: Option<String>| words.extend(value.map(|v| format!("--{name} {v}")));
        add("workload", self.workload.map(|k| k.name().to_owned()));
        add("until", self.until.map(|t| t.to_string()));
        add("operations", self.operations.map(|n| n.to_string()));
        add("depth", self.depth.map(|n| n.to_string()));
        add("replicas", self.replicas.map(|n| n.to_string()));
        add("pgs", self.pgs.map(|n| n.to_string()));
        let classes: Vec<String> = self.classes.iter().map(|c| format!("{c:?}")).collect();
        add("classes", (!classes.is_empty()).then(|| classes.join(",")));
        add("only-faults", self.only_faults.as_ref().map(Numbers::to_string));
        for (name, on) in [
            ("no-drift", self.no_drift),
            ("plain-net", self.plain_net),
            ("never-away", self.never_away),
            ("default-tunables", self.default_tunables),
        ] {
            words.extend(on.then(|| format!("--{name}")));
        }
        words.join(" ")
    }
}

fn kind(name: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::by_name(name).ok_or_else(|| format!("no such workload; there are: {}", names()))
}

fn class(name: &str) -> Result<Class, String> {
    let all = || Class::every().map(|c| format!("{c:?}")).collect::<Vec<_>>().join(", ");
    let found = Class::every().find(|c| format!("{c:?}") == name);
    found.ok_or_else(|| format!("no such class; there are: {}", all()))
}

/// A set of numbers, written as `none` or `1,4,7-9`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub BTreeSet<u64>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Numbers, String> {
        let mut all = BTreeSet::new();
        for word in text.split(',').filter(|w| *w != "none") {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let number = |w: &str| w.parse::<u64>().map_err(|_| format!("`{w}` is no number"));
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last - first > 100_000 {
                return Err(format!("`{word}` is no range"));
            }
            all.extend(first..=last);
        }
        Ok(Numbers(all))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.peek() == Some(&(last + 1)) {
                last += 1;
                rest.next();
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        overrides: Overrides,
    }

    #[test]
    fn the_words_of_a_command_line_parse_to_what_they_were_made_of() {
        let overrides = Overrides {
            operations: Some(7),
            depth: Some(1),
            until: Some(2.5),
            replicas: Some(3),
            classes: vec![Class::Crash, Class::Steal],
            only_faults: Some("1,4,7-9".parse().expect("numbers")),
            no_drift: true,
            default_tunables: true,
            ..Overrides::default()
        };
        let words = overrides.to_args();
        let line = Line::parse_from(std::iter::once("sim").chain(words.split_whitespace()));
        assert_eq!(line.overrides, overrides, "{words}");
        assert_eq!(Overrides::default().to_args(), "");
    }

    #[test]
    fn numbers_read_back_as_written_and_nonsense_is_refused() {
        for text in ["none", "1", "1,3-5,9"] {
            assert_eq!(text.parse::<Numbers>().expect(text).to_string(), text);
        }
        for text in ["x", "3-1", "1-", "0-99999999999"] {
            assert!(text.parse::<Numbers>().is_err(), "{text}");
        }
    }
}
