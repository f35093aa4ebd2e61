//! Damaged tables, translated into the terms of the cluster protocol.

use crate::keyspace::{ENTITIES, SYSTEM_END};
use crate::store::Store;
use bytes::Bytes;
use cluster::{Key, LostRange, StoreResponse, TableDamage};
use engine::{DamagedTable, UnreadableRange};

impl Store {
    /// The tables that are unreadable in part, until they are replaced.
    pub fn damage(&self) -> Vec<TableDamage> {
        self.engine.damaged_tables().iter().map(damage_of).collect()
    }

    /// Allows the replacement of a damaged table by its readable part: the node has the lost cells
    /// from its peers.
    pub(crate) fn give_up(&self, damage: &TableDamage) -> StoreResponse {
        for table in self.engine.damaged_tables() {
            if damage_of(&table) == *damage {
                self.engine.allow_replacement(table.id, &table.lost);
            }
        }
        StoreResponse::TableAbandoned
    }
}

fn damage_of(table: &DamagedTable) -> TableDamage {
    let is_own = |lost: &UnreadableRange| lost.after.as_deref().is_none_or(|after| after < SYSTEM_END);
    TableDamage {
        table: table.id.0,
        ranges: table.lost.iter().filter_map(range_of).collect(),
        own_cells: table.lost.iter().any(is_own),
        dead_from: table.dead_from,
    }
}

/// The entities of a range; `None` if it contains none.
fn range_of(lost: &UnreadableRange) -> Option<LostRange> {
    let after = lost.after.as_deref().and_then(entity);
    let is_of_entities = lost.until.as_slice() > SYSTEM_END;
    is_of_entities.then(|| LostRange { after, until: entity(&lost.until) })
}

/// The entity with this engine key, if it is a valid one. Bounds of ranges need not be.
fn entity(key: &[u8]) -> Option<Key> {
    Key::new(Bytes::copy_from_slice(key.strip_prefix(&[ENTITIES])?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::TableId;

    fn of(after: Option<&[u8]>, until: &[u8]) -> TableDamage {
        let lost = UnreadableRange { after: after.map(<[u8]>::to_vec), until: until.to_vec() };
        damage_of(&DamagedTable { id: TableId(7), path: "7.sst".into(), lost: vec![lost], dead_from: None })
    }

    fn range(after: Option<&'static str>, until: &'static str) -> LostRange {
        let key = |key: &'static str| Key::new(Bytes::from_static(key.as_bytes())).unwrap();
        LostRange { after: after.map(key), until: Some(key(until)) }
    }

    #[test]
    fn ranges_of_entities_are_distinguished_from_local_cells() {
        let expected =
            TableDamage { table: 7, ranges: vec![range(Some("a"), "b")], own_cells: false, dead_from: None };
        assert_eq!(of(Some(b"\x01a"), b"\x01b"), expected);
        let both = TableDamage { table: 7, ranges: vec![range(None, "b")], own_cells: true, dead_from: None };
        assert_eq!(of(Some(b"\0h"), b"\x01b"), both);
        assert_eq!(of(None, b"\x01b"), both);
        let none = TableDamage { table: 7, ranges: vec![], own_cells: true, dead_from: None };
        assert_eq!(of(None, b"\0node-record"), none);
        let first =
            TableDamage { table: 7, ranges: vec![range(None, "b")], own_cells: false, dead_from: None };
        assert_eq!(of(Some(b"\x01"), b"\x01b"), first);
    }
}
