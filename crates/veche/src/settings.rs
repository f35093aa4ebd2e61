//! Settings of a node: from flags, environment variables and a file, in this order of precedence.
//!
//! One struct serves all three: clap fills it from flags and `VECHE_...` variables, serde from a
//! TOML file whose keys are the names of the flags. [`Settings::resolve`] applies the defaults.

use crate::cluster_settings::{Cluster, ClusterSettings, SecretText};
use crate::logging::{self, LogFormat};
use crate::node_url::NodeUrl;
use crate::quantity::{AtLeastOne, Replicas, Size, Span};
use clap::ValueEnum;
use env::Env;
use serde::Deserialize;
use server::{Config, FileShares, Limits};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::{DirectoryCluster, JoinRequest};

/// The most I/O threads.
const THREADS_MAX: usize = 255;
const LISTEN_DEFAULT: &str = "127.0.0.1:8080";
pub(crate) const DATA_DEFAULT: &str = "./veche-data";
const LOG_DEFAULT: &str = "info";
const SCRUB_PERIOD_DEFAULT: Duration = Duration::from_secs(7 * 24 * 3600);
const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Upper bound for `--request-timeout`. A request of that age holds its memory all the time.
const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Far above the duration of a request on a healthy disk and cluster, far below its timeout.
const SLOW_REQUEST_DEFAULT: Duration = Duration::from_millis(100);
const ZSTD_LEVEL: i32 = 3;
/// The default for `--memory` is 1 / `MEMORY_SHARE` of the memory of the machine or control group.
const MEMORY_SHARE: u64 = 4;
/// Upper bound for the default of `--memory`, in bytes.
const MEMORY_BYTES_DEFAULT_MAX: u64 = 2 << 30;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Lower bound for the memory of the store, in bytes.
const STORE_MEMORY_BYTES_MIN: u64 = 16 << 20;
/// `--value-max` is at most 1 / `VALUE_MEMORY_SHARE` of the memory budget.
const VALUE_MEMORY_SHARE: u64 = 4;
/// Upper bound for `--value-max`, in bytes.
const VALUE_BYTES_LIMIT: u64 = 64 << 20;

