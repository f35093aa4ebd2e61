//! Programs on this machine that can be compared.
//!
//! A missing program is reported once, with the way to install it, and its rows are omitted.

use serde::Serialize;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Further directories of servers that are usually started by root.
const MORE_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// A program and its version.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    #[serde(skip)]
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

/// A program that is not installed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MissingTool {
    pub(crate) name: &'static str,
    /// Rows that are omitted without it.
    pub(crate) rows: &'static str,
    /// How to install it.
    pub(crate) remedy: &'static str,
}

/// All programs that are searched for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    pub(crate) redis: Option<Tool>,
    pub(crate) nginx: Option<Tool>,
    pub(crate) wrk: Option<Tool>,
    pub(crate) strace: Option<Tool>,
    pub(crate) etcd: Option<Tool>,
    pub(crate) etcd_load: PathBuf,
    pub(crate) missing: Vec<MissingTool>,
}

impl Tools {
    /// Searches for all programs. `etcd` is the directory of etcd and its load program.
    pub(crate) fn find(etcd: &Path) -> Self {
        let mut missing = Vec::new();
        let mut find = |name, asks, rows, remedy| {
            let tool = in_path(name).and_then(|path| Tool::at(name, path, asks));
            if tool.is_none() {
                missing.push(MissingTool { name, rows, remedy });
            }
            tool
        };
        let redis = find("redis-server", "--version", "all against Redis", "apt-get install redis-server");
        let nginx = find("nginx", "-v", "files against nginx", "apt-get install nginx-light");
        let wrk = find("wrk", "-v", "the generator against wrk", "apt-get install wrk");
        let strace = find("strace", "-V", "the proof of syncs", "apt-get install strace");
        let server = Tool::at("etcd", etcd.join("etcd"), "--version");
        let etcd_load = etcd.join("load");
        let etcd = server.filter(|_| etcd_load.is_file());
        if etcd.is_none() {
            let remedy = "bench/run compare builds it where Go 1.26 or newer is, from go.dev/dl";
            missing.push(MissingTool { name: "etcd", rows: "all against etcd", remedy });
        }
        Self { redis, nginx, wrk, strace, etcd, etcd_load, missing }
    }

    /// Programs that were found.
    pub(crate) fn found(&self) -> Vec<Tool> {
        let all = [&self.redis, &self.etcd, &self.nginx, &self.wrk, &self.strace];
        all.into_iter().flatten().cloned().collect()
    }
}

impl Tool {
    /// Runs the program to get its version. `None`: there is no such program.
    pub(crate) fn at(name: &'static str, path: PathBuf, asks: &str) -> Option<Self> {
        let said = Command::new(&path).arg(asks).output().ok()?;
        // Some programs print their version to standard error.
        let said = [said.stdout, said.stderr].concat();
        let version = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned();
        Some(Self { name, path, version })
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(MORE_DIRECTORIES.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}
