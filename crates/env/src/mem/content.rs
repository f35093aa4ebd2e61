//! What a file holds now, what of it is durable, and what lies between.

use super::pages::Pages;
use stdx::Rng;

/// What a device writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// The bytes of a file: as read now, as synced last, and the changes that lead from one to the other.
#[derive(Clone, Default)]
pub(super) struct Content {
    live: Pages,
    durable: Pages,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: u64, bytes: Box<[u8]> },
    SetLen(u64),
}

/// How much of a file's unsynced changes a power loss leaves.
#[derive(Clone, Copy)]
enum Fate {
    Nothing,
    Everything,
    /// Each change draws for itself.
    Each,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.live.len()
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        self.live.read(buf, offset)
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        if !bytes.is_empty() {
            self.live.write(bytes, offset);
            self.unsynced.push(Change::Write { offset, bytes: bytes.into() });
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len != self.live.len() {
            self.live.set_len(len);
            self.unsynced.push(Change::SetLen(len));
        }
    }

    /// Makes the unsynced changes durable, and with each write the whole pages that it touched.
    pub(super) fn sync(&mut self) {
        for change in &self.unsynced {
            match change {
                Change::SetLen(len) => self.durable.set_len(*len),
                Change::Write { offset, bytes } => self.durable.cover(offset + bytes.len() as u64),
            }
        }
        for change in std::mem::take(&mut self.unsynced) {
            if let Change::Write { offset, bytes } = change {
                self.durable.share(&self.live, offset, bytes.len());
            }
        }
    }

    /// Drops the unsynced writes, except what chance lets reach the device. They are read until [`Content::evict`].
    pub(super) fn lose_unsynced(&mut self, rng: &mut Rng) {
        let fate = Fate::draw(rng);
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::SetLen(len) => self.durable.set_len(len),
                Change::Write { offset, bytes } => fate.leave(&mut self.durable, &bytes, offset, rng),
            }
        }
    }

    /// Reads from the device again: bytes that were lost are not seen any more. The length stays.
    pub(super) fn evict(&mut self) {
        let len = self.live.len();
        self.live = self.durable.clone();
        for change in &self.unsynced {
            match change {
                Change::SetLen(len) => self.live.set_len(*len),
                Change::Write { offset, bytes } => self.live.write(bytes, *offset),
            }
        }
        self.live.set_len(len);
    }

    /// Rot: turns over one bit of what is read now and of what is durable.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        self.live.flip(offset, bit);
        self.durable.flip(offset, bit);
    }

    /// The content after power loss: what was synced, and of the rest what chance leaves.
    pub(super) fn crash(&self, rng: &mut Rng) -> Self {
        let mut pages = self.durable.clone();
        let fate = Fate::draw(rng);
        for change in &self.unsynced {
            match change {
                Change::SetLen(len) if fate.spares(rng) => pages.set_len(*len),
                Change::SetLen(_) => {}
                Change::Write { offset, bytes } => fate.leave(&mut pages, bytes, *offset, rng),
            }
        }
        Self { live: pages.clone(), durable: pages, unsynced: Vec::new() }
    }
}

impl Fate {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(4) {
            0 => Self::Nothing,
            1 => Self::Everything,
            _ => Self::Each,
        }
    }

    /// Leaves of a write all, nothing or a part.
    fn leave(self, pages: &mut Pages, bytes: &[u8], offset: u64, rng: &mut Rng) {
        if self.spares(rng) {
            pages.write(bytes, offset);
        } else if matches!(self, Self::Each) {
            tear(pages, bytes, offset, rng);
        }
    }

    fn spares(self, rng: &mut Rng) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Each => rng.chance(0.5),
        }
    }
}

/// Leaves any of the sectors of a write, or none; sometimes only the length that it gave to the file.
fn tear(pages: &mut Pages, bytes: &[u8], offset: u64, rng: &mut Rng) {
    let end = offset + bytes.len() as u64;
    if rng.chance(0.25) {
        pages.set_len(pages.len().max(end));
    }
    let kept = [0.0, 0.5, 0.9][rng.below(3) as usize];
    let mut at = offset;
    while at < end {
        let sector_end = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
        if rng.chance(kept) {
            pages.write(&bytes[(at - offset) as usize..(sector_end - offset) as usize], at);
        }
        at = sector_end;
    }
}
