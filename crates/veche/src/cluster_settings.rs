//! Cluster settings of a node: its peers, its own address and the shared secret.
//!
//! The settings describe a cluster at its first start. Once the data directory holds a layout
//! record, the record counts. The server warns of a list or a default number of replicas that
//! differs from it.
//!
//! A warning is given for a secret that can be guessed or that other users of the machine can read.
//! A node with an empty data directory that listens beyond loopback refuses a short secret. An
//! existing cluster continues to run with one.

use crate::node_url::NodeUrl;
use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use store::{DirectoryCluster, Membership};

/// Minimum length of a secret. A process that has connected to a node once can guess a shorter one.
const SECRET_BYTES_MIN: usize = 16;
/// The mode bit that lets every user read a file.
const OTHERS_READ: u32 = 0o004;
/// Maximum length of a secret.
const SECRET_BYTES_MAX: usize = 4_096;

/// A secret, which is never part of a log line or error.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for SecretText {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// The cluster settings as the operator wrote them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSettings<'a> {
    pub(crate) cluster: &'a [String],
    pub(crate) self_url: Option<&'a str>,
    pub(crate) default_from: Option<u8>,
    pub(crate) secret: Option<&'a SecretText>,
    pub(crate) secret_file: Option<&'a PathBuf>,
    /// The value of `--listen`: the address of this node if `self_url` is not set.
    pub(crate) listen: &'a str,
    /// The cluster that the data directory belongs to.
    pub(crate) directory: &'a DirectoryCluster,
    /// Whether a new node may use a short secret, because its cluster already does.
    pub(crate) allow_short_secret: bool,
}

/// The resolved cluster settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) membership: Membership,
    pub(crate) self_name: String,
    /// Address at which this node is reached, if it is not `self_name`.
    pub(crate) moved_to: Option<String>,
    /// The addresses of `--cluster`, normalized.
    pub(crate) listed: Vec<String>,
    pub(crate) default_from: u8,
    pub(crate) secret: Option<String>,
    /// Sentences for the operator.
    pub(crate) warnings: Vec<String>,
}

