//! What makes a node a member of a cluster: who the others are, which one it is itself, and what proves it.

use crate::node_url::NodeUrl;
use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use store::Membership;

/// A longer file is not a secret.
const SECRET_BYTES_MAX: usize = 4_096;

/// A text that no log and no error repeats.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// The settings, as an operator wrote them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSettings<'a> {
    pub(crate) cluster: &'a [String],
    pub(crate) self_url: Option<&'a str>,
    pub(crate) default_from: Option<u8>,
    pub(crate) secret: Option<&'a Secret>,
    pub(crate) secret_file: Option<&'a PathBuf>,
    /// As it was written; the address of this node unless `self_url` says another.
    pub(crate) listen: &'a str,
}

/// What they come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) membership: Membership,
    pub(crate) self_name: String,
    pub(crate) default_from: u8,
    pub(crate) secret: Option<String>,
}

impl ClusterSettings<'_> {
    /// What the settings come to for a node that listens on `addresses`.
    ///
    /// # Errors
    /// A sentence about the setting that makes no sense.
    pub(crate) fn resolve(&self, addresses: &[IpAddr]) -> Result<Cluster, String> {
        let nodes = self.nodes()?;
        let own = self.own(&nodes)?;
        let secret = self.secret()?;
        let default_from = self.default_from(nodes.len().max(1) as u8)?;
        let exposed = addresses.iter().find(|address| !address.is_loopback());
        if let (true, None, Some(address)) = (nodes.len() > 1, &secret, exposed) {
            return Err(format!(
                "this node listens on {address}, where anyone who reaches it could pass for one of its cluster; \
                 set --cluster-secret or --cluster-secret-file to the same text on all nodes, or listen on 127.0.0.1"
            ));
        }
        let membership = Membership::of(nodes.iter().map(ToString::to_string).collect());
        Ok(Cluster { membership, self_name: own.to_string(), default_from, secret })
    }

    fn nodes(&self) -> Result<Vec<NodeUrl>, String> {
        let mut nodes = Vec::new();
        for url in self.cluster.iter().map(|url| url.trim()).filter(|url| !url.is_empty()) {
            let node = url.parse::<NodeUrl>().map_err(|error| format!("--cluster: {error}"))?;
            if nodes.contains(&node) {
                return Err(format!("--cluster lists {node} twice; list every node once"));
            }
            nodes.push(node);
        }
        let (count, most) = (nodes.len(), cluster::NODES_MAX);
        if count > most {
            return Err(format!("--cluster lists {count} nodes; a cluster has at most {most}"));
        }
        Ok(nodes)
    }

    /// This node's address among `nodes`.
    fn own(&self, nodes: &[NodeUrl]) -> Result<NodeUrl, String> {
        let is_alone = nodes.is_empty();
        let own = match self.self_url {
            Some(_) if is_alone => {
                return Err(
                    "--self-url means nothing without --cluster; leave it out, or list all nodes".to_owned()
                );
            }
            Some(url) => url.parse().map_err(|error| format!("--self-url: {error}"))?,
            None => match format!("http://{}", self.listen).parse::<NodeUrl>() {
                Ok(own) => own,
                // The system chooses the port, and nobody has to know it beforehand.
                Err(_) if is_alone => NodeUrl::unspecified(),
                Err(_) => {
                    return Err(format!(
                        "--listen {} does not tell by which address of --cluster this node is reached; \
                         set --self-url to it",
                        self.listen
                    ));
                }
            },
        };
        if !is_alone && !nodes.contains(&own) {
            let listed: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            return Err(format!(
                "this node, {own}, is not in --cluster {}; list it there, or set --self-url to the address by which \
                 it is listed",
                listed.join(",")
            ));
        }
        Ok(own)
    }

    fn default_from(&self, nodes: u8) -> Result<u8, String> {
        match self.default_from.unwrap_or(nodes) {
            from if (1..=nodes).contains(&from) => Ok(from),
            from => Err(format!(
                "--default-from is {from}, but a key is held by at least 1 node and at most all {nodes} of --cluster"
            )),
        }
    }

    fn secret(&self) -> Result<Option<String>, String> {
        let secret = match (self.secret, self.secret_file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err("--cluster-secret and --cluster-secret-file are both set; leave one of them out"
                    .to_owned());
            }
            (Some(secret), None) => secret.0.clone(),
            (None, Some(file)) => read_secret(file)?,
        };
        match secret.len() {
            0 => Err("the cluster's secret is empty; set it to a text that only the nodes know".to_owned()),
            len if len > SECRET_BYTES_MAX => {
                Err(format!("the cluster's secret has {len} bytes; the most is {SECRET_BYTES_MAX}"))
            }
            _ => Ok(Some(secret)),
        }
    }
}

