//! Health checks: states of a cluster that an operator should know, each under a stable code.
//!
//! Input: [`Facts`], the records and the live reports at one moment. Output: [`Finding`]s. The checks are pure:
//! [`Control`](crate::Control) adds since when a check holds and whether it is muted.

use crate::admin::OsdView;
use serde::{Deserialize, Serialize};
use types::{OsdId, PgId};

/// Entities and sentences that one check names.
pub const ENTITIES_MAX: usize = 100;
/// An OSD that is filled to this many percent is nearly full.
pub const NEARFULL_PERCENT: u64 = 85;
/// A pool that is promised more than it has is nearly full when an OSD of it is filled to this many percent.
pub const POOL_NEARFULL_PERCENT: u64 = 70;
/// An OSD is filled unevenly when it is this many percent points above the mean.
const UNBALANCED_POINTS: u64 = 20;
/// A pool that is being created counts as work in progress for this long.
const POOL_CREATE_MS: u64 = 60_000;

/// Effect of a check on the health of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information; the cluster is well.
    Ok,
    /// Data is served, and something needs care: `degraded`.
    Warning,
    /// Some data is not served: `down`.
    Error,
}

impl Severity {
    /// The word of JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A check that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub code: &'static str,
    pub severity: Severity,
    pub what: &'static str,
    /// Advice to the operator.
    pub next: &'static str,
}

const fn rule(code: &'static str, severity: Severity, what: &'static str, next: &'static str) -> Rule {
    Rule { code, severity, what, next }
}

/// The code under which a cluster waits for reports.
pub const WAITING: &str = "WAITING";

/// The codes about the records themselves (R17).
pub(crate) const META_BEHIND: &str = "META_BEHIND";
pub(crate) const META_NO_MAJORITY: &str = "META_NO_MAJORITY";
pub(crate) const META_FOREIGN: &str = "META_FOREIGN";
pub(crate) const META_RECOVERING: &str = "META_RECOVERING";

