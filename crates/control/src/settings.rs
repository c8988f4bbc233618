//! Settings of the cluster that an administrator changes at run time (`basalt config`).
//!
//! A setting that was never set has its default. The metadata servers read them; no restart is needed.

use crate::ControlConfig;
use crate::refusal::refuse;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use types::codes;
use types::control::Refusal;

/// Values that were set, as text. A name that this program does not know is kept: a later version wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRecord {
    pub values: BTreeMap<String, String>,
    /// `noout` ended then, in milliseconds of the Unix clock: an OSD goes out for the time that it is down since.
    #[serde(default)]
    pub away_from_ms: u64,
}

/// Values that a setting may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A time in seconds, from one to the other.
    Time(u64, u64),
    Count(u64, u64),
    /// `on` or `off`.
    Flag,
}

/// A setting that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    pub kind: Kind,
    pub what: &'static str,
}

/// The name of the flag that keeps OSDs in.
pub const NOOUT: &str = "noout";
/// The name of the flag that keeps replicas from being balanced.
pub const NOREBALANCE: &str = "norebalance";
const OSD_OUT_AFTER: &str = "osd_out_after";
const OSD_BACKFILLS: &str = "osd_backfills";
const TRASH_RETENTION: &str = "trash_retention";

const fn setting(name: &'static str, kind: Kind, what: &'static str) -> Setting {
    Setting { name, kind, what }
}

/// Every setting, in the order of its name.
pub const SETTINGS: &[Setting] = &[
    setting(NOOUT, Kind::Flag, "an OSD that is down stays in, however long"),
    setting(NOREBALANCE, Kind::Flag, "no replica moves only to balance the load of the OSDs"),
    setting(OSD_BACKFILLS, Kind::Count(1, 64), "most replicas that move to one OSD at once"),
    setting(
        OSD_OUT_AFTER,
        Kind::Time(10, 30 * 86_400),
        "time after which an OSD that is down is out, and its replicas move to other OSDs",
    ),
    setting(
        TRASH_RETENTION,
        Kind::Time(0, 3650 * 86_400),
        "time that the data of a removed volume is kept in the trash; 0s: it is deleted at once",
    ),
];

/// A setting and its value, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingView {
    pub name: String,
    pub value: String,
    pub default: String,
    /// Whether an administrator has set it.
    pub is_set: bool,
    pub what: String,
}

