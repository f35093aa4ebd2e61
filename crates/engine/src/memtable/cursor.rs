//! Iteration over a memtable in key order.

use super::node::{CellNode, KeyHead, KeyNode};
use super::table::Memtable;
use crate::Error;
use crate::iter::Cursor;
use crate::sequence::Sequence;
use std::ptr::NonNull;
use std::sync::Arc;
use stdx::CellRef;

/// A cursor over a memtable, which it keeps alive. It shows each key once, with the superseding
/// cell among those committed at or before the cursor's sequence, and with the greatest `from` of
/// all cells of the key (see [`MergeCursor`](crate::iter::MergeCursor)). It skips keys without such
/// a cell.
///
/// Keys that are inserted during the iteration appear if they are visible and ahead of the cursor.
pub struct MemtableCursor {
    memtable: Arc<Memtable>,
    visible: Sequence,
    position: Option<Position>,
}

/// The `'static` lifetimes are not true and never leave this module: the nodes live as long as the
/// memtable beside them, and are exposed only with the lifetime of a borrow of the cursor.
#[derive(Clone, Copy)]
struct Position {
    node: KeyNode<'static>,
    cell: CellNode<'static>,
}

impl MemtableCursor {
    pub(super) fn new(memtable: Arc<Memtable>, visible: Sequence) -> Self {
        Self { memtable, visible, position: None }
    }

    /// Moves to the first node from `address` on that has a visible cell.
    fn settle(&mut self, address: Option<NonNull<KeyHead>>) {
        // SAFETY: the address is that of a node in the memtable's arena, which `self.memtable`
        // keeps alive while `position` exists; see `Position`.
        let mut next = address.map(|address| unsafe { KeyNode::<'static>::at(address) });
        self.position = None;
        while let Some(node) = next {
            next = node.next(0);
            if let Some(next) = next {
                next.prefetch_cell();
                if let Some(after) = next.next(0) {
                    after.prefetch();
                }
            }
            if let Some(cell) = self.memtable.visible_cell(node, self.visible) {
                self.position = Some(Position { node, cell });
                return;
            }
        }
    }
}

impl Cursor for MemtableCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        let first = self.memtable.skiplist().first().map(KeyNode::address);
        self.settle(first);
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        let node = self.memtable.skiplist().seek(key).map(KeyNode::address);
        self.settle(node);
        Ok(())
    }

    fn advance(&mut self) -> Result<(), Error> {
        let position = self.position.expect("the cursor is at an entry");
        let next = position.node.next(0).map(KeyNode::address);
        self.settle(next);
        Ok(())
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        self.position.map(|position| {
            let mut cell = position.cell.cell();
            cell.meta.from = cell.meta.from.max(position.node.greatest_from());
            (position.node.key(), cell)
        })
    }
}
