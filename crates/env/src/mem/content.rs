//! The content of a file: its current bytes, its durable bytes, and the changes between them.

use super::pages::Pages;
use stdx::Rng;

/// The unit that a device writes atomically.
const SECTOR_BYTES: u64 = 512;

/// The bytes of a file: the current ones, the ones last synced, and the changes that lead from the
/// second to the first.
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

/// The unsynced changes of a file that survive a power loss.
#[derive(Clone, Copy)]
enum Fate {
    Nothing,
    Everything,
    /// The seed decides for each change.
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

    /// Makes the unsynced changes durable, and with each write the complete pages that it touched.
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

    /// Drops the unsynced writes, except those that `rng` lets reach the device. Reads return the
    /// dropped bytes until [`Content::evict`].
    pub(super) fn lose_unsynced(&mut self, rng: &mut Rng) {
        let fate = Fate::draw(rng);
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::SetLen(len) => self.durable.set_len(len),
                Change::Write { offset, bytes } => fate.apply(&mut self.durable, &bytes, offset, rng),
            }
        }
    }

    /// Replaces the current bytes by those of the device, so that lost bytes become visible as
    /// lost. The length stays.
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

    /// Simulates bit rot: flips one bit of the current and of the durable bytes.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        self.live.flip(offset, bit);
        self.durable.flip(offset, bit);
    }

    /// Returns the content after power loss: the synced bytes, and the unsynced changes that `rng`
    /// selects.
    pub(super) fn crash(&self, rng: &mut Rng) -> Self {
        let mut pages = self.durable.clone();
        let fate = Fate::draw(rng);
        for change in &self.unsynced {
            match change {
                Change::SetLen(len) if fate.keeps(rng) => pages.set_len(*len),
                Change::SetLen(_) => {}
                Change::Write { offset, bytes } => fate.apply(&mut pages, bytes, *offset, rng),
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

    /// Applies a surviving write completely, partially or not at all.
    fn apply(self, pages: &mut Pages, bytes: &[u8], offset: u64, rng: &mut Rng) {
        if self.keeps(rng) {
            pages.write(bytes, offset);
        } else if matches!(self, Self::Each) {
            tear(pages, bytes, offset, rng);
        }
    }

    fn keeps(self, rng: &mut Rng) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Each => rng.chance(0.5),
        }
    }
}

/// Applies a random subset of a write's sectors. In a quarter of the cases the file also gets the
/// length that the write gave it.
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
