//! The contests of stores: reads from memory, static files, durable writes, writes held by the
//! operating system, three nodes.

use super::contest::{ComparisonRunner, Rival};
use super::etcd_load::EtcdLoad;
use super::others::{self, AppendOnly};
use super::report::Contest;
use super::side::{LoadSpec, Side};
use crate::BenchResult;
use crate::cost::compare_heads;
use crate::servers::Durability;
use crate::table::Threshold;
use bench::Operation;

const VALUE_BYTES: usize = 100;
const CONNECTIONS: usize = 64;
const MANY_CONNECTIONS: usize = 256;
/// Number of files that nginx keeps open.
const FILES: u64 = 4_096;
const NODES: usize = 3;
/// Memory budget of each node of a cluster.
const CLUSTER_MEMORY: &str = "512MiB";

const SYNCED: &str = "the write is synced";
const WITH_SYSTEM: &str = "the operating system has the write";
const LATEST: &str = "the latest value";

impl ComparisonRunner<'_> {
    /// Reads of all data from memory; and of a few values, compared with static files.
    pub(crate) fn reads(&self) -> BenchResult<Vec<Contest>> {
        let spec = self.spec(Operation::Get);
        let floor = Side::new("bare hyper", "a value of a map", vec![self.work_dir.floor(self.layout)?]);
        let ours = self.veche("veche", LATEST, "reads", Durability::Sync)?;
        let redis = self.redis("redis", LATEST, "redis-reads", AppendOnly::Always)?;
        let etcd = self.etcd("etcd, linearizable", LATEST, "etcd-reads", 1)?;
        let serializable = etcd
            .as_ref()
            .map(|etcd| etcd.promising("etcd, serializable", "what the node has").serializable());
        for side in [&floor, &ours].into_iter().chain(&redis).chain(&etcd) {
            side.preload(self.layout, spec)?;
        }
        compare_heads(&floor.servers[0], &ours.servers[0])?;
        let hyper = Rival::of(&floor).cpu(Threshold::AtLeast(0.9));
        let mut rivals = vec![hyper];
        rivals.extend([&redis, &serializable, &etcd].into_iter().flatten().map(Rival::of));
        let about = format!("uniform over {} keys with values of {VALUE_BYTES} B, in memory", self.keys);
        let many = LoadSpec { connections: MANY_CONNECTIONS, ..spec };
        let mut contests = vec![
            self.run_contest("GET, 64 connections", &about, spec, &ours, &rivals)?,
            self.run_contest("GET, 256 connections", &about, many, &ours, &[hyper])?,
        ];
        drop((redis, etcd, serializable));
        contests.extend(self.files(&ours)?);
        Ok(contests)
    }

    fn files(&self, ours: &Side) -> BenchResult<Option<Contest>> {
        let Some(tool) = &self.tools.nginx else { return Ok(None) };
        let keys = FILES.min(self.keys);
        let spec = LoadSpec { keys, ..self.spec(Operation::Get) };
        let server = others::nginx(self.work_dir, tool, self.layout, &self.data("nginx"), spec)?;
        let nginx = Side::new("nginx, static files", "the file's bytes", vec![server]);
        let about = format!("uniform over {keys} values of {VALUE_BYTES} B; nginx keeps their files open");
        self.run_contest("GET of few values, 64 connections", &about, spec, ours, &[Rival::of(&nginx)])
            .map(Some)
    }

    /// Writes that are synced before their response.
    pub(crate) fn durable_writes(&self) -> BenchResult<Contest> {
        let spec = self.spec(Operation::Put);
        let ours = self.veche("veche", SYNCED, "durable", Durability::Sync)?.syncing(1);
        let redis = self.redis("redis, AOF always", SYNCED, "redis-always", AppendOnly::Always)?;
        let etcd = self.etcd("etcd, one node", SYNCED, "etcd-durable", 1)?;
        let (redis, etcd) = (redis.map(|side| side.syncing(1)), etcd.map(|side| side.syncing(1)));
        for side in [&ours].into_iter().chain(&redis).chain(&etcd) {
            side.preload(self.layout, spec)?;
        }
        let redis = redis
            .as_ref()
            .map(|side| Rival::of(side).cpu(Threshold::AtLeast(1.0)).rate(Threshold::AtLeast(1.0)));
        let etcd = etcd.as_ref().map(|side| Rival::of(side).rate(Threshold::AtLeast(5.0)));
        let rivals: Vec<_> = redis.into_iter().chain(etcd).collect();
        let about = format!("uniform over {} keys, values of {VALUE_BYTES} B", self.keys);
        self.run_contest("durable PUT, 64 connections", &about, spec, &ours, &rivals)
    }

    /// Writes that survive the process but not the machine; and Redis without a log, which survives
    /// neither.
    pub(crate) fn system_writes(&self) -> BenchResult<Contest> {
        let spec = self.spec(Operation::Put);
        let ours = self.veche("veche --durability os", WITH_SYSTEM, "os", Durability::Os)?;
        let none =
            self.redis("redis, no AOF", "the process has the write", "redis-no-aof", AppendOnly::Off)?;
        let logged = self.redis("redis, AOF, appendfsync no", WITH_SYSTEM, "redis-os", AppendOnly::Os)?;
        for side in [&ours].into_iter().chain(&none).chain(&logged) {
            side.preload(self.layout, spec)?;
        }
        let least = Threshold::AtLeast(0.8);
        let none = none.as_ref().map(|side| Rival::of(side).cpu(least).rate(least));
        let rivals: Vec<_> = none.into_iter().chain(logged.as_ref().map(Rival::of)).collect();
        let about = format!("uniform over {} keys, values of {VALUE_BYTES} B", self.keys);
        self.run_contest("PUT, not synced, 64 connections", &about, spec, &ours, &rivals)
    }

    /// Three nodes each. The generators use one node: veche's first, and etcd's leader, which is
    /// its fastest.
    pub(crate) fn three_nodes(&self) -> BenchResult<Vec<Contest>> {
        let nodes = self.work_dir.cluster(
            &self.data("three"),
            NODES,
            self.layout,
            Durability::Sync,
            CLUSTER_MEMORY,
        )?;
        let ours = Side::new("veche, 2 of 3", "synced on two nodes", nodes).syncing(2);
        let etcd = self.etcd("etcd, three nodes", "synced on two nodes", "etcd-three", NODES)?;
        let etcd = etcd.map(|side| side.syncing(2));
        let spec = self.spec(Operation::Put);
        for side in [&ours].into_iter().chain(&etcd) {
            side.preload(self.layout, spec)?;
        }
        let rival = etcd.as_ref().map(|side| Rival::of(side).rate(Threshold::AtLeast(5.0)));
        let about = format!(
            "uniform over {} keys, values of {VALUE_BYTES} B; CPU of all three processes; one node is asked, etcd's leader",
            self.keys
        );
        let writes = self.run_contest(
            "three nodes: durable PUT, 64 connections",
            &about,
            spec,
            &ours,
            rival.as_slice(),
        )?;
        let ours = ours.promising("veche, 2 of 3", "the latest value of two nodes");
        let etcd = etcd.map(|side| side.promising("etcd, linearizable", LATEST));
        let rival = etcd.as_ref().map(Rival::of);
        let spec = self.spec(Operation::Get);
        let reads =
            self.run_contest("three nodes: GET, 64 connections", &about, spec, &ours, rival.as_slice())?;
        Ok(vec![writes, reads])
    }

    fn spec(&self, operation: Operation) -> LoadSpec {
        LoadSpec { operation, connections: CONNECTIONS, keys: self.keys, value_bytes: VALUE_BYTES }
    }

    /// Name of a data directory; each CPU layout has its own.
    fn data(&self, name: &str) -> String {
        format!("{name}-{}", self.layout.server_threads)
    }

    fn veche(&self, name: &str, keeps: &str, data: &str, durability: Durability) -> BenchResult<Side> {
        Ok(Side::new(
            name,
            keeps,
            vec![self.work_dir.veche(&self.data(data), self.layout, durability, None)?],
        ))
    }

    fn redis(
        &self,
        name: &str,
        keeps: &str,
        data: &str,
        append_only: AppendOnly,
    ) -> BenchResult<Option<Side>> {
        let Some(tool) = &self.tools.redis else { return Ok(None) };
        let server = others::redis(self.work_dir, tool, self.layout, &self.data(data), append_only)?;
        Ok(Some(Side::new(name, keeps, vec![server])))
    }

    fn etcd(&self, name: &str, keeps: &str, data: &str, nodes: usize) -> BenchResult<Option<Side>> {
        let Some(tool) = &self.tools.etcd else { return Ok(None) };
        let servers = others::etcd(self.work_dir, tool, self.layout, &self.data(data), nodes)?;
        let leader = others::leader(&servers)?;
        let load = EtcdLoad::start(&self.tools.etcd_load, leader, self.layout, CONNECTIONS)?;
        Ok(Some(Side::of_etcd(name, keeps, servers, load)))
    }
}
