//! Records in etcd, with several metas, one of them elected.
//!
//! [`control::etcd::Session`] chooses the requests and reads the replies; this module carries them.

use crate::{Campaign, Store, StoreError, StoreFuture};
use control::etcd::{EtcdTxn, Kv, LEASE_TTL_S, Next, Refused, Reply, Request, Session, TIMEOUT};
use control::lead::{Answer, Call};
use control::{StoredItem, Txn};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, GetResponse, Identity, KeyValue,
    LeaseKeepAliveStream, LeaseKeeper, PutOptions, SortOrder, SortTarget, TlsOptions, TxnOp, TxnOpResponse,
};
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;

/// Keys read at a time.
const PAGE: i64 = 1000;

/// Settings for the connection to etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`; without a scheme it is http, or https when `tls` is given.
    pub endpoints: Vec<String>,
    /// Prefix of all keys; one per cluster.
    pub prefix: String,
    pub tls: Option<EtcdTls>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// Lease of the leader in seconds.
    pub lease_ttl_s: i64,
    /// Timeout of a request.
    pub timeout: Duration,
}

impl EtcdConfig {
    /// Returns settings with the usual timing.
    pub fn new(endpoints: Vec<String>, prefix: impl Into<String>) -> EtcdConfig {
        EtcdConfig {
            endpoints,
            prefix: prefix.into(),
            tls: None,
            user: None,
            lease_ttl_s: LEASE_TTL_S,
            timeout: TIMEOUT,
        }
    }

    /// Checks the URLs, the prefix and the certificates, before anything is connected.
    ///
    /// # Errors
    /// The fault in words, with the value.
    pub fn check(&self) -> Result<(), String> {
        let secure = self.endpoints.iter().any(|url| url.starts_with("https://"));
        for url in &self.endpoints {
            check_url(url)?;
            if secure != url.starts_with("https://") {
                return Err("all URLs of etcd must be https:// when one of them is".to_owned());
            }
        }
        if self.tls.is_some() && !secure {
            return Err("certificates are given, but the URLs of etcd are not https://".to_owned());
        }
        if secure && self.tls.as_ref().is_none_or(|tls| tls.ca.is_none()) {
            return Err("an https:// URL of etcd needs the certificate that signed etcd's own".to_owned());
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let prefix = &self.prefix;
        if !prefix.starts_with('/') || prefix.ends_with('/') || !prefix.chars().all(legal) || prefix.contains("//") {
            return Err(format!("{prefix:?} is not a key prefix: write /NAME of letters, digits and . _ - /"));
        }
        Ok(())
    }

    /// Returns the name of the store in messages.
    fn name(&self) -> String {
        format!("etcd at {}", self.endpoints.join(", "))
    }
}

/// PEM texts for an etcd behind TLS.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// Certificates (PEM) that etcd's certificate is checked against.
    pub ca: Option<Vec<u8>>,
    /// Certificate and private key of this client.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EtcdTls {{ ca: {}, identity: {} }}", self.ca.is_some(), self.identity.is_some())
    }
}

/// Checks a URL: `http://HOST:PORT`, the scheme optional, and nothing after the port.
fn check_url(url: &str) -> Result<(), String> {
    let bad =
        |why: &str| Err(format!("{url:?} is not a URL of etcd: {why}; write http://HOST:PORT or https://HOST:PORT"));
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or(url);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains("://") {
        return bad("its scheme is neither http nor https");
    }
    if rest.contains(|c: char| "/?#@ ".contains(c)) {
        return bad("there is more than a host and a port");
    }
    match rest.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0) => Ok(()),
        _ => bad("it has no port"),
    }
}

