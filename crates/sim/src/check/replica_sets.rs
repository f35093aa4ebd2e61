//! Invariant: a cell is stored only by the first `from` nodes for its key, and by nodes that hold
//! an older cell of the key. Read repair sends a newer cell to each replica that answered with an
//! older one.

use super::InvariantViolation;
use crate::history::IssuedCells;
use cluster::{Key, Layout, NodeIndex};
use std::sync::Arc;
use stdx::CellMeta;

/// Checks that `node` may be asked to store a cell with this metadata, by one of `layouts`, which
/// nodes have had.
pub fn check(
    layouts: &[Arc<Layout>],
    issued_cells: &IssuedCells,
    node: NodeIndex,
    key: &Key,
    meta: &CellMeta,
) -> Result<(), InvariantViolation> {
    let holds = |from| layouts.iter().any(|layout| layout.is_intended_holder(node, key, from));
    let held_older = || issued_cells.range(key, ..meta.version).any(|(_, older)| holds(older.from));
    if holds(meta.from) || held_older() {
        return Ok(());
    }
    let replicas = layouts.iter().map(|layout| layout.replicas(key, meta.from)).collect::<Vec<_>>();
    let detail = format!("{node:?} stores {meta:?} of {key:?}, which is for {replicas:?}");
    Err(InvariantViolation::new("replica_sets", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{key, version};
    use super::*;
    use stdx::Cell;

    #[test]
    fn a_cell_on_a_node_that_is_not_a_replica_is_caught() {
        let nodes = (0..3).map(|node| format!("node-{node}")).collect();
        let layout = Arc::new(Layout::new(nodes, 16).unwrap());
        let mut issued_cells = IssuedCells::default();
        let one_copy = Cell::value(version(2), 1, "a".into());
        issued_cells.note(&key(), &one_copy).unwrap();
        let second = layout.replicas(&key(), 2)[1];
        let layouts = [layout];
        let check =
            |issued_cells: &IssuedCells| check(&layouts, issued_cells, second, &key(), &one_copy.meta);
        assert!(check(&issued_cells).is_err());
        issued_cells.note(&key(), &Cell::value(version(3), 2, "newer".into())).unwrap();
        assert!(check(&issued_cells).is_err());
        issued_cells.note(&key(), &Cell::value(version(1), 2, "older".into())).unwrap();
        assert!(check(&issued_cells).is_ok());
    }
}