/// The text of a file, without the end of the line that editors put behind it.
fn read_secret(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read --cluster-secret-file {}: {error}", file.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ANYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const ALONE: ClusterSettings<'_> = ClusterSettings {
        cluster: &[],
        self_url: None,
        default_from: None,
        secret: None,
        secret_file: None,
        listen: "127.0.0.1:0",
    };

    fn urls(list: &str) -> Vec<String> {
        list.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn the_same_nodes_are_the_same_cluster_however_they_are_written() {
        let written = urls("HTTP://Alpha:80/, http://beta:8080");
        let again = urls("http://beta:8080,http://alpha");
        let on = |cluster, listen| {
            ClusterSettings { cluster, listen, ..ALONE }.resolve(&[LOOPBACK]).expect("a cluster")
        };
        let (alpha, beta) = (on(&written, "ALPHA:80"), on(&again, "beta:8080"));
        assert_eq!(alpha.membership, beta.membership);
        assert_eq!(
            (alpha.self_name.as_str(), beta.self_name.as_str()),
            ("http://alpha:80", "http://beta:8080")
        );
        assert_eq!((alpha.default_from, alpha.secret), (2, None));
    }

    #[test]
    fn a_node_on_its_own_needs_nothing() {
        let alone = ALONE.resolve(&[ANYWHERE]).expect("a node on its own");
        assert_eq!((alone.membership, alone.default_from), (Membership::of(Vec::new()), 1));
    }

    #[test]
    fn a_cluster_beyond_loopback_needs_a_secret() {
        let cluster = urls("http://a:1,http://b:1");
        let open = ClusterSettings { cluster: &cluster, listen: "a:1", ..ALONE };
        assert!(open.resolve(&[LOOPBACK]).is_ok());
        assert!(open.resolve(&[IpAddr::from([127, 0, 0, 9]), "::1".parse().unwrap()]).is_ok());
        for address in [ANYWHERE, IpAddr::from([10, 0, 0, 1]), "::".parse().unwrap()] {
            let refusal = open.resolve(&[LOOPBACK, address]).expect_err("refused");
            assert!(refusal.contains("--cluster-secret"), "{refusal}");
            let secret = Secret("s".to_owned());
            let closed = ClusterSettings { secret: Some(&secret), ..open }.resolve(&[LOOPBACK, address]);
            assert_eq!(closed.map(|cluster| cluster.secret), Ok(Some("s".to_owned())));
        }
    }

    #[test]
    fn a_secret_may_stand_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            ClusterSettings { secret_file: Some(&file), ..ALONE }.resolve(&[]).map(|cluster| cluster.secret)
        };
        assert_eq!(of("of the town\n"), Ok(Some("of the town".to_owned())));
        assert!(of("\n").unwrap_err().contains("empty"));
        assert!(of(&"x".repeat(SECRET_BYTES_MAX + 1)).unwrap_err().contains("4097 bytes"));
        let secret = Secret("s".to_owned());
        let both = ClusterSettings { secret: Some(&secret), secret_file: Some(&file), ..ALONE };
        assert!(both.resolve(&[]).unwrap_err().contains("both set"));
        std::fs::remove_file(&file).unwrap();
        let gone = ClusterSettings { secret_file: Some(&file), ..ALONE }.resolve(&[]).unwrap_err();
        assert!(gone.contains(&file.display().to_string()), "{gone}");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn what_makes_no_cluster_is_refused_with_a_sentence() {
        let many: Vec<_> = (0..=cluster::NODES_MAX).map(|node| format!("http://n{node}:1")).collect();
        let three = urls("http://a:1,http://b:1,http://c:1");
        let cases = [
            (ClusterSettings { cluster: &three, listen: "d:1", ..ALONE }, "is not in --cluster"),
            (
                ClusterSettings { cluster: &three, self_url: Some("http://a:2"), ..ALONE },
                "is not in --cluster",
            ),
            (ClusterSettings { cluster: &three, listen: "127.0.0.1:0", ..ALONE }, "set --self-url"),
            (ClusterSettings { cluster: &three, self_url: Some("a:1"), ..ALONE }, "write http://host:port"),
            (ClusterSettings { cluster: &urls("http://a:1,http://A:1/"), ..ALONE }, "twice"),
            (ClusterSettings { cluster: &urls("https://a:1"), ..ALONE }, "write http://host:port"),
            (ClusterSettings { cluster: &many, listen: "n0:1", ..ALONE }, "at most 64"),
            (ClusterSettings { self_url: Some("http://a:1"), ..ALONE }, "without --cluster"),
            (ClusterSettings { default_from: Some(2), ..ALONE }, "--default-from is 2"),
            (
                ClusterSettings { cluster: &three, listen: "a:1", default_from: Some(0), ..ALONE },
                "--default-from is 0",
            ),
            (
                ClusterSettings { cluster: &three, listen: "a:1", default_from: Some(4), ..ALONE },
                "at most all 3",
            ),
            (ClusterSettings { secret: Some(&Secret(String::new())), ..ALONE }, "empty"),
        ];
        for (settings, says) in cases {
            let refusal = settings.resolve(&[LOOPBACK]).expect_err(says);
            assert!(refusal.contains(says), "{says:?} is not in {refusal}");
        }
    }

    #[test]
    fn the_default_of_replicas_may_be_fewer_than_nodes() {
        let five = urls("http://a:1,http://b:1,http://c:1,http://d:1,http://e:1");
        for (chosen, expected) in [(None, 5), (Some(1), 1), (Some(3), 3), (Some(5), 5)] {
            let settings = ClusterSettings { cluster: &five, listen: "a:1", default_from: chosen, ..ALONE };
            assert_eq!(settings.resolve(&[LOOPBACK]).map(|cluster| cluster.default_from), Ok(expected));
        }
    }
}