/// The stream that keeps a lease.
struct Keeping {
    lease: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// Records in etcd.
pub struct EtcdStore {
    config: EtcdConfig,
    client: Option<Client>,
    session: Session,
    keeping: Option<Keeping>,
}

/// Messages of the client library about a server that is no etcd.
const FOREIGN: &[&str] = &["grpc-status header missing", "unimplemented", "not implemented", "frame with invalid size"];

/// Returns an error of the client library in an operator's terms: a refusal with its cause, any other error
/// as silence.
fn lost(name: &str, e: &etcd_client::Error) -> StoreError {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    let why = cause_of(&text.to_ascii_lowercase()).map_or(text, str::to_owned);
    StoreError::Unavailable { store: name.to_owned(), why }
}

/// Returns the cause behind a text in lower case; `None` for an unknown one.
fn cause_of(text: &str) -> Option<&'static str> {
    let has = |word: &str| text.contains(word);
    Some(if has("authentication failed") || has("invalid auth") || has("user name is empty") {
        "it refuses the user or the password"
    } else if has("permission denied") {
        "its user may not use the keys of this prefix"
    } else if has("unknownissuer") || has("invalid peer certificate") || has("certificate verify") {
        "its certificate is not signed by the given CA, or not for this host"
    } else if has("certificaterequired") || has("bad certificate") || has("handshake") {
        "the TLS handshake failed: it wants a client certificate, or does not accept this one"
    } else if has("connection refused") {
        "nothing listens there"
    } else if has("dns error") || has("failed to lookup") {
        "the host name is not known"
    } else if FOREIGN.iter().any(|word| has(word)) {
        "the server at that address is not etcd"
    } else if has("broken pipe") || has("connection reset") {
        "the connection broke: it has ended, or the server at that address is not etcd"
    } else {
        return None;
    })
}

fn silent(config: &EtcdConfig) -> StoreError {
    StoreError::Unavailable { store: config.name(), why: format!("no answer in {:?}", config.timeout) }
}