/// Every check, worst first, and each cause before its effects. Codes are never reused.
pub const RULES: &[Rule] = &[
    rule(
        META_BEHIND,
        Severity::Warning,
        "the metadata store is older than the watermarks on the OSDs: nothing is changed",
        "put the right store back, or `basalt meta recover --dry-run`",
    ),
    rule(
        META_NO_MAJORITY,
        Severity::Warning,
        "fewer than a majority of the OSDs have reported to this metadata server: nothing is changed",
        "start the OSDs that are down (`basalt osd ls`)",
    ),
    rule(
        META_RECOVERING,
        Severity::Warning,
        "a recovery of the records is not finished: volumes cannot be opened",
        "run `basalt meta recover` again",
    ),
    rule(
        META_FOREIGN,
        Severity::Warning,
        "OSDs of another cluster connect to this metadata server",
        "give them, or this metadata server, the right addresses and store",
    ),
    rule("PG_DOWN", Severity::Error, "no replica of the PG serves", "start the OSDs that hold it (`basalt pg ls`)"),
    rule(
        "PG_INCONSISTENT",
        Severity::Error,
        "part of the PG's data is lost: no replica holds it",
        "`basalt pg ls` names the extents; restore them from a backup",
    ),
    rule(
        "OSD_FULL",
        Severity::Error,
        "the OSD has no space: its PGs take no new data",
        "empty the trash (`basalt trash purge --all`), remove volumes (`basalt volume rm --now`), or discard inside them; add OSDs",
    ),
    rule(
        "OSD_DOWN",
        Severity::Warning,
        "the OSD has been silent for 6 s",
        "start it, or see its log; if it is lost, `basalt osd replace`, or `basalt osd out` and `basalt osd rm`",
    ),
    rule(
        "OSD_STOPPED",
        Severity::Warning,
        "the store of the OSD stopped after a failed write or flush",
        "check the device, then start the OSD once with --after-poison (`basalt osd run`, or `basalt dev start`)",
    ),
    rule(
        "PG_UNREADABLE",
        Severity::Warning,
        "part of the PG is readable on no replica that is up",
        "start the OSD that is down",
    ),
    rule(
        "PG_DAMAGED",
        Severity::Warning,
        "a replica of the PG has failed and does not serve",
        "wait for its replacement; for a PG that is down, start the OSDs that are down, or `basalt pg force-recover --dry-run`",
    ),
    rule(
        "PG_DEGRADED",
        Severity::Warning,
        "the PG serves with fewer replicas than it should have",
        "start the OSDs that are down, or wait for the recovery",
    ),
    rule(
        "PG_UNPLACED",
        Severity::Warning,
        "a replica has to leave its OSD, and no other OSD can take it",
        "add an OSD in another failure domain, or free space; or let the OSD stay with `basalt osd in`",
    ),
    rule(
        "PG_REPAIRING",
        Severity::Warning,
        "the log of a replica is being repaired from its peers",
        "wait; see the log of its OSD if it lasts",
    ),
    rule(
        "OSD_NEARFULL",
        Severity::Warning,
        "the OSD is filled to 85 % or more",
        "add OSDs, empty the trash, remove volumes (`basalt volume rm --now`), or discard inside them",
    ),
    rule(
        "POOL_NEARFULL",
        Severity::Warning,
        "the volumes of the pool were promised more than its OSDs have, and one of these is filled to 70 % or more",
        "add OSDs, empty the trash, remove volumes or snapshots, or discard inside volumes; `basalt pool info` shows what can be written",
    ),
    rule(
        "OSD_DESTAGE_STUCK",
        Severity::Warning,
        "the OSD's log is under pressure, and a PG on it has not been destaged for 10 s",
        "see the reason in `basalt health`; restart the OSD if it lasts",
    ),
    rule(
        "OSD_SLOW_DEVICE",
        Severity::Warning,
        "a device of the OSD takes twice its normal service time or more",
        "see the device (`basalt osd info`, dmesg, smartctl) and what else uses it; replace it (`basalt osd replace`) if it lasts",
    ),
    rule("OSD_UNREACHABLE", Severity::Warning, "an OSD cannot reach another one", "check the network between them"),
    rule(
        "OSD_UNHEARD",
        Severity::Warning,
        "the OSD cannot reach the metadata server, and its PGs serve",
        "check the network between it and the metadata servers",
    ),
    rule(
        "CLIENT_UNREACHED",
        Severity::Warning,
        "a client cannot reach an OSD that others reach",
        "check the network between them",
    ),
    rule(
        "VOLUME_FAULTS",
        Severity::Warning,
        "faults are rehearsed on the volume: its requests are late, fail, or wait, because an administrator asked for it",
        "nothing: they end by themselves; `basalt volume fault ls` shows when, `basalt volume fault rm` ends them now",
    ),
    rule("POOL_UNFINISHED", Severity::Warning, "the pool cannot be completed", "start enough OSDs (`basalt osd ls`)"),
    rule(WAITING, Severity::Ok, "some reports are missing: a new meta leads, or the pool is new", "wait a few seconds"),
    rule(
        "PG_RECOVERING",
        Severity::Ok,
        "replicas of the PG are being brought up to date",
        "nothing: `basalt status` shows the progress",
    ),
    rule("POOL_CHANGING", Severity::Ok, "the pool is being created or removed", "nothing"),
    rule(
        "OSD_LEAVING",
        Severity::Ok,
        "the OSD is out or drained, and its replicas move to other OSDs",
        "nothing: `basalt status` shows the progress",
    ),
    rule(
        "FLAGS_SET",
        Severity::Ok,
        "a flag holds back what the cluster does by itself",
        "`basalt osd unset FLAG` when the maintenance is over",
    ),
    rule(
        "OSD_NEVER_STARTED",
        Severity::Ok,
        "the OSD is registered and has never run",
        "start it with `basalt osd run`",
    ),
    rule(
        "OSD_UNBALANCED",
        Severity::Ok,
        "the OSD is filled 20 percent points above the mean",
        "compare `basalt osd ls`",
    ),
];

