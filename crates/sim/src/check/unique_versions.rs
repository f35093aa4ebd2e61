//! Invariant: no version is issued for two cells, by any threads and any processes of a node.

use super::InvariantViolation;
use crate::history::IssuedCells;
use cluster::Key;
use stdx::Cell;

/// Records a cell that a coordinator issues, and checks that its version is new or belongs to the
/// same cell. Returns whether the version is new.
pub fn check(issued_cells: &mut IssuedCells, key: &Key, cell: &Cell) -> Result<bool, InvariantViolation> {
    issued_cells.note(key, cell).map_err(|detail| InvariantViolation::new("unique_versions", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, key, version};
    use super::*;
    use stdx::CellMeta;

    #[test]
    fn a_version_issued_for_two_cells_is_caught() {
        let mut issued_cells = IssuedCells::default();
        let value = |bytes: &'static str| Cell::value(version(1), 3, bytes.into());
        assert!(check(&mut issued_cells, &key(), &value("a")).is_ok());
        assert!(check(&mut issued_cells, &key(), &value("a")).is_ok(), "sent twice");
        assert!(check(&mut issued_cells, &key(), &value("b")).is_err());
        assert!(check(&mut issued_cells, &key(), &Cell::tombstone(version(1), 3)).is_err());
        assert!(check(&mut issued_cells, &Key::new("other".into()).unwrap(), &value("a")).is_err());
    }

    #[test]
    fn a_cell_that_takes_over_the_from_of_an_older_version_is_the_same_cell() {
        let mut issued_cells = IssuedCells::default();
        let of = |from| Cell::value(version(2), from, "a".into());
        check(&mut issued_cells, &key(), &of(1)).unwrap();
        assert!(check(&mut issued_cells, &key(), &of(3)).is_err(), "no older version has a `from` of 3");
        check(&mut issued_cells, &key(), &Cell::value(version(1), 3, "older".into())).unwrap();
        assert!(check(&mut issued_cells, &key(), &of(3)).is_ok());
        assert!(check(&mut issued_cells, &key(), &of(4)).is_err());
    }

    #[test]
    fn the_tombstone_that_compaction_makes_of_an_expired_value_is_the_same_cell() {
        let mut issued_cells = IssuedCells::default();
        let expires = CellMeta { expires_at: Some(NOW), ..CellMeta::value(version(1), 3) };
        check(&mut issued_cells, &key(), &Cell { meta: expires, value: "a".into() }).unwrap();
        let buried = CellMeta { kind: stdx::CellKind::Tombstone, ..expires };
        assert!(check(&mut issued_cells, &key(), &Cell { meta: buried, value: "".into() }).is_ok());
    }
}