impl EtcdStore {
    /// Returns the store, without connecting yet.
    pub fn new(config: EtcdConfig) -> EtcdStore {
        let session = Session::new(&config.prefix, config.lease_ttl_s, PAGE);
        EtcdStore { config, client: None, session, keeping: None }
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, StoreError> {
        match timeout(self.config.timeout, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(lost(&self.config.name(), &e)),
            Err(_) => Err(silent(&self.config)),
        }
    }

    async fn client(&mut self) -> Result<Client, StoreError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.config.timeout)
            .with_keep_alive(Duration::from_secs(1), Duration::from_secs(2))
            .with_keep_alive_while_idle(true);
        if let Some(tls) = &self.config.tls {
            let mut with = TlsOptions::new();
            if let Some(ca) = &tls.ca {
                with = with.ca_certificate(Certificate::from_pem(ca));
            }
            if let Some((certificate, key)) = &tls.identity {
                with = with.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(with);
        }
        if let Some((user, password)) = &self.config.user {
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let client = self.within(Client::connect(&self.config.endpoints, Some(options))).await?;
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Makes the requests of a call. The outer error is one that the session was not told of: there is no answer.
    async fn call(&mut self, call: &Call) -> Result<Answer, StoreError> {
        let mut next = self.session.begin(call);
        loop {
            match next {
                Next::Ask(request) => match self.carry(request).await {
                    Ok(reply) => next = self.session.handle_reply(reply),
                    Err(e) => match self.session.handle_silence() {
                        Answer::Failed => return Err(e),
                        answer => return Ok(answer),
                    },
                },
                Next::Done(answer) => return Ok(answer),
                Next::Refused(Refused::Fenced) => return Err(StoreError::Fenced),
                Next::Refused(Refused::Conflict { key }) => return Err(StoreError::Conflict { key }),
                Next::Refused(Refused::Foreign(what)) => return Err(StoreError::Foreign(what)),
            }
        }
    }

    async fn carry(&mut self, request: Request) -> Result<Reply, StoreError> {
        let mut client = self.client().await?;
        match request {
            Request::Get { key } => self.within(client.get(key, None)).await.map(range_reply),
            Request::Range { from, end, limit, revision } => {
                let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
                let options = options.with_sort(SortTarget::Key, SortOrder::Ascend);
                self.within(client.get(from, Some(options))).await.map(range_reply)
            }
            Request::Grant { ttl_s } => {
                let granted = self.within(client.lease_grant(ttl_s, None)).await?;
                Ok(Reply::Lease { lease: granted.id(), ttl_s: granted.ttl() })
            }
            Request::KeepAlive { lease } => self.keep_alive(client, lease).await,
            Request::Revoke { lease } => {
                self.keeping = None;
                self.within(client.lease_revoke(lease)).await.map(|_| Reply::Revoked)
            }
            Request::Txn(txn) => {
                let answer = self.within(client.txn(transaction(txn))).await?;
                let found = answer.op_responses().into_iter().find_map(|response| match response {
                    TxnOpResponse::Get(get) => get.kvs().first().map(kv),
                    TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
                });
                let revision = answer.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
                Ok(Reply::Txn { succeeded: answer.succeeded(), revision, found })
            }
        }
    }

    /// Extends a lease, on its stream; the first call opens it.
    async fn keep_alive(&mut self, mut client: Client, lease: i64) -> Result<Reply, StoreError> {
        let limit = self.config.timeout;
        let Some(keeping) = self.keeping.as_mut().filter(|keeping| keeping.lease == lease) else {
            let (keeper, answers) = self.within(client.lease_keep_alive(lease)).await?;
            self.keeping = Some(Keeping { lease, keeper, answers });
            return Ok(Reply::Lease { lease, ttl_s: self.config.lease_ttl_s });
        };
        let round = async {
            keeping.keeper.keep_alive().await?;
            keeping.answers.message().await
        };
        match timeout(limit, round).await {
            Ok(Ok(Some(answer))) => Ok(Reply::Lease { lease, ttl_s: answer.ttl() }),
            Ok(Ok(None)) => Ok(Reply::Lease { lease, ttl_s: 0 }),
            Ok(Err(e)) => Err(lost(&self.config.name(), &e)),
            Err(_) => Err(silent(&self.config)),
        }
    }
}

fn kv(kv: &KeyValue) -> Kv {
    Kv {
        key: kv.key().to_vec(),
        value: kv.value().to_vec(),
        create_revision: kv.create_revision(),
        version: kv.version(),
    }
}

fn range_reply(page: GetResponse) -> Reply {
    let revision = page.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
    Reply::Kvs { kvs: page.kvs().iter().map(kv).collect(), more: page.more(), revision }
}

fn transaction(txn: EtcdTxn) -> etcd_client::Txn {
    let created = txn.created.into_iter().map(|(key, at)| Compare::create_revision(key, CompareOp::Equal, at));
    let versions = txn.versions.into_iter().map(|(key, version)| {
        let version = i64::try_from(version).expect("a version counts writes");
        Compare::version(key, CompareOp::Equal, version)
    });
    let puts = txn.puts.into_iter().map(|(key, value, lease)| {
        let options = (lease != 0).then(|| PutOptions::new().with_lease(lease));
        TxnOp::put(key, value, options)
    });
    let deletes = txn.deletes.into_iter().map(|key| TxnOp::delete(key, None));
    etcd_client::Txn::new()
        .when(created.chain(versions).collect::<Vec<_>>())
        .and_then(puts.chain(deletes).collect::<Vec<_>>())
        .or_else(txn.otherwise.into_iter().map(|key| TxnOp::get(key, None)).collect::<Vec<_>>())
}

impl Store for EtcdStore {
    fn campaign<'a>(&'a mut self, address: &'a str) -> StoreFuture<'a, Campaign> {
        Box::pin(async move {
            self.keeping = None;
            self.session.set_address(address);
            match self.call(&Call::Campaign).await {
                Ok(Answer::Lost { leader }) => Ok(Campaign::Lost { leader }),
                Ok(_) => Ok(Campaign::Won),
                Err(e) => {
                    self.client = None;
                    Err(e)
                }
            }
        })
    }

    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>> {
        Box::pin(async move {
            match self.call(&Call::Load).await? {
                Answer::Items(items) => Ok(items),
                other => unreachable!("{other:?} answers no load"),
            }
        })
    }

    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.call(&Call::Commit(txn.clone())).await.map(|_| ()) })
    }

    fn keep(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.call(&Call::Keep).await.map(|_| ()) })
    }

    fn resign(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.call(&Call::Resign).await.map(|_| ()) })
    }

    fn is_leased(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::cause_of;

    #[test]
    fn a_server_that_is_no_etcd_is_called_so_and_a_lost_one_is_not() {
        let http = "grpc request error: status: internal, message: \"protocol error: grpc-status header missing, mapped \
                    from http status code 404\"";
        let other = "grpc request error: status: unimplemented";
        for text in [http, other] {
            assert_eq!(cause_of(text), Some("the server at that address is not etcd"), "{text}");
        }
        assert_eq!(cause_of("transport error: tcp connect error: connection refused"), Some("nothing listens there"));
        assert!(cause_of("transport error: broken pipe").is_some_and(|why| why.contains("it has ended, or")));
        assert_eq!(cause_of("deadline has elapsed"), None);
    }
}