/// Returns the check of a code.
pub fn find_rule(code: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.code == code)
}

/// A check that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: &'static Rule,
    pub count: u64,
    /// One sentence.
    pub summary: String,
    /// At most [`ENTITIES_MAX`], as ids.
    pub entities: Vec<String>,
    /// A sentence for each entity, at most [`ENTITIES_MAX`].
    pub details: Vec<String>,
}

/// A check that holds, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub code: String,
    pub severity: Severity,
    pub count: u64,
    pub summary: String,
    pub entities: Vec<String>,
    pub details: Vec<String>,
    /// Since when the check holds, in milliseconds of the Unix clock.
    pub since_ms: u64,
    /// Whether the check is muted: it is shown and does not count.
    pub muted: bool,
    /// Until when the check is muted; absent: until it is unmuted.
    pub muted_until_ms: Option<u64>,
    /// Advice to the operator.
    pub next: String,
}

/// A PG at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PgFacts {
    pub pg: PgId,
    pub state: Vec<&'static str>,
    /// Whether contents are in no replica.
    pub is_lost: bool,
    /// Whether contents are in no replica that is available.
    pub is_unread: bool,
    /// The extents in words.
    pub extents: Vec<String>,
}

impl PgFacts {
    fn is(&self, word: &str) -> bool {
        self.state.contains(&word)
    }
}

/// A pool that is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFacts {
    pub name: String,
    pub is_creating: bool,
    pub created_ms: u64,
}

/// A pool whose volumes were promised more than its OSDs have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFill {
    pub name: String,
    /// Its fullest OSD.
    pub osd: OsdId,
    pub fill_percent: u64,
    pub overcommit_percent: u64,
    pub available_bytes: u64,
}

/// A cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    pub osds: &'a [OsdView],
    pub pgs: &'a [PgFacts],
    /// Pairs of OSDs of which the first cannot reach the second.
    pub unreachable: &'a [(OsdId, OsdId)],
    /// OSDs that are silent to meta, and lead PGs that serve.
    pub unheard: &'a [OsdId],
    /// Holders of volumes, each with an OSD that it cannot reach.
    pub paths: &'a [(String, OsdId)],
    /// OSDs whose destaging makes no progress, and why.
    pub stuck: &'a [(OsdId, String)],
    /// OSDs with a device that has become slow, and its times.
    pub slow: &'a [(OsdId, String)],
    /// Pools that are not ready.
    pub pools: &'a [PoolFacts],
    /// Pools that are nearly full, and how much.
    pub filling: &'a [PoolFill],
    /// Replicas that have to leave their OSD and that no OSD can take.
    pub unplaced: &'a [(PgId, OsdId)],
    /// Flags that an administrator has set.
    pub flags: &'a [&'static str],
    /// Volumes with rehearsed faults, each with a sentence.
    pub faults: &'a [(String, String)],
    pub now_ms: u64,
}

/// Returns an OSD's fill in percent of its space; zero before its first report.
pub fn fill_percent(osd: &OsdView) -> u64 {
    let all = u128::from(osd.used_bytes) + u128::from(osd.free_bytes);
    u64::try_from((u128::from(osd.used_bytes) * 100).checked_div(all).unwrap_or(0)).unwrap_or(0)
}

/// Collects the findings in the order of the rules.
struct Board(Vec<Finding>);

impl Board {
    /// Adds a finding. `named` has an id and a sentence for each entity; without entities nothing is added.
    fn add(&mut self, code: &str, named: Vec<(String, String)>, summary: impl FnOnce(usize) -> String) {
        if named.is_empty() {
            return;
        }
        let rule = find_rule(code).expect("only rules of the table are found");
        let (count, summary) = (named.len() as u64, summary(named.len()));
        let (entities, details) = named.into_iter().take(ENTITIES_MAX).unzip();
        self.0.push(Finding { rule, count, summary, entities, details });
    }
}

fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Returns a number with its noun, and with the verb that agrees with it: `1 link is`, `2 links are`.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns the checks that hold, worst first.
pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut board = Board(Vec::new());
    pgs(&mut board, facts.pgs);
    osds(&mut board, facts);
    moves(&mut board, facts);
    pools(&mut board, facts);
    board.add("VOLUME_FAULTS", facts.faults.to_vec(), |n| {
        format!("{} rehearsed faults", counted(n, "volume has", "volumes have"))
    });
    let at = |finding: &Finding| RULES.iter().position(|rule| rule == finding.rule);
    board.0.sort_by_key(at);
    board.0
}

fn pgs(board: &mut Board, pgs: &[PgFacts]) {
    let all = pgs.len();
    let named = |is: &dyn Fn(&PgFacts) -> bool| -> Vec<(String, String)> {
        let line = |pg: &PgFacts| (pg.pg.to_string(), format!("pg {} is {}", pg.pg, pg.state.join("+")));
        pgs.iter().filter(|pg| is(pg)).map(line).collect()
    };
    let extents = |is: fn(&PgFacts) -> bool| -> Vec<(String, String)> {
        let line = |pg: &PgFacts| {
            let what = if pg.extents.is_empty() { "unknown contents".to_owned() } else { pg.extents.join("; ") };
            (pg.pg.to_string(), format!("pg {}: no good copy of {what}", pg.pg))
        };
        pgs.iter().filter(|pg| is(pg)).map(line).collect()
    };
    let is_down = |pg: &PgFacts| !pg.is("active") && !pg.is("waiting");
    let of = |n: usize| format!("{n} of {all} PGs");
    board.add("PG_DOWN", named(&is_down), |n| format!("{} {} down", of(n), are(n)));
    let lost = |n| format!("{} {} inconsistent: no replica holds part of the data", of(n), are(n));
    board.add("PG_INCONSISTENT", extents(|pg| pg.is_lost), lost);
    let unread = |n| format!("{} {} unreadable in part until an OSD comes back", of(n), are(n));
    board.add("PG_UNREADABLE", extents(|pg| pg.is_unread && !pg.is_lost), unread);
    let damaged = named(&|pg| pg.is("inconsistent") && !pg.is_lost);
    board.add("PG_DAMAGED", damaged, |n| format!("{} {} with a damaged replica", of(n), are(n)));
    board.add("PG_DEGRADED", named(&|pg| pg.is("degraded")), |n| format!("{} {} degraded", of(n), are(n)));
    board.add("PG_REPAIRING", named(&|pg| pg.is("repairing")), |n| format!("{} {} repairing", of(n), are(n)));
    board.add("PG_RECOVERING", named(&|pg| pg.is("recovering")), |n| format!("{} {} recovering", of(n), are(n)));
}

