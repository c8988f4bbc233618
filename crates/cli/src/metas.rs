//! `basalt meta ls`: every known metadata server, each asked directly.
//!
//! Input: the addresses that a command asks, and the leader that one of them names. Output: one row each. A server that
//! does not answer is a row with its reason, not an error of the command.

use crate::address::Address;
use crate::errors::Exit;
use crate::{duration, output, role};
use anyhow::Result;
use api::MetaInfo;
use serde_json::json;
use std::time::Duration;

/// Longest wait for the answer of one server.
const ANSWER_MAX: Duration = Duration::from_secs(3);

type Row = (String, Result<MetaInfo, String>);

/// Runs the command. Exit code 0: all answer and one leads; 3: one leads and another does not answer; 4: none leads.
pub fn list(metas: &[Address], as_json: bool) -> Result<Exit> {
    let rows = role::runtime()?.block_on(ask_all(metas.iter().map(Address::to_string).collect()));
    let leads = rows.iter().any(|(_, told)| told.as_ref().is_ok_and(|info| info.leads));
    let exit = match (leads, rows.iter().all(|(_, told)| told.is_ok())) {
        (false, _) => Exit::Down,
        (true, false) => Exit::Degraded,
        (true, true) => Exit::Done,
    };
    if as_json {
        let metas: Vec<_> = rows.iter().map(|(address, told)| object(address, told)).collect();
        output::json("meta.ls", json!({ "metas": metas }))?;
        return Ok(exit);
    }
    output::table(&["meta", "state", "up for", "version"], rows.into_iter().map(cells));
    Ok(exit)
}

/// Returns the metadata servers for `status`: its line, and an object each as in `meta ls`.
///
/// # Errors
/// When this process gets no runtime.
pub fn summary(metas: &[Address]) -> Result<(String, Vec<serde_json::Value>)> {
    let rows = role::runtime()?.block_on(ask_all(metas.iter().map(Address::to_string).collect()));
    Ok((line(&rows), rows.iter().map(|(address, told)| object(address, told)).collect()))
}

/// Returns a line like `3 (leads: A; follow: B; unreachable: C)`.
fn line(rows: &[Row]) -> String {
    let groups = [("leads", "leads"), ("follows", "follow"), ("unreachable", "unreachable")];
    let of = |word: &str| -> Vec<&str> {
        rows.iter().filter(|(_, told)| state(told).0 == word).map(|(address, _)| address.as_str()).collect()
    };
    let parts = groups.map(|(word, shown)| (shown, of(word))).into_iter().filter(|(_, metas)| !metas.is_empty());
    let parts: Vec<String> = parts.map(|(shown, metas)| format!("{shown}: {}", metas.join(", "))).collect();
    format!("{} ({})", rows.len(), parts.join("; "))
}

/// Asks the servers at these addresses, and the leader that one of them names when none of them leads.
async fn ask_all(addrs: Vec<String>) -> Vec<Row> {
    let mut rows = ask(addrs).await;
    let named = |told: &Result<MetaInfo, String>| told.as_ref().ok().and_then(|info| info.leader.clone());
    let leads = rows.iter().any(|(_, told)| told.as_ref().is_ok_and(|info| info.leads));
    let leader = rows.iter().find_map(|(_, told)| named(told)).filter(|_| !leads);
    if let Some(leader) = leader.filter(|leader| rows.iter().all(|(addr, _)| addr != leader)) {
        rows.extend(ask(vec![leader]).await);
    }
    rows
}

/// Asks all servers at once; the rows have the order of the addresses.
async fn ask(addrs: Vec<String>) -> Vec<Row> {
    let one = |addr: String| tokio::spawn(async move { (addr.clone(), api::meta_info(&addr, ANSWER_MAX).await) });
    let mut rows = Vec::new();
    for asked in addrs.into_iter().map(one).collect::<Vec<_>>() {
        rows.extend(asked.await);
    }
    rows
}

/// Returns `leads`, `follows` or `unreachable`, with a reason if there is one.
fn state(told: &Result<MetaInfo, String>) -> (&'static str, Option<String>) {
    match told {
        Ok(info) if info.leads => ("leads", None),
        Ok(info) => ("follows", info.why.clone().filter(|_| info.leader.is_none())),
        Err(why) => ("unreachable", Some(why.clone())),
    }
}

fn cells((address, told): Row) -> Vec<String> {
    let (word, why) = state(&told);
    let info = told.ok();
    let state = match (info.as_ref().and_then(|info| info.leader.as_ref()), why) {
        (Some(leader), _) => format!("{word} {leader}"),
        (None, Some(why)) => format!("{word}: {why}"),
        (None, None) if word == "follows" => "follows no leader: none is known".to_owned(),
        (None, None) => word.to_owned(),
    };
    let age = |info: &MetaInfo| Duration::from_millis(duration::now_ms().saturating_sub(info.started_ms));
    let up = info.as_ref().map_or_else(|| "-".to_owned(), |info| duration::show(age(info)));
    vec![address, state, up, info.map_or_else(|| "-".to_owned(), |info| info.version)]
}

fn object(address: &str, told: &Result<MetaInfo, String>) -> serde_json::Value {
    let (state, why) = state(told);
    let info = told.as_ref().ok();
    json!({
        "address": address,
        "state": state,
        "leader": info.and_then(|info| info.leader.clone()),
        "version": info.map(|info| &info.version),
        "started_ms": info.map(|info| info.started_ms),
        "why": why,
    })
}

#[cfg(test)]
mod tests {
    use super::{Row, line};
    use api::MetaInfo;

    #[test]
    fn the_line_of_status_groups_the_metadata_servers_by_their_states() {
        let info = |leads: bool| MetaInfo {
            leads,
            leader: (!leads).then(|| "a:1".to_owned()),
            why: None,
            version: "0.1.0".to_owned(),
            started_ms: 0,
        };
        let rows: [Row; 4] = [
            ("c:1".into(), Ok(info(false))),
            ("a:1".into(), Ok(info(true))),
            ("b:1".into(), Err("refused".into())),
            ("d:1".into(), Ok(info(false))),
        ];
        assert_eq!(line(&rows[1..2]), "1 (leads: a:1)");
        assert_eq!(line(&rows), "4 (leads: a:1; follow: c:1, d:1; unreachable: b:1)");
    }
}