/// Settings of a node, each `None` if not set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// Address to listen on; without a host, as in :8080, all addresses; port 0 takes any free one
    /// [default: 127.0.0.1:8080]
    #[arg(long, env = "VECHE_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Data directory; created if missing [default: ./veche-data]
    #[arg(long, env = "VECHE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// All nodes of the cluster as http://host:port, including this one; without it, the node is a
    /// single node
    #[arg(long, env = "VECHE_CLUSTER", value_name = "URL,URL,...", value_delimiter = ',')]
    #[serde(deserialize_with = "list_or_text")]
    cluster: Option<Vec<String>>,
    /// This node's address in --cluster [default: http:// and --listen]
    #[arg(long, env = "VECHE_SELF_URL", value_name = "URL")]
    #[serde(alias = "self_url")]
    self_url: Option<String>,
    /// Number of nodes that store a key if a request has no parameter `from`; only the first start
    /// uses it, the layout record keeps it [default: 3, or all of fewer nodes]
    #[arg(long, env = "VECHE_DEFAULT_FROM", value_name = "N")]
    #[serde(alias = "default_from")]
    default_from: Option<Replicas>,
    /// The cluster is new: a majority of new nodes serves without waiting for the others. Only for
    /// the first start. Remove it afterwards: with it, a node whose directory was emptied would not
    /// wait for the nodes that store its data
    #[arg(
        long,
        env = "VECHE_NEW_CLUSTER",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    #[serde(alias = "new_cluster")]
    new_cluster: Option<bool>,
    /// A member of the cluster that this node joins, as http://host:port; only a node with an empty
    /// data directory uses it
    #[arg(long, env = "VECHE_JOIN", value_name = "URL")]
    join: Option<String>,
    /// Failure domain of a node that joins [default: none]
    #[arg(long, env = "VECHE_ZONE", value_name = "NAME")]
    zone: Option<String>,
    /// Relative share of the data of a node that joins [default: 1]
    #[arg(long, env = "VECHE_WEIGHT", value_name = "N")]
    weight: Option<NonZeroU16>,
    /// Secret that authenticates nodes to each other; the same on all nodes. Required if a cluster
    /// listens beyond loopback
    #[arg(long, env = "VECHE_CLUSTER_SECRET", value_name = "TEXT", hide_env_values = true)]
    #[serde(alias = "cluster_secret")]
    cluster_secret: Option<SecretText>,
    /// File with the secret, which keeps it out of the process list
    #[arg(long, env = "VECHE_CLUSTER_SECRET_FILE", value_name = "FILE")]
    #[serde(alias = "cluster_secret_file")]
    cluster_secret_file: Option<PathBuf>,
    /// Accept a secret of less than 16 bytes on a new node, which replaces a lost one of a cluster
    /// that already has this secret
    #[arg(
        long,
        env = "VECHE_ALLOW_SHORT_SECRET",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    #[serde(alias = "allow_short_secret")]
    allow_short_secret: Option<bool>,
    /// Additional address for other nodes; --listen serves them too [default: none]
    #[arg(long, env = "VECHE_PEER_LISTEN", value_name = "HOST:PORT")]
    #[serde(alias = "peer_listen")]
    peer_listen: Option<String>,
    /// Action after an absence in which peers may have purged deletes: rebuild (other nodes ran:
    /// move the data aside and copy theirs) or keep (no node ran) [default: refuse to start]
    #[arg(long, env = "VECHE_AFTER_ABSENCE")]
    #[serde(alias = "after_absence")]
    after_absence: Option<AfterAbsence>,
    /// Memory budget for memtables, caches, requests and answers together
    /// [default: a quarter of the machine's memory, at most 2GiB]
    #[arg(long, env = "VECHE_MEMORY", value_name = "SIZE")]
    memory: Option<Size>,
    /// When a write is acknowledged: after fdatasync (sync), or after the write system call (os)
    /// [default: sync]
    #[arg(long, env = "VECHE_DURABILITY")]
    durability: Option<Durability>,
    /// I/O threads, at most 255 [default: one for each core]
    #[arg(long, env = "VECHE_THREADS", value_name = "N")]
    threads: Option<AtLeastOne>,
    /// Timeout of a request, counted from its last byte, at most 1h [default: 1s]
    #[arg(long, env = "VECHE_REQUEST_TIMEOUT", value_name = "TIME")]
    #[serde(alias = "request_timeout")]
    request_timeout: Option<Span>,
    /// Requests that take at least TIME are logged with the time of each stage; 0s disables this
    /// [default: 100ms]
    #[arg(long, env = "VECHE_SLOW_REQUEST", value_name = "TIME")]
    #[serde(alias = "slow_request")]
    slow_request: Option<Span>,
    /// Maximum size of a value [default: 16MiB]
    #[arg(long, env = "VECHE_VALUE_MAX", value_name = "SIZE")]
    #[serde(alias = "value_max")]
    value_max: Option<Size>,
    /// Time after SIGTERM during which connections are still accepted [default: 0s]
    #[arg(long, env = "VECHE_DRAIN_DELAY", value_name = "TIME")]
    #[serde(alias = "drain_delay")]
    drain_delay: Option<Span>,
    /// Maximum age of a range's snapshot; a longer range continues on a new one. This bounds the
    /// overwritten and deleted data that a slow reader keeps on disk [default: 60s]
    #[arg(long, env = "VECHE_SNAPSHOT_AGE", value_name = "TIME")]
    #[serde(alias = "snapshot_age")]
    snapshot_age: Option<Span>,
    /// Period in which all tables are read and verified in the background; 0s disables this
    /// [default: 168h]
    #[arg(long, env = "VECHE_SCRUB_PERIOD", value_name = "TIME")]
    #[serde(alias = "scrub_period")]
    scrub_period: Option<Span>,
    /// Whether requests are measured for GET /metrics [default: on]
    #[arg(long, env = "VECHE_METRICS")]
    metrics: Option<Switch>,
    /// Compression of data on disk [default: lz4]
    #[arg(long, env = "VECHE_COMPRESSION")]
    compression: Option<Compression>,
    /// Format of the log [default: text]
    #[arg(long, env = "VECHE_LOG_FORMAT")]
    #[serde(alias = "log_format")]
    log_format: Option<LogFormat>,
    /// Log level: off, error, warn, info, debug or trace, and directives such as engine=debug
    /// [default: info]
    #[arg(long, env = "VECHE_LOG", value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AfterAbsence {
    Refuse,
    Rebuild,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Durability {
    Sync,
    Os,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Compression {
    Lz4,
    Zstd,
    None,
}

/// The address of a member, in the form of layout records.
fn member_url(text: &str) -> Result<String, String> {
    text.parse::<NodeUrl>().map(|url| url.to_string()).map_err(|error| format!("--join: {error}"))
}

impl Settings {
    /// Reads settings from a TOML file.
    ///
    /// # Errors
    /// A sentence: the file cannot be read, is not TOML, or has an unknown key or invalid value.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read --config {}: {error}", file.display()))?;
        Self::parse(&text).map_err(|error| format!("--config {}, {error}", file.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            // The toml crate speaks of variants and fields of Rust types.
            let message = error.message().replace('\n', ", ");
            let message = message.replace("unknown variant", "unknown value");
            let message = message.replace("unknown field", "unknown setting");
            format!("line {}: {message}; correct or remove that line", before.matches('\n').count() + 1)
        })
    }

    /// These settings, with those of `other` for all that are not set.
    pub(crate) fn or(self, other: Self) -> Self {
        // Two forms of one setting: either form overrides both forms in `other`.
        let (cluster_secret, cluster_secret_file) = match (self.cluster_secret, self.cluster_secret_file) {
            (None, None) => (other.cluster_secret, other.cluster_secret_file),
            said => said,
        };
        Self {
            listen: self.listen.or(other.listen),
            data: self.data.or(other.data),
            cluster: self.cluster.or(other.cluster),
            self_url: self.self_url.or(other.self_url),
            default_from: self.default_from.or(other.default_from),
            new_cluster: self.new_cluster.or(other.new_cluster),
            join: self.join.or(other.join),
            zone: self.zone.or(other.zone),
            weight: self.weight.or(other.weight),
            after_absence: self.after_absence.or(other.after_absence),
            cluster_secret,
            cluster_secret_file,
            allow_short_secret: self.allow_short_secret.or(other.allow_short_secret),
            peer_listen: self.peer_listen.or(other.peer_listen),
            memory: self.memory.or(other.memory),
            durability: self.durability.or(other.durability),
            threads: self.threads.or(other.threads),
            request_timeout: self.request_timeout.or(other.request_timeout),
            slow_request: self.slow_request.or(other.slow_request),
            value_max: self.value_max.or(other.value_max),
            drain_delay: self.drain_delay.or(other.drain_delay),
            snapshot_age: self.snapshot_age.or(other.snapshot_age),
            scrub_period: self.scrub_period.or(other.scrub_period),
            metrics: self.metrics.or(other.metrics),
            compression: self.compression.or(other.compression),
            log_format: self.log_format.or(other.log_format),
            log: self.log.or(other.log),
        }
    }

    /// The format and filter of the log.
    pub(crate) fn logging(&self) -> (LogFormat, &str) {
        (self.log_format.unwrap_or_default(), self.log.as_deref().unwrap_or(LOG_DEFAULT))
    }

    /// Checks each setting by itself, without looking at the machine.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn check_values(&self) -> Result<(), String> {
        check_address("--listen", self.listen.as_deref().unwrap_or(LISTEN_DEFAULT))?;
        self.peer_listen.as_deref().map_or(Ok(()), |text| check_address("--peer-listen", text))?;
        logging::check_filter(self.logging().1)?;
        if let Some(Size(bytes)) = self.memory {
            check_memory(bytes)?;
        }
        self.check_value_max()?;
        if let Some(Size(memory_bytes)) = self.memory {
            self.value_bytes_max(memory_bytes)?;
        }
        self.check_threads()?;
        self.check_zone()?;
        self.check_request_timeout()
    }

    fn check_zone(&self) -> Result<(), String> {
        match self.zone.as_deref() {
            Some(zone) if zone.len() > cluster::ZONE_BYTES_MAX || zone.contains(char::is_control) => {
                Err(format!("--zone is one line of at most {} bytes", cluster::ZONE_BYTES_MAX))
            }
            _ => Ok(()),
        }
    }

    /// Checks the settings of the cluster against each other and the data directory.
    ///
    /// # Errors
    /// A sentence about the invalid settings.
    pub(crate) fn check_cluster(&self) -> Result<(), String> {
        let listen = self.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
        // An unreadable directory is reported once all settings are known.
        let directory = self.directory().unwrap_or(DirectoryCluster::New);
        let settings = self.cluster_settings(listen, &directory);
        match self.has_to_join(&directory) {
            Ok(true) => settings.check_joining(),
            _ => settings.check(),
        }
    }

    /// Whether the node is to be made a member of a cluster, or an earlier start has begun that.
    fn has_to_join(&self, directory: &DirectoryCluster) -> Result<bool, String> {
        let is_new = *directory == DirectoryCluster::New;
        Ok(is_new && (self.join.is_some() || self.unfinished_join()?.is_some()))
    }

    fn unfinished_join(&self) -> Result<Option<JoinRequest>, String> {
        JoinRequest::unfinished(&Env::os(), &self.data()).map_err(|error| error.to_string())
    }

    /// Makes the node a member of the cluster that it is to join, unless its data directory belongs
    /// to that cluster already.
    ///
    /// # Errors
    /// A sentence: an invalid setting, or the reason why the node is no member.
    pub(crate) fn join(&self) -> Result<(), String> {
        self.check_values()?;
        let directory = self.directory()?;
        let listen = self.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
        let settings = self.cluster_settings(listen, &directory);
        if !self.has_to_join(&directory)? {
            let Some(member) = &self.join else { return Ok(()) };
            let member = member_url(member)?;
            let secret = settings.secret()?;
            server::check_cluster(&Env::os(), &self.data(), &member, secret.as_deref())
                .map_err(|error| error.to_string())?;
            tracing::info!(member, "--join has no effect: the data directory belongs to a cluster already");
            return Ok(());
        }
        settings.check_joining()?;
        let unfinished = self.unfinished_join()?;
        let earlier = |field: fn(JoinRequest) -> String| unfinished.clone().map(field);
        let member = match &self.join {
            Some(member) => member_url(member)?,
            None => earlier(|request| request.member).unwrap_or_default(),
        };
        let stated = self.self_url.is_some() || unfinished.is_none();
        let mut addresses = vec![resolve_address("--listen", listen)?.ip()];
        if let Some(text) = &self.peer_listen {
            addresses.push(resolve_address("--peer-listen", text)?.ip());
        }
        let own = match earlier(|request| request.own).filter(|_| !stated) {
            Some(own) => own,
            None => settings.joining_own()?,
        };
        let secret = settings.joining_secret(&addresses)?;
        let request = JoinRequest {
            member,
            own,
            zone: self.zone.clone().or_else(|| earlier(|request| request.zone)).unwrap_or_default(),
            weight: self
                .weight
                .map_or_else(|| unfinished.as_ref().map_or(1, |request| request.weight), NonZeroU16::get),
        };
        let level_max = cluster::FEATURE_LEVEL_MAX_DEFAULT;
        server::join(&Env::os(), &self.data(), &request, secret.as_deref(), level_max)
            .map_err(|error| error.to_string())
    }

    fn data(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| PathBuf::from(DATA_DEFAULT))
    }

    /// The cluster that the data directory belongs to.
    fn directory(&self) -> Result<DirectoryCluster, String> {
        DirectoryCluster::find(&Env::os(), &self.data()).map_err(|error| error.to_string())
    }

    fn check_value_max(&self) -> Result<(), String> {
        match self.value_max {
            Some(Size(0)) => Err("--value-max must be at least 1 byte: no value could be stored".to_owned()),
            Some(Size(bytes)) if bytes > VALUE_BYTES_LIMIT => {
                Err(format!("--value-max must be at most {VALUE_BYTES_LIMIT} bytes (64MiB), not {bytes}"))
            }
            _ => Ok(()),
        }
    }

    fn check_threads(&self) -> Result<(), String> {
        match self.threads {
            Some(threads) if threads.get() > THREADS_MAX => {
                Err(format!("--threads is at most {THREADS_MAX}"))
            }
            _ => Ok(()),
        }
    }

    fn check_request_timeout(&self) -> Result<(), String> {
        match self.request_timeout {
            Some(Span(time)) if time.is_zero() => Err("--request-timeout must be longer than 0".to_owned()),
            Some(Span(time)) if time > REQUEST_TIMEOUT_MAX => {
                Err(format!("--request-timeout must be at most 1h, not {time:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The configuration of the node on this machine.
    ///
    /// # Errors
    /// A sentence about the invalid setting.
    pub(crate) fn resolve(&self, machine: &MachineProperties) -> Result<Config, String> {
        self.check_values()?;
        let listen_text = self.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
        let listen = resolve_address("--listen", listen_text)?;
        let peer_listen = self.peer_listen.as_deref();
        let peer_listen = peer_listen.map(|text| resolve_address("--peer-listen", text)).transpose()?;
        let addresses: Vec<_> = [listen].into_iter().chain(peer_listen).map(|address| address.ip()).collect();
        let directory = self.directory()?;
        let Cluster { membership, self_name, moved_to, listed, default_from, secret, warnings } =
            self.cluster_settings(listen_text, &directory).resolve(&addresses)?;
        let memory_bytes = self.memory_bytes(machine)?;
        let value_bytes_max = self.value_bytes_max(memory_bytes)?;
        let threads = self.threads.map_or(machine.cores.min(THREADS_MAX), AtLeastOne::get);
        let files = FileShares::of(machine.files_max, membership.nodes.len(), threads)
            .map_err(|error| error.to_string())?;
        if machine.files_max < files.wanted {
            tracing::warn!(
                files_max = machine.files_max,
                wanted = files.wanted,
                connections_max = files.connections_max,
                "the limit of open files is low: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
            );
        }
        let limits = Limits {
            handshakes_max: files.handshakes_max,
            ..Limits::for_process(files.connections_max, memory_bytes, value_bytes_max)
        };
        let store_bytes = memory_bytes.saturating_sub(limits.memory_bytes).max(STORE_MEMORY_BYTES_MIN);
        let request_timeout = self.request_timeout.map_or(REQUEST_TIMEOUT_DEFAULT, |span| span.0);
        Ok(Config {
            listen,
            data: self.data(),
            peer_listen,
            membership,
            self_name,
            moved_to,
            listed,
            default_from,
            default_from_flag: self.default_from.map(|Replicas(nodes)| nodes),
            new_cluster: self.new_cluster.unwrap_or_default(),
            after_absence: match self.after_absence {
                None | Some(AfterAbsence::Refuse) => store::AfterAbsence::Refuse,
                Some(AfterAbsence::Rebuild) => store::AfterAbsence::Rebuild,
                Some(AfterAbsence::Keep) => store::AfterAbsence::Keep,
            },
            secret,
            engine: self.engine_options(store_bytes, files.tables_max),
            threads,
            request_timeout,
            slow_request: self.slow_request.map_or(SLOW_REQUEST_DEFAULT, |span| span.0),
            value_bytes_max,
            drain_delay: self.drain_delay.map_or(Duration::ZERO, |span| span.0),
            metrics: self.metrics != Some(Switch::Off),
            feature_level_max: cluster::FEATURE_LEVEL_MAX_DEFAULT,
            snapshot_age: self.snapshot_age.map_or(store::SNAPSHOT_AGE_DEFAULT, |span| span.0),
            limits,
            warnings,
        })
    }

    fn cluster_settings<'a>(
        &'a self,
        listen: &'a str,
        directory: &'a DirectoryCluster,
    ) -> ClusterSettings<'a> {
        ClusterSettings {
            cluster: self.cluster.as_deref().unwrap_or_default(),
            self_url: self.self_url.as_deref(),
            default_from: self.default_from.map(|Replicas(nodes)| nodes),
            secret: self.cluster_secret.as_ref(),
            secret_file: self.cluster_secret_file.as_ref(),
            listen,
            directory,
            allow_short_secret: self.allow_short_secret.unwrap_or_default(),
        }
    }

    fn memory_bytes(&self, machine: &MachineProperties) -> Result<u64, String> {
        let default = (machine.memory_bytes / MEMORY_SHARE).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT_MAX);
        let bytes = self.memory.map_or(default, |size| size.0);
        check_memory(bytes)?;
        if bytes > machine.memory_bytes {
            tracing::warn!(
                memory_bytes = bytes,
                machine_bytes = machine.memory_bytes,
                "--memory is more than the memory of this machine or its control group: the node may be killed for \
                 lack of memory; a quarter is the default"
            );
        }
        Ok(bytes)
    }

    fn value_bytes_max(&self, memory_bytes: u64) -> Result<usize, String> {
        let bytes = self.value_max.map_or(cluster::VALUE_BYTES_MAX_DEFAULT as u64, |size| size.0);
        if self.value_max.is_some() && bytes > memory_bytes / VALUE_MEMORY_SHARE {
            return Err(format!(
                "--value-max of {bytes} bytes is more than a quarter of --memory, {memory_bytes} bytes"
            ));
        }
        Ok(bytes as usize)
    }

    fn engine_options(&self, memory_bytes: u64, table_files_max: usize) -> engine::Options {
        engine::Options {
            durability: match self.durability {
                Some(Durability::Os) => engine::Durability::Os,
                Some(Durability::Sync) | None => engine::Durability::Sync,
            },
            compression: match self.compression {
                Some(Compression::None) => engine::Compression::None,
                Some(Compression::Zstd) => engine::Compression::Zstd(ZSTD_LEVEL),
                Some(Compression::Lz4) | None => engine::Compression::Lz4,
            },
            memory_bytes,
            table_files_max,
            scrub_period: match self.scrub_period {
                None => Some(SCRUB_PERIOD_DEFAULT),
                Some(Span(period)) => Some(period).filter(|period| !period.is_zero()),
            },
            ..engine::Options::default()
        }
    }
}

/// Deserializes a list of strings, or one string separated by commas.
fn list_or_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a list of addresses, or one text with commas between them")]
    enum ListOrText {
        List(Vec<String>),
        Text(String),
    }
    Ok(Some(match ListOrText::deserialize(deserializer)? {
        ListOrText::List(list) => list,
        ListOrText::Text(text) => text.split(',').map(|url| url.trim().to_owned()).collect(),
    }))
}

