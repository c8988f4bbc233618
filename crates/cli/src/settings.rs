//! `basalt config`, and the flags of `basalt osd set`.

use crate::admin::Admin;
use crate::args::{Config, OsdFlag};
use crate::errors::Exit;
use crate::output::{json, table};
use anyhow::Result;
use control::settings::{NOOUT, NOREBALANCE, SettingView};
use serde_json::json;

/// Runs `basalt config ...`.
pub fn run(admin: &Admin, command: &Config, as_json: bool) -> Result<Exit> {
    match command {
        Config::Ls => {
            let all = admin.settings()?;
            if as_json {
                return json("config.ls", json!({ "settings": all })).map(|()| Exit::Done);
            }
            let default = |s: &SettingView| if s.is_set { s.default.clone() } else { "(default)".to_owned() };
            let rows = all.iter().map(|s| vec![s.name.clone(), s.value.clone(), default(s), s.what.clone()]);
            table(&["setting", "value", "default", "what"], rows);
            Ok(Exit::Done)
        }
        Config::Set { name, value } => change(admin, "config.set", name, Some(value), as_json),
        Config::Reset { name } => change(admin, "config.reset", name, None, as_json),
    }
}

/// Runs `basalt osd set` and `basalt osd unset`.
pub fn flag(admin: &Admin, flag: OsdFlag, on: bool, as_json: bool) -> Result<Exit> {
    let name = match flag {
        OsdFlag::Noout => NOOUT,
        OsdFlag::Norebalance => NOREBALANCE,
    };
    let (thing, value) = if on { ("osd.set", Some("on")) } else { ("osd.unset", None) };
    change(admin, thing, name, value, as_json)
}

fn change(admin: &Admin, thing: &str, name: &str, value: Option<&str>, as_json: bool) -> Result<Exit> {
    let all = admin.change_setting(name, value)?;
    let now = all.into_iter().find(|setting| setting.name == name);
    match (now, as_json) {
        (now, true) => json(thing, json!({ "setting": now }))?,
        (Some(now), false) => out!("{name} is {}", now.value),
        (None, false) => {}
    }
    Ok(Exit::Done)
}
