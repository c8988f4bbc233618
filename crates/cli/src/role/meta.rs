//! `basalt meta`.

use crate::address::Address;
use crate::args::MetaArgs;
use crate::errors::UserError;
use crate::role;
use anyhow::{Context, Result};
use meta::{MetaConfig, StoreConfig};
use std::net::SocketAddr;

/// Runs a metadata server until it is asked to end.
pub fn run(args: MetaArgs) -> Result<()> {
    let store = if args.etcd.is_empty() {
        std::fs::create_dir_all(&args.dir)
            .map_err(|e| UserError::new(1006, format!("{}: {e}", args.dir.display()), "choose another --dir"))?;
        StoreConfig::Redb { path: args.dir.join("meta.redb") }
    } else {
        StoreConfig::Etcd(metastore::EtcdConfig::new(args.etcd.clone(), "/basalt"))
    };
    role::advertised::check(&args.listen, args.advertise.as_ref())?;
    let listen = args.listen.resolve()?;
    let http = role::http_addr(listen, args.http.as_ref())?;
    // A name stays a name: who is told it resolves it at each connect.
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
        let ready = |grpc: SocketAddr, http: Option<SocketAddr>| tracing::info!(%grpc, http = http.map(tracing::field::display), "meta is listening");
        meta::serve(config, asked, ready).await.map_err(|error| meta_error(&error, &args).into())
    })
}

fn meta_error(error: &meta::MetaError, args: &MetaArgs) -> UserError {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    match error {
        meta::MetaError::Listen { .. } => UserError::new(1006, text, "choose another --listen or --http"),
        _ => UserError::new(2005, text, format!("look at {}", args.dir.display())),
    }
}