fn osds(board: &mut Board, facts: &Facts<'_>) {
    let started: Vec<&OsdView> = facts.osds.iter().filter(|osd| osd.live != "new").collect();
    let all = started.len();
    let named = |is: &dyn Fn(&OsdView) -> bool, line: &dyn Fn(&OsdView) -> String| -> Vec<(String, String)> {
        started.iter().filter(|osd| is(osd)).map(|osd| (osd.osd.to_string(), line(osd))).collect()
    };
    let of = |n: usize| format!("{n} of {all} OSDs");
    let is_down = |osd: &OsdView| osd.live == "down" && !facts.unheard.contains(&osd.osd);
    let down = named(&is_down, &|osd| format!("{} on {} is down", osd.osd, osd.host));
    board.add("OSD_DOWN", down, |n| format!("{} {} down", of(n), are(n)));
    let is_full = |osd: &OsdView| osd.full && osd.live == "up";
    let full = named(&is_full, &|osd| format!("{} is full", osd.osd));
    board.add("OSD_FULL", full, |n| format!("{} {} full", of(n), are(n)));
    let tells = |osd: &OsdView| osd.live == "up" && osd.used_bytes.saturating_add(osd.free_bytes) > 0;
    let near = |osd: &OsdView| tells(osd) && !osd.full && fill_percent(osd) >= NEARFULL_PERCENT;
    let near = named(&near, &|osd| format!("{} is filled to {} %", osd.osd, fill_percent(osd)));
    board.add("OSD_NEARFULL", near, |n| format!("{} {} nearly full", of(n), are(n)));
    let why = |osd: &OsdView| osd.poisoned.clone().unwrap_or_default();
    let stopped =
        named(&|osd| osd.poisoned.is_some(), &|osd| format!("the store of {} stopped: {}", osd.osd, why(osd)));
    board.add("OSD_STOPPED", stopped, |n| {
        format!("the {} of {} stopped", if n == 1 { "store" } else { "stores" }, of(n))
    });
    let fills: Vec<u64> = started.iter().filter(|osd| tells(osd)).map(|osd| fill_percent(osd)).collect();
    let mean = fills.iter().sum::<u64>() / (fills.len() as u64).max(1);
    let above = |osd: &OsdView| tells(osd) && fill_percent(osd) >= mean + UNBALANCED_POINTS;
    let above = named(&above, &|osd| format!("{} is filled to {} %, the mean is {mean} %", osd.osd, fill_percent(osd)));
    board.add("OSD_UNBALANCED", above, |n| format!("{} {} filled far above the mean", of(n), are(n)));
    let new = facts.osds.iter().filter(|osd| osd.live == "new");
    let new = new.map(|osd| (osd.osd.to_string(), format!("{} is registered and has never run", osd.osd)));
    board.add("OSD_NEVER_STARTED", new.collect(), |n| {
        format!("{} never run", counted(n, "registered OSD has", "registered OSDs have"))
    });
    let stuck = facts.stuck.iter().map(|(osd, why)| (osd.to_string(), format!("{osd} does not destage: {why}")));
    board.add("OSD_DESTAGE_STUCK", stuck.collect(), |n| format!("{} {} not destaging", of(n), are(n)));
    let slow = facts.slow.iter().map(|(osd, why)| (osd.to_string(), format!("{osd}: {why}")));
    board.add("OSD_SLOW_DEVICE", slow.collect(), |n| format!("{} with a slow device", of(n)));
    let cut = facts.unreachable.iter().map(|(from, to)| (from.to_string(), format!("{from} cannot reach {to}")));
    board.add("OSD_UNREACHABLE", cut.collect(), |n| {
        format!("{} cut", counted(n, "link between OSDs is", "links between OSDs are"))
    });
    let line = |osd: &OsdId| (osd.to_string(), format!("{osd} cannot reach the metadata server (its PGs serve)"));
    let unheard: Vec<_> = facts.unheard.iter().map(line).collect();
    board.add("OSD_UNHEARD", unheard, |n| format!("{} {} without a metadata server, and serving", of(n), are(n)));
    let paths = facts.paths.iter().map(|(client, to)| (to.to_string(), format!("client {client} cannot reach {to}")));
    board.add("CLIENT_UNREACHED", paths.collect(), |n| {
        format!("{} broken", counted(n, "path between a client and an OSD is", "paths between clients and OSDs are"))
    });
    let silent = started.iter().filter(|osd| osd.live == "unknown");
    let silent: Vec<_> = silent.map(|osd| (osd.osd.to_string(), format!("{} has not reported yet", osd.osd))).collect();
    let pgs = facts.pgs.iter().filter(|pg| pg.is("waiting"));
    let pgs: Vec<_> = pgs.map(|pg| (pg.pg.to_string(), format!("pg {} waits for reports", pg.pg))).collect();
    let (osd_count, pg_count) = (silent.len(), pgs.len());
    let waiting = silent.into_iter().chain(pgs).collect();
    let counts = [(osd_count, counted(osd_count, "OSD", "OSDs")), (pg_count, counted(pg_count, "PG", "PGs"))];
    let counts: Vec<String> = counts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
    let text = format!("waiting for reports of {}", counts.join(" and "));
    board.add(WAITING, waiting, |_| text);
}