impl ClusterSettings<'_> {
    /// Checks the settings against each other, without reading the file of the secret.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn check(&self) -> Result<(), String> {
        let nodes = self.nodes()?;
        self.check_one_secret()?;
        match self.directory {
            DirectoryCluster::Recorded(_) | DirectoryCluster::Named(_) => Ok(()),
            DirectoryCluster::New | DirectoryCluster::Listed(_) => self.listed(&nodes).map(drop),
        }
    }

    /// Checks the settings of a node that is to join a cluster, without reading the file of the
    /// secret.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn check_joining(&self) -> Result<(), String> {
        self.check_one_secret()?;
        match self.cluster.iter().any(|url| !url.trim().is_empty()) {
            true => Err("--join and --cluster are both set: a node that joins learns the members from the cluster, so leave \
                         --cluster out; to start a new cluster, leave --join out"
                .to_owned()),
            false => Ok(()),
        }
    }

    /// The address at which the members of the cluster reach the node, which is to join it.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn joining_own(&self) -> Result<String, String> {
        self.check_joining()?;
        if let Some(url) = self.self_url {
            return url
                .parse::<NodeUrl>()
                .map(|own| own.to_string())
                .map_err(|error| format!("--self-url: {error}"));
        }
        let host = self.listen.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_any = host.is_empty() || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let own = format!("http://{}", self.listen).parse::<NodeUrl>().ok().filter(|_| !is_any);
        own.map(|own| own.to_string()).ok_or_else(|| {
            format!(
                "--listen {} does not tell by which address the members of the cluster reach this node; set --self-url to it",
                self.listen
            )
        })
    }

    /// The secret of a node that listens on `addresses` and is to join a cluster.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn joining_secret(&self, addresses: &[IpAddr]) -> Result<Option<String>, String> {
        let secret = self.secret()?;
        self.check_exposed(true, secret.as_deref(), addresses, &mut Vec::new())?;
        Ok(secret)
    }

    fn check_one_secret(&self) -> Result<(), String> {
        match (self.secret, self.secret_file) {
            (Some(_), Some(_)) => {
                Err("--cluster-secret and --cluster-secret-file are both set; leave one of them out"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Resolves the settings of a node that listens on `addresses`.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn resolve(&self, addresses: &[IpAddr]) -> Result<Cluster, String> {
        let nodes = self.nodes()?;
        let mut warnings = Vec::new();
        let mut moved_to = None;
        let (membership, self_name) = match self.directory {
            DirectoryCluster::Recorded(recorded) => (recorded.clone(), self.recorded_own(recorded)?),
            DirectoryCluster::Named(recorded) => {
                let own = recorded.own.clone().unwrap_or_default();
                moved_to = self.moved_to(recorded, &own, &nodes)?;
                warnings.extend(self.unstated_address(&own, moved_to.as_deref()));
                (recorded.clone(), own)
            }
            DirectoryCluster::New | DirectoryCluster::Listed(_) => self.listed(&nodes)?,
        };
        let default_from = membership.default_from.unwrap_or(1);
        let membership = Membership { own: None, default_from: None, ..membership };
        let secret = self.secret()?;
        self.check_exposed(membership.has_peers(), secret.as_deref(), addresses, &mut warnings)?;
        let listed = nodes.iter().map(ToString::to_string).collect();
        Ok(Cluster { membership, self_name, moved_to, listed, default_from, secret, warnings })
    }

    /// The cluster of `--cluster`, which lists `nodes`, and the address of this node in it.
    fn listed(&self, nodes: &[NodeUrl]) -> Result<(Membership, String), String> {
        let own = self.own(nodes)?;
        let default_from = self.default_from(nodes.len().max(1) as u8)?;
        let membership = Membership::of(nodes.iter().map(ToString::to_string).collect());
        Ok((Membership { default_from: Some(default_from), ..membership }, own.to_string()))
    }

    /// The address at which the member `own` of the layout record is reached, if it is another one
    /// now: that of `--self-url`, or the listed one that `--listen` names.
    fn moved_to(
        &self,
        recorded: &Membership,
        own: &str,
        nodes: &[NodeUrl],
    ) -> Result<Option<String>, String> {
        let stated = match self.self_url {
            Some(url) => Some(url.parse::<NodeUrl>().map_err(|error| format!("--self-url: {error}"))?),
            None => format!("http://{}", self.listen).parse().ok().filter(|url| nodes.contains(url)),
        };
        let Some(stated) = stated.map(|url| url.to_string()).filter(|url| url != own) else {
            return Ok(None);
        };
        if recorded.nodes.contains(&stated) {
            return Err(format!(
                "the data directory belongs to the node {own}, and {stated} is the address of another member of its cluster: \
                 start it with --self-url {own} or with a new address of its own, or use another --data. If two nodes exchange \
                 their addresses, move one of them to a third address first: docs/operations.md says how"
            ));
        }
        Ok(Some(stated))
    }

    /// Warns of a definite address in `--listen` that is neither `own`, the one of the layout
    /// record, nor stated to the peers.
    fn unstated_address(&self, own: &str, moved_to: Option<&str>) -> Option<String> {
        if self.self_url.is_some() || moved_to.is_some() {
            return None;
        }
        let (host, port) = self.listen.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_any = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let listen = format!("http://{}", self.listen).parse::<NodeUrl>().ok()?.to_string();
        if is_any || port == "0" || listen == own {
            return None;
        }
        Some(format!(
            "This node listens on {}, and the layout record has it at {own}, where its peers dial it. If it has moved, set \
             --self-url to the address at which they reach it; if {own} leads here, set --self-url {own}.",
            self.listen
        ))
    }

    /// This node's address among the members of the layout record.
    fn recorded_own(&self, recorded: &Membership) -> Result<String, String> {
        let listen = format!("http://{}", self.listen).parse::<NodeUrl>().ok();
        match (self.self_url, &recorded.nodes[..]) {
            (Some(url), [alone]) if url.parse::<NodeUrl>().is_ok_and(|own| own.to_string() != *alone) => {
                Err(format!(
                    "the data directory belongs to the node {alone}, not to {url}: start it with --self-url {alone} or \
                     without it, or use another --data"
                ))
            }
            (_, [alone]) => Ok(alone.clone()),
            (_, []) => Ok(listen.unwrap_or_else(NodeUrl::unspecified).to_string()),
            (Some(url), _) => url
                .parse::<NodeUrl>()
                .map(|own| own.to_string())
                .map_err(|error| format!("--self-url: {error}")),
            (None, members) => {
                let listen =
                    listen.map(|listen| listen.to_string()).filter(|listen| members.contains(listen));
                listen.or_else(|| recorded.own.clone()).ok_or_else(|| {
                    format!("set --self-url to the address of this node in the cluster {}", members.join(","))
                })
            }
        }
    }

    /// Refuses a node with peers that other machines reach and that has no secret, or too short a
    /// one. Adds warnings for other weaknesses.
    fn check_exposed(
        &self,
        has_peers: bool,
        secret: Option<&str>,
        addresses: &[IpAddr],
        warnings: &mut Vec<String>,
    ) -> Result<(), String> {
        let exposed = addresses.iter().find(|address| !address.is_loopback());
        if let (true, None, Some(address)) = (has_peers, secret, exposed) {
            return Err(format!(
                "this node listens on {address}, where anyone who can connect to it could pose as a node of the cluster; \
                 set --cluster-secret or --cluster-secret-file to the same text on all nodes, or listen on 127.0.0.1"
            ));
        }
        if let Some(secret) = secret {
            self.check_secret(secret.len(), exposed, warnings)?;
        } else if let Some(address) = exposed {
            warnings.push(format!(
                "This node listens on {address} without a secret: anyone who can connect to it can read, write and delete \
                 everything. Listen on 127.0.0.1, or put it behind a proxy or a firewall."
            ));
        }
        Ok(())
    }

    /// Refuses a secret of `len` bytes that is too short for a new node. Adds warnings for other
    /// weaknesses.
    fn check_secret(
        &self,
        len: usize,
        exposed: Option<&IpAddr>,
        warnings: &mut Vec<String>,
    ) -> Result<(), String> {
        if len < SECRET_BYTES_MIN {
            let is_new = *self.directory == DirectoryCluster::New;
            if exposed.is_some() && is_new && !self.allow_short_secret {
                return Err(format!(
                    "the cluster's secret has {len} bytes, and a new node that listens beyond loopback needs one of at least \
                     {SECRET_BYTES_MIN}: anyone who can connect to a node can guess shorter ones. Make one with: openssl rand -hex 32. \
                     If this node replaces a lost one of a cluster that has this secret already, add --allow-short-secret"
                ));
            }
            warnings.push(format!(
                "The cluster's secret has {len} bytes: anyone who can connect to a node can guess secrets of less than \
                 {SECRET_BYTES_MIN}. Make a longer one (openssl rand -hex 32) and restart all nodes with it together."
            ));
        }
        if let Some(file) = self.secret_file.filter(|file| is_readable_by_all(file)) {
            warnings.push(format!(
                "Every user of this machine may read the cluster's secret: chmod o-rwx {}",
                stdx::shell_path(file)
            ));
        }
        Ok(())
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
                // The system chooses the port, and a single node needs no known address.
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
        match self.default_from.unwrap_or_else(|| self.directory.default_from(nodes)) {
            from if (1..=nodes).contains(&from) => Ok(from),
            from => Err(format!(
                "--default-from is {from}, but a key is held by at least 1 node and at most all {nodes} of --cluster"
            )),
        }
    }

    /// The secret of the cluster.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn secret(&self) -> Result<Option<String>, String> {
        self.check_one_secret()?;
        let secret = match (self.secret, self.secret_file) {
            (None, None) => return Ok(None),
            (Some(secret), _) => secret.0.clone(),
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

fn is_readable_by_all(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.mode() & OTHERS_READ != 0)
}

/// The text of a file, without trailing line ends.
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
        directory: &DirectoryCluster::New,
        allow_short_secret: false,
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
    fn a_single_node_needs_no_settings() {
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
            let secret = SecretText("s".repeat(SECRET_BYTES_MIN));
            let closed = ClusterSettings { secret: Some(&secret), ..open }.resolve(&[LOOPBACK, address]);
            assert_eq!(closed.map(|cluster| cluster.secret), Ok(Some(secret.0)));
        }
    }

    #[test]
    fn a_short_secret_is_refused_where_a_node_is_new_and_can_be_reached_and_warned_of_elsewhere() {
        let cluster = urls("http://a:1,http://b:1");
        let (short, long) = (SecretText("x".repeat(15)), SecretText("x".repeat(16)));
        let new = ClusterSettings { cluster: &cluster, listen: "a:1", secret: Some(&short), ..ALONE };
        let refusal = new.resolve(&[ANYWHERE]).expect_err("it is short");
        assert!(refusal.contains("15 bytes") && refusal.contains("--allow-short-secret"), "{refusal}");
        let warnings_of = |settings: ClusterSettings<'_>, address| {
            settings.resolve(&[address]).expect("it starts").warnings.join(" ")
        };
        let listed = DirectoryCluster::Listed(Membership::of(cluster.clone()));
        let existing = ClusterSettings { directory: &listed, ..new };
        let allowed = ClusterSettings { allow_short_secret: true, ..new };
        for warnings in
            [warnings_of(new, LOOPBACK), warnings_of(existing, ANYWHERE), warnings_of(allowed, ANYWHERE)]
        {
            assert!(warnings.contains("has 15 bytes"), "{warnings}");
        }
        assert_eq!(warnings_of(ClusterSettings { secret: Some(&long), ..new }, ANYWHERE), "");
    }

    #[test]
    fn a_node_open_to_every_machine_is_warned_of() {
        assert_eq!(ALONE.resolve(&[LOOPBACK]).expect("alone").warnings, [""; 0]);
        let warnings = ALONE.resolve(&[ANYWHERE]).expect("alone").warnings;
        assert!(warnings[0].contains("anyone who can connect to it can read"), "{warnings:?}");
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
        let secret = SecretText("s".to_owned());
        let both = ClusterSettings { secret: Some(&secret), secret_file: Some(&file), ..ALONE };
        assert!(both.resolve(&[]).unwrap_err().contains("both set"));
        std::fs::remove_file(&file).unwrap();
        let gone = ClusterSettings { secret_file: Some(&file), ..ALONE }.resolve(&[]).unwrap_err();
        assert!(gone.contains(&file.display().to_string()), "{gone}");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn invalid_cluster_settings_are_refused_with_a_sentence() {
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
            (ClusterSettings { secret: Some(&SecretText(String::new())), ..ALONE }, "empty"),
        ];
        for (settings, says) in cases {
            let refusal = settings.resolve(&[LOOPBACK]).expect_err(says);
            assert!(refusal.contains(says), "{says:?} is not in {refusal}");
        }
    }

    #[test]
    fn the_default_of_replicas_is_chosen_once_and_3_at_most_unless_it_is() {
        let five = urls("http://a:1,http://b:1,http://c:1,http://d:1,http://e:1");
        let listed = DirectoryCluster::Listed(Membership::of(five.clone()));
        let new = DirectoryCluster::New;
        for (directory, chosen, expected) in [
            (&new, None, 3),
            (&new, Some(1), 1),
            (&new, Some(5), 5),
            (&listed, None, 5),
            (&listed, Some(3), 3),
        ] {
            let settings =
                ClusterSettings { cluster: &five, listen: "a:1", default_from: chosen, directory, ..ALONE };
            let resolved = settings.resolve(&[LOOPBACK]).map(|cluster| cluster.default_from);
            assert_eq!(resolved, Ok(expected), "{directory:?}, {chosen:?}");
        }
    }

    fn recorded(nodes: &[&str], own: Option<&str>, default_from: u8) -> DirectoryCluster {
        let membership = Membership::of(nodes.iter().map(ToString::to_string).collect());
        let own = own.map(str::to_owned);
        DirectoryCluster::Recorded(Membership { own, default_from: Some(default_from), ..membership })
    }

    #[test]
    fn a_layout_record_counts_and_not_the_list_or_the_default_of_replicas() {
        let directory = recorded(&["http://a:1", "http://b:1"], Some("http://b:1"), 2);
        let with = ClusterSettings { listen: "b:1", directory: &directory, ..ALONE };
        let (same, other) = (urls("http://b:1,http://a:1"), urls("http://x:1,http://y:1,http://z:1"));
        for (cluster, chosen) in [(&Vec::new(), None), (&same, Some(2)), (&other, None), (&same, Some(9))] {
            let settings = ClusterSettings { cluster, default_from: chosen, ..with };
            assert_eq!(settings.check(), Ok(()));
            let resolved = settings.resolve(&[LOOPBACK]).expect("the record is enough");
            assert_eq!(resolved.membership, Membership::of(same.clone()));
            assert_eq!((resolved.self_name.as_str(), resolved.default_from), ("http://b:1", 2));
            assert_eq!((&resolved.listed, resolved.warnings), (cluster, Vec::new()));
        }
        let refusal = with.resolve(&[ANYWHERE]).expect_err("the record has peers, and there is no secret");
        assert!(refusal.contains("--cluster-secret"), "{refusal}");
    }

    #[test]
    fn a_node_whose_id_the_record_names_may_be_reached_at_another_address() {
        let DirectoryCluster::Recorded(membership) =
            recorded(&["http://a:1", "http://b:1"], Some("http://b:1"), 2)
        else {
            unreachable!("it is recorded")
        };
        let named = DirectoryCluster::Named(membership);
        let none = Vec::new();
        let listed = urls("http://a:1,http://b:2,http://x:1");
        let own = |cluster, listen, self_url| {
            let settings = ClusterSettings { cluster, listen, self_url, directory: &named, ..ALONE };
            assert_eq!(settings.check(), Ok(()));
            settings.resolve(&[LOOPBACK])
        };
        for (cluster, listen, self_url, moved_to) in [
            (&none, "b:1", None, None),
            (&none, "b:2", None, None),
            (&none, "b:2", Some("http://b:1"), None),
            (&none, "127.0.0.1:0", Some("http://b:2"), Some("http://b:2")),
            (&listed, "b:2", None, Some("http://b:2")),
            (&listed, "c:1", None, None),
        ] {
            let resolved = own(cluster, listen, self_url).expect("it starts");
            assert_eq!(resolved.self_name, "http://b:1");
            assert_eq!(resolved.moved_to.as_deref(), moved_to);
            assert_eq!(resolved.listed, *cluster);
        }
        let refusal = own(&none, "a:1", Some("http://a:1")).expect_err("it is the address of another member");
        assert!(refusal.contains("start it with --self-url http://b:1"), "{refusal}");
        assert!(refusal.contains("move one of them to a third address first"), "{refusal}");
        for (listen, self_url, is_warned) in [
            ("b:1", None, false),
            ("b:2", Some("http://b:2"), false),
            ("b:2", Some("http://b:1"), false),
            ("0.0.0.0:1", None, false),
            ("[::]:1", None, false),
            ("127.0.0.1:0", None, false),
            ("b:2", None, true),
        ] {
            let warnings = own(&none, listen, self_url).expect("it starts").warnings;
            let warns = warnings.iter().any(|told| told.contains("If it has moved, set --self-url"));
            assert_eq!(warns, is_warned, "{listen} {self_url:?}: {warnings:?}");
        }
    }

    #[test]
    fn a_node_knows_its_address_in_the_layout_record() {
        let own = |directory: &DirectoryCluster, listen, self_url| {
            let settings = ClusterSettings { listen, self_url, directory, ..ALONE };
            settings.resolve(&[LOOPBACK]).map(|cluster| cluster.self_name)
        };
        let known = recorded(&["http://a:1", "http://b:1"], Some("http://b:1"), 2);
        assert_eq!(own(&known, "127.0.0.1:0", None).as_deref(), Ok("http://b:1"));
        assert_eq!(own(&known, "a:1", None).as_deref(), Ok("http://a:1"), "the store refuses another node");
        assert_eq!(own(&known, "b:1", Some("http://a:1")).as_deref(), Ok("http://a:1"));
        let unknown = recorded(&["http://a:1", "http://b:1"], None, 2);
        assert!(own(&unknown, "127.0.0.1:0", None).unwrap_err().contains("set --self-url"));
        let alone = recorded(&[], None, 1);
        assert_eq!(own(&alone, "127.0.0.1:7", None).as_deref(), Ok("http://127.0.0.1:7"));
    }
}
