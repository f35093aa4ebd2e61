//! What a profile recorded: stacks, and how much of each there was when.
//!
//! **Promise.** A capture is whole: every index in it has its name, every slice is within its time. That holds for one
//! that was built here and for one that was read, as reading checks it. What is written and read again is equal.
//!
//! **Mechanism.** The names of frames are kept once; a stack is the indices of its frames, from the root to the leaf.
//! Its weights are by slice of [`slice_ms`](Capture::slice_ms), in order, those of nothing left out: whoever draws the
//! whole adds them up, whoever draws a moment takes some.
//!
//! As JSON: `{"version":1, "kind":"cpu", "unit":"samples", "started_unix_ms":.., "slice_ms":100, "slices":300,
//! "lost":0, "notes":[..], "names":["main",..], "stacks":[{"frames":[0,..],"weights":[[slice,weight],..]},..]}`.

mod builder;
#[cfg(test)]
mod tests;

pub use builder::{CaptureBuilder, OTHER};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the form that is written, and the only one that is read.
const VERSION: u32 = 1;

/// What was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Where the processors' time went.
    Cpu,
    /// Where memory was asked for.
    Alloc,
    /// What requests waited for.
    Wait,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Alloc, Self::Wait];

    /// Its name, as in JSON, in addresses and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Wait => "wait",
        }
    }

    /// What its weights count.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "samples",
            Self::Alloc => "bytes",
            Self::Wait => "nanoseconds",
        }
    }

    /// So much of it, for people.
    pub fn format_weight(self, weight: u64) -> String {
        const GIB: f64 = (1u64 << 30) as f64;
        const BYTES: [(f64, &str); 4] =
            [(GIB, "GiB"), (GIB / 1024.0, "MiB"), (1024.0, "KiB"), (1.0, "bytes")];
        const TIMES: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
        let units = match self {
            Self::Cpu => return format!("{weight} samples"),
            Self::Alloc => BYTES,
            Self::Wait => TIMES,
        };
        let value = weight as f64;
        let (size, unit) = units.into_iter().find(|(size, _)| value >= *size).unwrap_or(units[3]);
        format!("{:.1} {unit}", value / size)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("{text:?} is no kind of profile; use cpu, alloc or wait"))
    }
}

/// How much there was in a slice of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u64)", into = "(u32, u64)")]
pub struct Weight {
    /// The slice, counted from 0.
    pub slice: u32,
    /// In the unit of the capture; never 0.
    pub weight: u64,
}

impl From<(u32, u64)> for Weight {
    fn from((slice, weight): (u32, u64)) -> Self {
        Self { slice, weight }
    }
}

impl From<Weight> for (u32, u64) {
    fn from(Weight { slice, weight }: Weight) -> Self {
        (slice, weight)
    }
}

/// A stack, and how much of it there was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    frames: Vec<u32>,
    weights: Vec<Weight>,
}

impl Stack {
    /// Its frames from the root to the leaf, by their places in [`Capture::names`].
    pub fn frames(&self) -> &[u32] {
        &self.frames
    }

    /// Its weights, by slice, in order.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The sum of its weights.
    pub fn total(&self) -> u64 {
        self.weights.iter().map(|weight| weight.weight).fold(0, u64::saturating_add)
    }
}

/// What a profile recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "CaptureJson", try_from = "CaptureJson")]
pub struct Capture {
    kind: Kind,
    started_unix_ms: u64,
    slice_ms: u32,
    slices: u32,
    lost: u64,
    notes: Vec<String>,
    names: Vec<String>,
    stacks: Vec<Stack>,
}

impl Capture {
    /// What was looked for.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// When it began, in milliseconds since 1970.
    pub const fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// How long a slice is, in milliseconds.
    pub const fn slice_ms(&self) -> u32 {
        self.slice_ms
    }

    /// How many slices it took.
    pub const fn slices(&self) -> u32 {
        self.slices
    }

    /// How many samples were seen but not kept: they are in no weight.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Sentences for whoever reads it.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The names of the frames.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The stacks, each once.
    pub fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// The names of the frames of `stack`, from the root to the leaf.
    pub fn names_of<'a>(&'a self, stack: &'a Stack) -> impl DoubleEndedIterator<Item = &'a str> + 'a {
        stack.frames.iter().map(|frame| self.names[*frame as usize].as_str())
    }

    /// The sum of all weights.
    pub fn total(&self) -> u64 {
        self.stacks.iter().map(Stack::total).fold(0, u64::saturating_add)
    }

    /// Reads one.
    ///
    /// # Errors
    /// Why these bytes are none.
    pub fn from_json(json: &[u8]) -> Result<Self, CaptureError> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Writes it on one line.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and numbers are JSON")
    }
}

/// Why something is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It is not JSON of this form.
    #[error("this is no profile: {0}")]
    Json(#[from] serde_json::Error),
    /// It was written by another version.
    #[error("this profile is of version {found}; only version {VERSION} can be read")]
    Version {
        /// The version it says.
        found: u32,
    },
    /// It does not fit together.
    #[error("this profile is damaged: {0}")]
    Damaged(&'static str),
}

/// A capture as JSON has it.
#[derive(Clone, Serialize, Deserialize)]
struct CaptureJson {
    version: u32,
    kind: Kind,
    unit: String,
    started_unix_ms: u64,
    slice_ms: u32,
    slices: u32,
    lost: u64,
    #[serde(default)]
    notes: Vec<String>,
    names: Vec<String>,
    stacks: Vec<Stack>,
}

impl From<Capture> for CaptureJson {
    fn from(capture: Capture) -> Self {
        let Capture { kind, started_unix_ms, slice_ms, slices, lost, notes, names, stacks } = capture;
        let unit = kind.unit().to_owned();
        Self { version: VERSION, kind, unit, started_unix_ms, slice_ms, slices, lost, notes, names, stacks }
    }
}

impl TryFrom<CaptureJson> for Capture {
    type Error = CaptureError;

    fn try_from(json: CaptureJson) -> Result<Self, CaptureError> {
        let CaptureJson {
            version,
            kind,
            unit,
            started_unix_ms,
            slice_ms,
            slices,
            lost,
            notes,
            names,
            stacks,
        } = json;
        if version != VERSION {
            return Err(CaptureError::Version { found: version });
        }
        if unit != kind.unit() {
            return Err(CaptureError::Damaged("the unit is not that of its kind"));
        }
        if slice_ms == 0 {
            return Err(CaptureError::Damaged("a slice has no length"));
        }
        for stack in &stacks {
            if stack.frames.iter().any(|frame| *frame as usize >= names.len()) {
                return Err(CaptureError::Damaged("a frame has no name"));
            }
            if !stack.weights.is_sorted_by(|a, b| a.slice < b.slice) {
                return Err(CaptureError::Damaged("the weights of a stack are not in the order of time"));
            }
            if stack.weights.iter().any(|weight| weight.slice >= slices || weight.weight == 0) {
                return Err(CaptureError::Damaged("a weight is nothing, or after the end"));
            }
        }
        Ok(Self { kind, started_unix_ms, slice_ms, slices, lost, notes, names, stacks })
    }
}
