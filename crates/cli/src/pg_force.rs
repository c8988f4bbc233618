//! `basalt pg force-recover`: lets PGs that have lost their majority for good go on from one replica each.

use crate::admin::Admin;
use crate::errors::{Exit, UserError};
use crate::output::{json, table};
use anyhow::Result;
use control::admin::{ForceView, PgForce, PgView};
use serde_json::json;
use std::time::{Duration, Instant};
use types::codes;
use types::{OsdId, PgId};

/// Pause between two looks at the PGs.
const AGAIN: Duration = Duration::from_millis(250);
/// Longest wait for the PGs to serve.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The PGs and conditions of one command.
pub struct Ask {
    pub pgs: Vec<PgId>,
    /// All PGs that are down, in place of `pgs`.
    pub all: bool,
    pub osd: Option<OsdId>,
    pub dry_run: bool,
    pub accept_loss: bool,
}

/// Runs the command. Without `dry_run` it returns when the PGs serve.
pub fn run(admin: &Admin, ask: &Ask, as_json: bool) -> Result<Exit> {
    let pgs = if ask.all { down(admin)? } else { ask.pgs.clone() };
    let (mut views, mut refused) = (Vec::new(), Vec::new());
    for pg in pgs {
        let one = PgForce { pg, osd: ask.osd, dry_run: ask.dry_run, accept_loss: ask.accept_loss };
        // The others go on when one of several cannot.
        match (admin.force_pg(one), ask.all) {
            (Ok(view), _) => views.push(view),
            (Err(error), true) if code_of(&error) == Some(codes::BAD_FORCE) => refused.push((pg, error)),
            (Err(error), _) => return Err(error),
        }
        if let Some(view) = views.last().filter(|view| view.pg == pg && !as_json) {
            print(view);
        }
    }
    let ordered: Vec<PgId> = views.iter().filter(|view| view.ordered).map(|view| view.pg).collect();
    let waiting = until_active(admin, &ordered)?;
    if as_json {
        json("pg.force-recover", json!({ "pgs": views, "waiting": waiting }))?;
    } else if views.is_empty() && refused.is_empty() {
        out!("no PG is down");
    } else if !ordered.is_empty() {
        out!(
            "{} of {} PGs serve again, from one replica each; their other replicas are made anew",
            ordered.len() - waiting.len(),
            ordered.len()
        );
    }
    let count = refused.len();
    match (waiting.first(), refused.into_iter().next()) {
        (None, None) => Ok(Exit::Done),
        (_, Some((pg, error))) => Err(match error.downcast::<UserError>() {
            Ok(error) => {
                let what = format!("{count} PGs are not recovered, PG {pg} among them: {}", error.what);
                UserError { what, ..error }.into()
            }
            Err(error) => error,
        }),
        (Some(pg), None) => {
            let what = format!("PG {pg} and {} others do not serve after {} s", waiting.len() - 1, WAIT_MAX.as_secs());
            let next = "the orders stand: `basalt pg ls` shows when the PGs serve, `basalt events` what happened";
            Err(UserError::new(codes::BAD_FORCE, what, next).into())
        }
    }
}

fn code_of(error: &anyhow::Error) -> Option<u32> {
    error.downcast_ref::<UserError>().map(|error| error.code)
}

fn is(view: &PgView, word: &str) -> bool {
    view.state.iter().any(|state| state == word)
}

fn down(admin: &Admin) -> Result<Vec<PgId>> {
    Ok(admin.pgs(None)?.iter().filter(|view| !is(view, "active") && !is(view, "waiting")).map(|view| view.pg).collect())
}

fn print(view: &ForceView) {
    let ForceView { pg, keep, lossless, members, .. } = view;
    table(
        &["member", "state", "log end"],
        members.iter().map(|m| {
            let end = m.end.map_or_else(|| "-".to_owned(), |(term, index)| format!("{index} (term {term})"));
            let kept = if m.osd == *keep { " (kept)" } else { "" };
            vec![format!("{}{kept}", m.osd), m.state.clone(), end]
        }),
    );
    let volumes = match (view.volumes.len() as u64, view.volume_count) {
        (_, 0) => "it has no data".to_owned(),
        (shown, all) if shown < all => format!("{all} volumes have data in it, among them {}", view.volumes.join(", ")),
        _ => format!("it has data of {}", view.volumes.join(", ")),
    };
    out!("pg {pg}: {volumes}");
    let (is_to, ends) = if view.ordered { ("goes", "end") } else { ("would go", "would end") };
    match lossless {
        true if view.volume_count == 0 => out!("pg {pg}: {is_to} on from {keep}: nothing is lost"),
        true => out!("pg {pg}: {is_to} on from {keep}, whose log has every acknowledged write: nothing is lost"),
        false => out!(
            "pg {pg}: {is_to} on from {keep}. ACKNOWLEDGED WRITES MAY BE LOST: those that only the other members have. \
             {} open sessions {ends}; check the file systems before you use the volumes",
            view.sessions
        ),
    }
}

/// Waits until the PGs serve. Returns those that do not in time.
#[allow(clippy::disallowed_methods, reason = "it looks again, at the pace of a reader")]
fn until_active(admin: &Admin, pgs: &[PgId]) -> Result<Vec<PgId>> {
    let since = Instant::now();
    loop {
        let views = if pgs.is_empty() { Vec::new() } else { admin.pgs(None)? };
        let served = |pg: &PgId| views.iter().any(|view| view.pg == *pg && is(view, "active") && !is(view, "forcing"));
        let waiting: Vec<PgId> = pgs.iter().copied().filter(|pg| !served(pg)).collect();
        if waiting.is_empty() || since.elapsed() >= WAIT_MAX {
            return Ok(waiting);
        }
        std::thread::sleep(AGAIN);
    }
}