/// Prints a time in the largest unit that shows it as a whole number: `90s`, `10m`, `2h`, `3d`.
pub(crate) fn time_words(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let whole = units.into_iter().find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

/// Parses `90s`, `10m`, `2h`, `3d`.
pub fn parse_seconds(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

impl Kind {
    /// Returns the value in its usual spelling, or what is wrong with it.
    fn check(self, text: &str) -> Result<String, String> {
        match self {
            Kind::Flag if matches!(text, "on" | "off") => Ok(text.to_owned()),
            Kind::Flag => Err("write on or off".to_owned()),
            Kind::Count(least, most) => match text.parse::<u64>() {
                Ok(count) if (least..=most).contains(&count) => Ok(count.to_string()),
                _ => Err(format!("write a number from {least} to {most}")),
            },
            Kind::Time(least, most) => match parse_seconds(text) {
                Some(time) if (least..=most).contains(&time) => Ok(time_words(Duration::from_secs(time))),
                _ => {
                    let [least, most] = [least, most].map(|s| time_words(Duration::from_secs(s)));
                    Err(format!("write a time from {least} to {most}, as 90s, 10m, 2h or 3d"))
                }
            },
        }
    }
}

/// Returns the setting of a name.
///
/// # Errors
/// BSLT-2046.
pub fn find(name: &str) -> Result<&'static Setting, Refusal> {
    let found = SETTINGS.iter().find(|setting| setting.name == name);
    found.ok_or_else(|| {
        let shown: String = name.chars().take(40).collect();
        refuse(codes::BAD_SETTING, format!("there is no setting {shown:?}"))
    })
}

impl ConfigRecord {
    /// Returns the record with a setting changed; `None` gives it its default.
    ///
    /// # Errors
    /// BSLT-2046 for an unknown setting and for a value that it cannot have.
    pub fn with(&self, name: &str, value: Option<&str>) -> Result<ConfigRecord, Refusal> {
        let setting = find(name)?;
        let mut new = self.clone();
        match value {
            None => drop(new.values.remove(name)),
            Some(text) => {
                let shown: String = text.chars().take(40).collect();
                let wrong = |why| refuse(codes::BAD_SETTING, format!("{name} cannot be {shown:?}: {why}"));
                new.values.insert(name.to_owned(), setting.kind.check(text).map_err(wrong)?);
            }
        }
        Ok(new)
    }

    /// Returns the value of a setting when it is set, and is one that this program understands.
    fn set(&self, name: &str) -> Option<&str> {
        let value = self.values.get(name)?;
        find(name).ok().filter(|setting| setting.kind.check(value).is_ok()).map(|_| value.as_str())
    }

    fn default_of(setting: &Setting, config: &ControlConfig) -> String {
        match setting.name {
            OSD_OUT_AFTER => time_words(config.osd_out_after),
            OSD_BACKFILLS => config.osd_backfills.to_string(),
            TRASH_RETENTION => time_words(config.trash_retention),
            _ => "off".to_owned(),
        }
    }

    /// Returns all settings, for display.
    pub fn views(&self, config: &ControlConfig) -> Vec<SettingView> {
        let view = |setting: &Setting| {
            let default = ConfigRecord::default_of(setting, config);
            let set = self.set(setting.name);
            let value = set.unwrap_or(&default).to_owned();
            let (name, what) = (setting.name.to_owned(), setting.what.to_owned());
            SettingView { name, value, default, is_set: set.is_some(), what }
        };
        SETTINGS.iter().map(view).collect()
    }

    /// Whether a flag is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.set(name) == Some("on")
    }

    /// Returns the time after which an OSD that is down is out.
    pub fn osd_out_after(&self, config: &ControlConfig) -> Duration {
        self.set(OSD_OUT_AFTER).and_then(parse_seconds).map_or(config.osd_out_after, Duration::from_secs)
    }

    /// Returns the time that a removed volume stays in the trash; zero: it does not go there.
    pub fn trash_retention(&self, config: &ControlConfig) -> Duration {
        self.set(TRASH_RETENTION).and_then(parse_seconds).map_or(config.trash_retention, Duration::from_secs)
    }

    /// Returns the number of replicas that may move to one OSD at once.
    pub fn osd_backfills(&self, config: &ControlConfig) -> usize {
        self.set(OSD_BACKFILLS).and_then(|text| text.parse().ok()).unwrap_or(config.osd_backfills)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_take_what_they_can_have_and_say_what_that_is() {
        let config = ControlConfig::default();
        let none = ConfigRecord::default();
        for (name, text, spelled) in [
            ("osd_out_after", "600s", "10m"),
            ("osd_out_after", "90s", "90s"),
            ("osd_out_after", "48h", "2d"),
            ("osd_backfills", "07", "7"),
            ("noout", "on", "on"),
            ("trash_retention", "0m", "0s"),
            ("trash_retention", "336h", "14d"),
        ] {
            let set = none.with(name, Some(text)).expect("it is valid");
            let view = set.views(&config).into_iter().find(|view| view.name == name).expect("it is listed");
            assert!(view.value == spelled && view.is_set, "{view:?}");
            assert_eq!(set.with(name, None).expect("it is known"), none);
        }
        for (name, text, says) in [
            ("osd_out_after", "9s", "write a time from 10s to 30d"),
            ("osd_out_after", "10", "write a time"),
            ("osd_out_after", "99999999999999999999d", "write a time"),
            ("osd_backfills", "0", "write a number from 1 to 64"),
            ("trash_retention", "3651d", "write a time from 0s to 3650d"),
            ("noout", "yes", "write on or off"),
            ("nout", "on", "there is no setting \"nout\""),
        ] {
            let refused = none.with(name, Some(text)).expect_err("it is not valid");
            assert!(refused.code == codes::BAD_SETTING && refused.message.contains(says), "{refused:?}");
        }
    }

    #[test]
    fn a_value_of_a_later_version_counts_as_unset_and_is_kept() {
        let config = ControlConfig::default();
        let values = [("osd_backfills", "lots"), ("later", "1")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let later = ConfigRecord { values: values.into(), away_from_ms: 0 };
        assert_eq!(later.osd_backfills(&config), config.osd_backfills);
        assert_eq!(later.with(NOOUT, Some("on")).expect("it is known").values.len(), 3);
    }

    #[test]
    fn settings_are_listed_by_name() {
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
    }
}
