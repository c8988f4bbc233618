//! `basalt meta`.

use crate::address::Address;
use crate::args::{MetaArgs, StoreArgs};
use crate::errors::UserError;
use crate::role;
use anyhow::{Context, Result};
use meta::{MetaConfig, StoreConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use types::codes;

/// Runs a metadata server until it is asked to end.
pub fn run(args: &MetaArgs, as_json: bool) -> Result<()> {
    let store = open_store(&args.store)?;
    role::advertised::check(&args.listen, args.advertise.as_ref())?;
    let listen = args.listen.resolve()?;
    let http = role::http_addr(listen, args.http.as_ref())?;
    // A name is advertised as a name: a peer resolves it at each connect.
    let told = args.advertise.as_ref().or(Some(&args.listen).filter(|listen| listen.is_name()));
    let registry = role::process::registry("meta");
    let version = crate::version::LONG.to_owned();
    let advertise = told.map(Address::to_string);
    let config = MetaConfig { listen, http: Some(http), advertise, store, registry, version };
    let runtime = role::runtime()?;
    runtime.block_on(async {
        let mut signals = role::Signals::watch().context("watching signals")?;
        let asked = async move {
            let signal = signals.end().await;
            tracing::info!(signal, "ending");
        };
        let ready = |grpc: SocketAddr, http: Option<SocketAddr>| {
            tracing::info!(%grpc, http = http.map(tracing::field::display), "meta is listening");
            if as_json {
                let body = serde_json::json!({ "listen": grpc, "http": http, "pid": std::process::id() });
                // If the line cannot be written, the process ends; that is no failure of the metadata server.
                let _ = crate::output::ready("meta.run", body);
            }
        };
        meta::serve(config, asked, ready).await.map_err(|error| meta_error(&error, args).into())
    })
}

fn meta_error(error: &meta::MetaError, args: &MetaArgs) -> UserError {
    let text = crate::errors::chain(error);
    match error {
        meta::MetaError::Listen { .. } => {
            UserError::new(codes::FILE_UNUSABLE, text, "choose another --listen or --http")
        }
        _ => UserError::new(
            codes::STORE_FAILED,
            text,
            match &args.store.dir {
                Some(dir) if args.store.etcd.is_empty() => format!("check {}", dir.display()),
                _ => format!("check etcd: {}", args.store.etcd.join(", ")),
            },
        ),
    }
}

/// Returns the store that the flags name. Wrong flags are refused here, before anything is connected.
pub fn open_store(args: &StoreArgs) -> Result<StoreConfig> {
    if args.etcd.is_empty() {
        let Some(dir) = &args.dir else {
            let text = "neither --dir nor --etcd says where the records are";
            return Err(UserError::new(
                codes::BAD_USAGE,
                text,
                "add --dir DIR for one metadata server, or --etcd URL for several",
            )
            .into());
        };
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|e| {
            UserError::new(codes::FILE_UNUSABLE, format!("{}: {e}", dir.display()), "choose another --dir")
        })?;
        return Ok(StoreConfig::Redb { path: dir.join("meta.redb") });
    }
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|e| {
            UserError::new(
                codes::FILE_UNUSABLE,
                format!("{}: {e}", path.display()),
                "check the path and its permissions",
            )
        })
    };
    let ca = args.etcd_ca.as_ref().map(read).transpose()?;
    let identity = match (&args.etcd_cert, &args.etcd_key) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    let user = match (&args.etcd_user, &args.etcd_password_file) {
        (Some(user), Some(file)) => {
            let text = String::from_utf8_lossy(&read(file)?).into_owned();
            Some((user.clone(), text.lines().next().unwrap_or_default().to_owned()))
        }
        _ => None,
    };
    let tls = (ca.is_some() || identity.is_some()).then_some(metastore::EtcdTls { ca, identity });
    let config =
        metastore::EtcdConfig { tls, user, ..metastore::EtcdConfig::new(args.etcd.clone(), &args.etcd_prefix) };
    config
        .check()
        .map_err(|why| UserError::new(codes::BAD_ETCD_CONFIG, why, "`basalt meta --help` shows how it is written"))?;
    Ok(StoreConfig::Etcd(config))
}
