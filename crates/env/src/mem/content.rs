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

    /// Makes what is read now durable.
    pub(super) fn sync(&mut self) {
        let cut = self.unsynced.iter().any(|change| matches!(change, Change::SetLen(_)));
        if cut {
            self.durable = self.live.clone();
        } else {
            self.durable.set_len(self.live.len());
            for change in &self.unsynced {
                if let Change::Write { offset, bytes } = change {
                    self.durable.share(&self.live, *offset, bytes.len());
                }
            }
        }
        self.unsynced.clear();
    }

    /// Rot: turns over one bit of what is read now and of what is durable.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        self.live.flip(offset, bit);
        self.durable.flip(offset, bit);
    }

    /// The content after power loss: what was synced, and of the rest what chance leaves.
    pub(super) fn crash(&self, rng: &mut Rng) -> Self {
        let mut pages = self.durable.clone();
        let fate = match rng.below(4) {
            0 => Fate::Nothing,
            1 => Fate::Everything,
            _ => Fate::Each,
        };
        for change in &self.unsynced {
            match change {
                Change::SetLen(len) if fate.spares(rng) => pages.set_len(*len),
                Change::SetLen(_) => {}
                Change::Write { offset, bytes } if fate.spares(rng) => pages.write(bytes, *offset),
                Change::Write { offset, bytes } if matches!(fate, Fate::Each) => {
                    tear(&mut pages, bytes, *offset, rng);
                }
                Change::Write { .. } => {}
            }
        }
        Self { live: pages.clone(), durable: pages, unsynced: Vec::new() }
    }
}

impl Fate {
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