/// Properties of the machine that determine defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineProperties {
    pub(crate) memory_bytes: u64,
    pub(crate) cores: usize,
    pub(crate) files_max: u64,
}

fn check_memory(bytes: u64) -> Result<(), String> {
    match bytes {
        ..MEMORY_BYTES_MIN => Err(format!("--memory must be at least 16MiB, not {bytes} bytes")),
        _ => Ok(()),
    }
}

/// Refuses an address that is not `host:port` or `:port`. Names are not looked up.
fn check_address(flag: &str, text: &str) -> Result<(), String> {
    if let Some((_, address)) = text.split_once("://") {
        let address = address.trim_end_matches('/');
        return Err(format!("{flag} {text:?} is a URL; write host:port alone: {flag} {address}"));
    }
    let is_host_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || !byte.is_ascii() || b".-_:[]%".contains(&byte);
    match text.rsplit_once(':') {
        Some((host, _)) if !host.bytes().all(is_host_byte) => {
            Err(format!("{flag} {text:?} is not host:port: {host:?} is not the name or address of a host"))
        }
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(()),
        Some((_, port)) => Err(format!("{flag} {text:?}: {port:?} is not a port number")),
        None => Err(format!("{flag} {text:?} is not host:port")),
    }
}

fn resolve_address(flag: &str, text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|_| format!("{flag} {text:?}: {port:?} is not a port number"))?;
        return Ok(all_addresses(port));
    }
    let resolved =
        text.to_socket_addrs().map_err(|error| format!("{flag} {text:?} is not host:port: {error}"))?;
    resolved.into_iter().next().ok_or_else(|| format!("{flag} {text:?} names no address"))
}

/// The wildcard address of both families, or of IPv4 on a machine without IPv6.
fn all_addresses(port: u16) -> SocketAddr {
    let has_ipv6 = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if has_ipv6 { (Ipv6Addr::UNSPECIFIED, port).into() } else { (Ipv4Addr::UNSPECIFIED, port).into() }
}

#[cfg(test)]
mod tests;
