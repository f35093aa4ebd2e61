//! A bounded queue.

use std::collections::VecDeque;

/// A first-in, first-out queue that holds at most `limit` items and refuses further ones.
#[derive(Debug)]
pub struct BoundedQueue<T> {
    items: VecDeque<T>,
    limit: usize,
}

/// The queue was full. Contains the refused item.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueFull<T>(pub T);

impl<T> BoundedQueue<T> {
    /// Creates an empty queue for at most `limit` items. It allocates as it grows.
    pub const fn new(limit: usize) -> Self {
        Self { items: VecDeque::new(), limit }
    }

    /// Appends `item`.
    ///
    /// # Errors
    /// [`QueueFull`] with the item if the queue holds `limit` items.
    pub fn push(&mut self, item: T) -> Result<(), QueueFull<T>> {
        if self.items.len() == self.limit {
            return Err(QueueFull(item));
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Removes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the queue has no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The maximum number of items.
    pub const fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_refuses_and_gives_the_item_back() {
        let mut queue = BoundedQueue::new(2);
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Ok(()));
        assert_eq!(queue.push(3), Err(QueueFull(3)));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(3), Ok(()));
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(2), Some(3), None]);
    }
}