fn moves(board: &mut Board, facts: &Facts<'_>) {
    let line = |(pg, osd): &(PgId, OsdId)| (pg.to_string(), format!("pg {pg}: no OSD can take its replica on {osd}"));
    let unplaced: Vec<_> = facts.unplaced.iter().map(line).collect();
    board.add("PG_UNPLACED", unplaced, |n| format!("{} no place to go to", counted(n, "replica has", "replicas have")));
    let leaving = facts.osds.iter().filter(|osd| (osd.drain || !osd.is_in) && osd.pgs > 0);
    let line = |osd: &OsdView| {
        let what = if osd.drain { "drained" } else { "out" };
        (osd.osd.to_string(), format!("{} is {what}, and holds {} PGs", osd.osd, osd.pgs))
    };
    let leaving = leaving.map(line).collect();
    board.add("OSD_LEAVING", leaving, |n| format!("{} being emptied", counted(n, "OSD is", "OSDs are")));
    let flags = facts.flags.iter().map(|flag| ((*flag).to_owned(), format!("{flag} is set"))).collect();
    board.add("FLAGS_SET", flags, |_| format!("{} set", facts.flags.join(", ")));
}

fn pools(board: &mut Board, facts: &Facts<'_>) {
    let is_late = |pool: &PoolFacts| pool.is_creating && facts.now_ms.saturating_sub(pool.created_ms) > POOL_CREATE_MS;
    let line = |pool: &PoolFacts| {
        let what = if pool.is_creating { "creating" } else { "deleting" };
        (pool.name.clone(), format!("pool {} is {what}", pool.name))
    };
    let (late, changing): (Vec<&PoolFacts>, Vec<&PoolFacts>) = facts.pools.iter().partition(|pool| is_late(pool));
    let late = late.into_iter().map(line).collect();
    let filling = |of: &PoolFill| {
        let (name, left) = (of.name.clone(), crate::plan::shown(of.available_bytes));
        let (osd, fill, promised) = (of.osd, of.fill_percent, of.overcommit_percent);
        let line = format!(
            "pool {name}: {left} can be written before an OSD is full; {osd} is filled to {fill} %, and the volumes could take {promised} % of what there is"
        );
        (name, line)
    };
    let filling = facts.filling.iter().map(filling).collect();
    board.add("POOL_NEARFULL", filling, |n| format!("{} nearly full", counted(n, "pool is", "pools are")));
    board.add("POOL_UNFINISHED", late, |n| format!("{} completed", counted(n, "pool cannot be", "pools cannot be")));
    let changing = changing.into_iter().map(line).collect();
    board
        .add("POOL_CHANGING", changing, |n| format!("{} being created or removed", counted(n, "pool is", "pools are")));
}

/// Returns the health of a cluster with these checks: `ok`, `waiting`, `degraded` or `down`. Muted checks do not count.
pub fn word<'a>(checks: impl Iterator<Item = &'a Check>) -> &'static str {
    let mut health = "ok";
    let mut worst = Severity::Ok;
    for check in checks.filter(|check| !check.muted) {
        worst = worst.max(check.severity);
        if check.code == WAITING {
            health = "waiting";
        }
    }
    match worst {
        Severity::Ok => health,
        Severity::Warning => "degraded",
        Severity::Error => "down",
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular_and_others_are_plural() {
        let links = |n| counted(n, "link is", "links are");
        assert_eq!([links(0), links(1), links(2)], ["0 links are", "1 link is", "2 links are"]);
    }
}
