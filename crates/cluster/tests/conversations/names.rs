//! Names of keys and versions in a conversation.
//!
//! A key is placed where its name says: by default on n1, n2, n3 in this order. Its bytes are its
//! name and a number that gives it this place, and keep the order of the names. A version is named
//! by a number in the order of its first appearance, `@1`, or by the script.

use crate::world::{self, World};
use cluster::{Key, NodeIndex};
use std::collections::BTreeMap;
use stdx::Version;

#[derive(Default)]
pub(crate) struct Names {
    keys: BTreeMap<String, Key>,
    versions: BTreeMap<u64, Version>,
}

impl Names {
    /// Places a key on these hosts, in this order.
    pub(crate) fn place(&mut self, world: &World, name: &str, hosts: &[usize]) -> Result<Key, String> {
        let wanted: Vec<NodeIndex> = hosts.iter().map(|&host| NodeIndex(host as u8)).collect();
        let key = (0..10_000)
            .map(|number| world::key(&format!("{name}{number:04}")))
            .find(|key| world.layout.replicas(key, wanted.len() as u8) == wanted)
            .ok_or_else(|| format!("the layout has no partition for {name} on {wanted:?}"))?;
        self.keys.insert(name.to_owned(), key.clone());
        Ok(key)
    }

    /// The key of this name, which is placed on the first hosts if it has no place.
    pub(crate) fn key(&mut self, world: &World, name: &str) -> Result<Key, String> {
        if let Some(key) = self.keys.get(name) {
            return Ok(key.clone());
        }
        let hosts: Vec<usize> = (0..usize::from(world.limits.default_from)).collect();
        self.place(world, name, &hosts)
    }

    /// The name of a key.
    pub(crate) fn of_key(&self, key: &[u8]) -> String {
        let known = self.keys.iter().find(|(_, known)| known.as_bytes() == key);
        known.map_or_else(|| key.escape_ascii().to_string(), |(name, _)| name.clone())
    }

    /// Gives a version this number.
    pub(crate) fn name_version(&mut self, number: u64, version: Version) {
        self.versions.insert(number, version);
    }

    /// The version with this number.
    pub(crate) fn version(&self, number: u64) -> Option<Version> {
        self.versions.get(&number).copied()
    }

    /// The name of a version.
    pub(crate) fn of_version(&mut self, version: Version) -> String {
        if let Some((number, _)) = self.versions.iter().find(|(_, known)| **known == version) {
            return format!("@{number}");
        }
        let number = self.versions.last_key_value().map_or(1, |(last, _)| last + 1);
        self.versions.insert(number, version);
        format!("@{number}")
    }
}
