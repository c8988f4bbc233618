//! A real etcd behind TLS, with users, and shared by two clusters. Without etcd or openssl the test prints a line.

use super::*;
use crate::EtcdTls;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, TlsOptions};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};

struct Etcd {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs openssl in `dir`; `false` when there is none.
fn openssl(dir: &std::path::Path, args: &str) -> bool {
    let run = Command::new("openssl").args(args.split(' ')).current_dir(dir).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// `NAME.pem` and `NAME.key`, signed by `ca`.
fn certificate(dir: &std::path::Path, ca: &str, name: &str) -> bool {
    std::fs::write(dir.join("san"), "subjectAltName=IP:127.0.0.1").expect("written");
    let new = "req -newkey rsa:2048 -nodes";
    openssl(dir, &format!("{new} -keyout {name}.key -out {name}.csr -subj /CN={name}"))
        && openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile san -out {name}.pem"
            ),
        )
}

fn start(name: &str, secure: bool) -> Option<Etcd> {
    let dir = scratch(name);
    if secure {
        let authority = |ca: &str| {
            let req = "req -x509 -newkey rsa:2048 -nodes -days 2";
            openssl(&dir, &format!("{req} -keyout {ca}.key -out {ca}.pem -subj /CN={ca}"))
        };
        let made = authority("ca")
            && authority("stranger")
            && certificate(&dir, "ca", "server")
            && certificate(&dir, "ca", "meta");
        if !made {
            println!("skipped: openssl makes no certificates here");
            return None;
        }
    }
    let free = |_| std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let [port, peer] = [0, 1].map(free);
    let client = format!("{}://127.0.0.1:{port}", if secure { "https" } else { "http" });
    let peer = format!("http://127.0.0.1:{peer}");
    let mut command = Command::new("etcd");
    command
        .args(["--name", "m", "--data-dir", "data", "--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("m={peer}")])
        .current_dir(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if secure {
        command.args(
            "--cert-file server.pem --key-file server.key --client-cert-auth --trusted-ca-file ca.pem".split(' '),
        );
    }
    match command.spawn() {
        Ok(child) => Some(Etcd { child, port, dir }),
        Err(e) => {
            println!("skipped: there is no etcd to run ({e})");
            None
        }
    }
}

impl Etcd {
    fn pem(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.join(name)).expect("it was made")
    }

    fn secure(&self, prefix: &str) -> EtcdConfig {
        let identity = Some((self.pem("meta.pem"), self.pem("meta.key")));
        let tls = Some(EtcdTls { ca: Some(self.pem("ca.pem")), identity });
        let user = Some(("blue".to_owned(), "secret".to_owned()));
        let endpoints = vec![format!("https://127.0.0.1:{}", self.port)];
        EtcdConfig { tls, user, ..EtcdConfig::new(endpoints, prefix) }
    }

    /// Makes two users: `root`, and `blue`, which may use keys below `/basalt/blue`.
    async fn make_users(&self) {
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(self.pem("ca.pem")))
            .identity(Identity::from_pem(self.pem("meta.pem"), self.pem("meta.key")));
        let options = ConnectOptions::new().with_tls(tls).with_timeout(Duration::from_secs(2));
        let limit = Instant::now() + Duration::from_secs(20);
        let mut client = loop {
            let endpoint = format!("https://127.0.0.1:{}", self.port);
            let mut client = Client::connect([endpoint], Some(options.clone())).await.expect("a channel");
            match client.user_add("root", "root", None).await {
                Ok(_) => break client,
                Err(e) => assert!(Instant::now() < limit, "etcd does not come up: {e:?}"),
            }
            sleep(Duration::from_millis(100)).await;
        };
        client.role_add("root").await.expect("a role");
        client.user_grant_role("root", "root").await.expect("granted");
        client.user_add("blue", "secret", None).await.expect("a user");
        client.role_add("blue").await.expect("a role");
        let may = Permission::read_write("/basalt/blue").with_prefix();
        client.role_grant_permission("blue", may).await.expect("granted");
        client.user_grant_role("blue", "blue").await.expect("granted");
        client.auth_enable().await.expect("enabled");
    }
}

async fn refusal(config: EtcdConfig) -> String {
    config.check().expect("well written");
    EtcdStore::new(config).campaign("here:1").await.expect_err("it is refused").to_string()
}

#[test]
fn etcd_behind_tls_with_a_user_obeys_and_every_refusal_names_its_cause() {
    let Some(etcd) = start("tls", true) else { return };
    run(async {
        etcd.make_users().await;
        let right = etcd.secure("/basalt/blue");
        right.check().expect("well written");
        let mut store = EtcdStore::new(right.clone());
        obeys_the_laws(&mut store).await;

        let user = Some(("blue".to_owned(), "guess".to_owned()));
        let text = refusal(EtcdConfig { user, ..right.clone() }).await;
        assert!(text.contains("it refuses the user or the password"), "{text}");
        let text = refusal(etcd.secure("/basalt/green")).await;
        assert!(text.contains("its user may not use the keys of this prefix"), "{text}");
        let of = |ca: &str, identity| Some(EtcdTls { ca: Some(etcd.pem(ca)), identity });
        let identity = right.tls.clone().and_then(|tls| tls.identity);
        let stranger = refusal(EtcdConfig { tls: of("stranger.pem", identity), ..right.clone() }).await;
        println!("another CA: {stranger}");
        assert!(stranger.contains(&format!("etcd at https://127.0.0.1:{}", etcd.port)), "{stranger}");
        assert!(stranger.contains("its certificate is not signed by the given CA"), "{stranger}");
        let nobody = refusal(EtcdConfig { tls: of("ca.pem", None), ..right }).await;
        println!("no client certificate: {nobody}");
        assert!(nobody.contains("etcd at https://"), "{nobody}");
    });
}

#[test]
fn two_clusters_share_an_etcd_by_their_prefixes() {
    let Some(etcd) = start("shared", false) else { return };
    run(async {
        let config = |prefix| EtcdConfig::new(vec![format!("http://127.0.0.1:{}", etcd.port)], prefix);
        let limit = Instant::now() + Duration::from_secs(20);
        let mut blue = EtcdStore::new(config("/basalt/blue"));
        while blue.campaign("blue:1").await.ok() != Some(Campaign::Won) {
            assert!(Instant::now() < limit, "etcd does not come up");
            sleep(Duration::from_millis(100)).await;
        }
        let mut green = EtcdStore::new(config("/basalt/green"));
        assert_eq!(green.campaign("green:1").await.expect("asks"), Campaign::Won, "both lead, each its own");
        blue.commit(&put("a", "blue", 0)).await.expect("blue leads");
        green.commit(&put("a", "green", 0)).await.expect("green leads");
        assert_eq!(blue.load().await.expect("load"), vec![item("a", "blue", 1)]);
        assert_eq!(green.load().await.expect("load"), vec![item("a", "green", 1)]);
    });
}

#[test]
fn malformed_etcd_url_is_refused_before_any_connection() {
    let check = |urls: &[&str], prefix: &str| {
        EtcdConfig::new(urls.iter().map(ToString::to_string).collect(), prefix).check().err().unwrap_or_default()
    };
    assert_eq!(check(&["http://10.0.0.1:2379", "etcd.example:2379"], "/basalt/blue"), "");
    for (urls, prefix, why) in [
        (&["ftp://a:1"][..], "/basalt", "neither http nor https"),
        (&["http://a"], "/basalt", "it has no port"),
        (&["http://a:x"], "/basalt", "it has no port"),
        (&["http://:2379"], "/basalt", "it has no port"),
        (&[""], "/basalt", "it has no port"),
        (&["http://a:1/v3"], "/basalt", "more than a host and a port"),
        (&["http://u:p@a:1"], "/basalt", "more than a host and a port"),
        (&["https://a:1"], "/basalt", "needs the certificate"),
        (&["https://a:1", "http://b:1"], "/basalt", "all URLs of etcd must be https"),
        (&["a:1"], "basalt", "is not a key prefix"),
        (&["a:1"], "/", "is not a key prefix"),
        (&["a:1"], "/b c", "is not a key prefix"),
    ] {
        let got = check(urls, prefix);
        assert!(got.contains(why), "{urls:?} {prefix:?}: {got:?} does not say {why:?}");
    }
    let tls = Some(EtcdTls::default());
    let config = EtcdConfig { tls, ..EtcdConfig::new(vec!["http://a:1".into()], "/basalt") };
    assert!(config.check().is_err_and(|why| why.contains("not https")));
}
