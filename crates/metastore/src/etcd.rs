//! Records in etcd, with several metas, one of them elected.
//!
//! The election is one key under a lease. The meta that creates the key leads; its create revision is the
//! fence that every transaction compares. A leader that is not sure of a commit gives the lease up and
//! campaigns for a key with another revision. Transactions that are still under way then fail their
//! comparison.

use crate::{Campaign, Store, StoreError, StoreFuture};
use control::{StoredItem, Txn};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, LeaseKeepAliveStream, LeaseKeeper,
    PutOptions, SortOrder, SortTarget, TlsOptions, TxnOp, TxnOpResponse,
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
    /// Lease of the leader in seconds: one that etcd has not heard for this long is replaced. etcd itself
    /// takes at least 2.
    pub lease_ttl_s: i64,
    /// Timeout of a call; a later answer counts as none.
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
            lease_ttl_s: 3,
            timeout: Duration::from_secs(2),
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

struct Leading {
    lease: i64,
    /// Create revision of the election key.
    fence: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// Records in etcd.
pub struct EtcdStore {
    config: EtcdConfig,
    client: Option<Client>,
    leading: Option<Leading>,
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
        EtcdStore { config, client: None, leading: None }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/records/{key}", self.config.prefix)
    }

    fn election_key(&self) -> String {
        format!("{}/leader", self.config.prefix)
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

    async fn campaign_once(&mut self, address: &str) -> Result<Campaign, StoreError> {
        self.leading = None;
        let mut client = self.client().await?;
        let key = self.election_key();
        // If there is a leader, no lease is granted in vain.
        let there = self.within(client.get(key.as_str(), None)).await?;
        if let Some(kv) = there.kvs().first() {
            let leader = String::from_utf8_lossy(kv.value()).into_owned();
            return Ok(Campaign::Lost { leader: Some(leader).filter(|l| l != address) });
        }
        let lease = self.within(client.lease_grant(self.config.lease_ttl_s, None)).await?.id();
        let made = TxnOp::put(key.as_str(), address, Some(PutOptions::new().with_lease(lease)));
        let txn = etcd_client::Txn::new()
            .when(vec![Compare::create_revision(key.as_str(), CompareOp::Equal, 0)])
            .and_then(vec![made]);
        let answer = self.within(client.txn(txn)).await?;
        if !answer.succeeded() {
            let _ = self.within(client.lease_revoke(lease)).await;
            return Ok(Campaign::Lost { leader: None });
        }
        let fence = answer.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
        let (keeper, answers) = self.within(client.lease_keep_alive(lease)).await?;
        self.leading = Some(Leading { lease, fence, keeper, answers });
        Ok(Campaign::Won)
    }

    async fn load_all(&mut self) -> Result<Vec<StoredItem>, StoreError> {
        let mut client = self.client().await?;
        let prefix = self.key("");
        let mut end = prefix.clone().into_bytes();
        *end.last_mut().expect("the prefix is not empty") += 1;
        let mut items = Vec::new();
        let mut from = prefix.clone().into_bytes();
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE)
                .with_sort(SortTarget::Key, SortOrder::Ascend);
            let page = self.within(client.get(from.clone(), Some(options))).await?;
            for kv in page.kvs() {
                let foreign = || StoreError::Foreign(format!("key {:?}", String::from_utf8_lossy(kv.key())));
                let key = std::str::from_utf8(kv.key()).ok().and_then(|k| k.strip_prefix(&prefix));
                let key = key.ok_or_else(foreign)?.to_string();
                let version = u64::try_from(kv.version()).map_err(|_| foreign())?;
                items.push(StoredItem { key, value: kv.value().to_vec(), version });
            }
            let Some(last) = page.kvs().last().filter(|_| page.more()) else { return Ok(items) };
            from = last.key().to_vec();
            from.push(0);
        }
    }

    async fn commit_once(&mut self, txn: &Txn) -> Result<(), StoreError> {
        let fence = self.leading.as_ref().ok_or(StoreError::Fenced)?.fence;
        let mut client = self.client().await?;
        let election = self.election_key();
        let mut compares = vec![Compare::create_revision(election.as_str(), CompareOp::Equal, fence)];
        for check in &txn.checks {
            let version = i64::try_from(check.version).expect("a version counts writes");
            compares.push(Compare::version(self.key(&check.key), CompareOp::Equal, version));
        }
        let puts = txn.puts.iter().map(|(key, value)| TxnOp::put(self.key(key), value.clone(), None));
        let deletes = txn.deletes.iter().map(|key| TxnOp::delete(self.key(key), None));
        let done = etcd_client::Txn::new()
            .when(compares)
            .and_then(puts.chain(deletes).collect::<Vec<_>>())
            .or_else(vec![TxnOp::get(election.as_str(), None)]);
        let answer = self.within(client.txn(done)).await?;
        if answer.succeeded() {
            return Ok(());
        }
        let leads = answer.op_responses().iter().any(|response| match response {
            TxnOpResponse::Get(get) => get.kvs().first().is_some_and(|kv| kv.create_revision() == fence),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => false,
        });
        if leads {
            let key = txn.checks.first().map_or(String::new(), |c| c.key.clone());
            return Err(StoreError::Conflict { key });
        }
        Err(StoreError::Fenced)
    }

    async fn keep_once(&mut self) -> Result<(), StoreError> {
        let limit = self.config.timeout;
        let leading = self.leading.as_mut().ok_or(StoreError::Fenced)?;
        let round = async {
            leading.keeper.keep_alive().await?;
            leading.answers.message().await
        };
        match timeout(limit, round).await {
            Ok(Ok(Some(answer))) if answer.ttl() > 0 => Ok(()),
            Ok(Ok(_)) => Err(StoreError::Fenced),
            Ok(Err(e)) => Err(lost(&self.config.name(), &e)),
            Err(_) => Err(silent(&self.config)),
        }
    }
}

impl Store for EtcdStore {
    fn campaign<'a>(&'a mut self, address: &'a str) -> StoreFuture<'a, Campaign> {
        Box::pin(async move {
            let result = self.campaign_once(address).await;
            if result.is_err() {
                self.client = None;
            }
            result
        })
    }

    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>> {
        Box::pin(self.load_all())
    }

    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()> {
        Box::pin(self.commit_once(txn))
    }

    fn keep(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(self.keep_once())
    }

    fn resign(&mut self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let Some(leading) = self.leading.take() else { return Ok(()) };
            let mut client = self.client().await?;
            self.within(client.lease_revoke(leading.lease)).await.map(|_| ())
        })
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
