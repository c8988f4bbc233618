//! `HOST:PORT` as a user writes it. The host is a name or an address. A name is resolved where it is used, not where it is
//! read, because its address may change.

use crate::errors::UserError;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use types::codes;

/// Longest name in the DNS.
const NAME_LEN_MAX: usize = 253;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    Name(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return Ok(addr.into());
        }
        let wanted = || "expected HOST:PORT, for example meta1:7300, 10.0.0.1:7300 or [fd00::1]:7300".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wanted)?;
        let port = port.parse().map_err(|_| format!("`{port}` is not a port; {}", wanted()))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        // A name of digits and dots alone is a mistyped address.
        let names_something = host.chars().any(|c| c.is_ascii_alphabetic());
        if host.len() > NAME_LEN_MAX || !host.chars().all(plain) || !names_something {
            return Err(format!("`{host}` is neither a host name nor an address; {}", wanted()));
        }
        Ok(Address { host: Host::Name(host.to_owned()), port })
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Address {
        Address { host: Host::Ip(addr.ip()), port: addr.port() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => write!(f, "{}", SocketAddr::new(*ip, self.port)),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl Address {
    /// Whether the host is a name, which must be resolved.
    pub fn is_name(&self) -> bool {
        matches!(self.host, Host::Name(_))
    }

    /// Whether the address stands for all interfaces of a host: other hosts cannot connect to it.
    pub fn is_unspecified(&self) -> bool {
        matches!(&self.host, Host::Ip(ip) if ip.is_unspecified())
    }

    /// Resolves the address. Among several results those of the family of `like` come first, and of these the earlier
    /// result `known` is kept.
    ///
    /// # Errors
    /// The reason why the name cannot be resolved.
    pub async fn lookup(&self, like: Option<SocketAddr>, known: Option<SocketAddr>) -> std::io::Result<SocketAddr> {
        let name = match &self.host {
            Host::Ip(ip) => return Ok(SocketAddr::new(*ip, self.port)),
            Host::Name(name) => name,
        };
        let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), self.port)).await?.collect();
        choose(&found, like, known).ok_or_else(|| std::io::Error::other("it has no address"))
    }

    /// Resolves the address for a command or at the start of a daemon. IPv4 is taken where a name has both.
    ///
    /// # Errors
    /// BSLT-4006.
    pub fn resolve(&self) -> Result<SocketAddr, UserError> {
        if let Host::Ip(ip) = &self.host {
            return Ok(SocketAddr::new(*ip, self.port));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let found = runtime.and_then(|runtime| runtime.block_on(self.lookup(None, None)));
        found.map_err(|why| self.unresolved(&why))
    }

    /// Returns the error of a name that cannot be resolved.
    pub fn unresolved(&self, why: &std::io::Error) -> UserError {
        let name = match &self.host {
            Host::Name(name) => name.clone(),
            Host::Ip(ip) => ip.to_string(),
        };
        // The resolver's message follows a prefix without information.
        let why = why.to_string();
        let why = why.strip_prefix("failed to lookup address information: ").unwrap_or(&why);
        UserError::new(
            codes::HOST_NAME_UNRESOLVED,
            format!("the name {name} cannot be resolved: {why}"),
            format!("getent ahosts {name}"),
        )
    }
}

/// Chooses one address of a name. Resolvers rotate their results: a meaningless change would cost every peer its links.
fn choose(found: &[SocketAddr], like: Option<SocketAddr>, known: Option<SocketAddr>) -> Option<SocketAddr> {
    let v4 = like.is_none_or(|like| like.is_ipv4());
    let first = found.iter().find(|addr| addr.is_ipv4() == v4).or(found.first())?;
    Some(known.filter(|known| known.is_ipv4() == first.is_ipv4() && found.contains(known)).unwrap_or(*first))
}

#[cfg(test)]
mod tests {
    use super::{Address, choose};
    use std::net::SocketAddr;

    #[test]
    fn a_known_address_stays_while_the_name_has_it() {
        let all = |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|t| t.parse().expect("address")).collect() };
        let found = all(&["10.0.0.1:5", "10.0.0.2:5", "[fd00::1]:5"]);
        let (first, second, six) = (found[0], found[1], found[2]);
        let turned = all(&["[fd00::1]:5", "10.0.0.2:5", "10.0.0.1:5"]);
        for (like, known, chosen) in [
            (None, None, second),
            (None, Some(first), first),
            (Some(second), Some(first), first),
            (Some(first), Some(six), second),
            (Some(six), Some(first), six),
            (None, Some("10.0.0.3:5".parse().expect("address")), second),
        ] {
            assert_eq!(choose(&turned, like, known), Some(chosen), "{like:?} {known:?}");
        }
        assert_eq!(choose(&[six], Some(first), Some(six)), Some(six), "no other family is there");
        assert_eq!(choose(&[], None, Some(first)), None);
    }

    #[test]
    fn an_address_is_a_name_or_a_number_with_a_port() {
        for good in
            ["localhost:7300", "10.0.0.1:0", "[fd00::1]:7300", "meta-0.meta.prod.svc.cluster.local:7300", "a_b:1"]
        {
            let address: Address = good.parse().unwrap_or_else(|e| panic!("{good}: {e}"));
            assert_eq!(address.to_string(), good);
        }
        for bad in [
            "",
            ":",
            "localhost",
            "localhost:",
            "localhost:x",
            ":7300",
            "10.0.0.300:7300",
            "::1:7300",
            "a b:1",
            "a:99999",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
        assert!("0.0.0.0:1".parse::<Address>().is_ok_and(|a| a.is_unspecified()));
        assert!("[::]:1".parse::<Address>().is_ok_and(|a| a.is_unspecified()));
        assert!("localhost:1".parse::<Address>().is_ok_and(|a| !a.is_unspecified() && a.is_name()));
    }

    #[test]
    fn a_name_stands_for_an_address_and_an_unknown_one_is_named() {
        let resolve = |text: &str| text.parse::<Address>().expect("an address").resolve();
        assert!(resolve("localhost:7300").expect("every host has it").ip().is_loopback());
        assert_eq!(resolve("[::1]:5").expect("a number").to_string(), "[::1]:5");
        let error = resolve("nowhere.invalid:7300").expect_err("reserved");
        assert!(error.code == 4006 && error.what.contains("nowhere.invalid"), "{error}");
    }
}
