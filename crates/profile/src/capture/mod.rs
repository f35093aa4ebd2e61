//! Recorded profiles: stacks with their weights over time.
//!
//! **Promise.** A capture is consistent: every frame index has a name, and every slice lies within
//! the recorded time. This holds for captures that were built here and for captures that were read,
//! because reading validates them. A capture that is written and read again is equal.
//!
//! **Mechanism.** Each frame name is stored once; a stack is a list of indices into the names, from
//! the root to the leaf. The weights of a stack are stored per slice of
//! [`slice_ms`](Capture::slice_ms) milliseconds, in order, without zeros. A picture of the whole
//! profile adds them up, a picture of a moment adds some of them.
//!
//! The JSON form is `{"version":1, "kind":"cpu", "unit":"samples", "started_unix_ms":..,
//! "slice_ms":100, "slices":300, "lost":0, "notes":[..], "names":["main",..],
//! "stacks":[{"frames":[0,..],"weights":[[slice,weight],..]},..]}`.

mod builder;
#[cfg(test)]
mod tests;

pub use builder::{CaptureBuilder, OTHER};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the JSON form. Other versions are refused.
const VERSION: u32 = 1;

/// Kind of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureKind {
    /// Where processor time is spent.
    Cpu,
    /// Where memory is allocated.
    Alloc,
    /// What requests wait for.
    Wait,
}

impl CaptureKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Alloc, Self::Wait];

    /// Name in JSON, in URLs and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Wait => "wait",
        }
    }

    /// Unit of the weights.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "samples",
            Self::Alloc => "bytes",
            Self::Wait => "nanoseconds",
        }
    }

    /// Formats a weight with its unit, for people.
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

impl fmt::Display for CaptureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CaptureKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("{text:?} is not a kind of profile; use cpu, alloc or wait"))
    }
}

/// Weight of a stack in one time slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u64)", into = "(u32, u64)")]
pub struct Weight {
    /// Slice, counted from 0.
    pub slice: u32,
    /// Weight in the unit of the capture; never 0.
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

/// A stack with its weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    frames: Vec<u32>,
    weights: Vec<Weight>,
}

impl Stack {
    /// Frames from the root to the leaf, as indices into [`Capture::names`].
    pub fn frames(&self) -> &[u32] {
        &self.frames
    }

    /// Weights in the order of their slices.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// Sum of the weights.
    pub fn total(&self) -> u64 {
        self.weights.iter().map(|weight| weight.weight).fold(0, u64::saturating_add)
    }
}

/// A recorded profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "CaptureJson", try_from = "CaptureJson")]
pub struct Capture {
    kind: CaptureKind,
    started_unix_ms: u64,
    slice_ms: u32,
    slices: u32,
    lost: u64,
    notes: Vec<String>,
    names: Vec<String>,
    stacks: Vec<Stack>,
}

impl Capture {
    /// Kind of the profile.
    pub const fn kind(&self) -> CaptureKind {
        self.kind
    }

    /// Start of the recording, in milliseconds since the Unix epoch.
    pub const fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Length of a time slice, in milliseconds.
    pub const fn slice_ms(&self) -> u32 {
        self.slice_ms
    }

    /// Number of time slices.
    pub const fn slices(&self) -> u32 {
        self.slices
    }

    /// Number of samples that were taken but not kept. They are part of no weight.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Sentences for the reader of the profile.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Names of the frames.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Stacks; each distinct stack occurs once.
    pub fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// Names of the frames of `stack`, from the root to the leaf.
    pub fn names_of<'a>(&'a self, stack: &'a Stack) -> impl DoubleEndedIterator<Item = &'a str> + 'a {
        stack.frames.iter().map(|frame| self.names[*frame as usize].as_str())
    }

    /// Sum of all weights.
    pub fn total(&self) -> u64 {
        self.stacks.iter().map(Stack::total).fold(0, u64::saturating_add)
    }

    /// Reads a capture from JSON.
    ///
    /// # Errors
    /// [`CaptureError`] if the bytes are not a valid capture.
    pub fn from_json(json: &[u8]) -> Result<Self, CaptureError> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Writes the capture as one line of JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and numbers are JSON")
    }
}

/// Reason why bytes are not a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The bytes are not JSON of this form.
    #[error("this is not a profile: {0}")]
    Json(#[from] serde_json::Error),
    /// The capture was written in another version of the form.
    #[error("this profile is of version {found}; only version {VERSION} can be read")]
    Version {
        /// Version that the document states.
        found: u32,
    },
    /// The document is inconsistent.
    #[error("this profile is damaged: {0}")]
    Damaged(&'static str),
}

/// JSON form of a capture.
#[derive(Clone, Serialize, Deserialize)]
struct CaptureJson {
    version: u32,
    kind: CaptureKind,
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
                return Err(CaptureError::Damaged("the weights of a stack are not in order of time"));
            }
            if stack.weights.iter().any(|weight| weight.slice >= slices || weight.weight == 0) {
                return Err(CaptureError::Damaged("a weight is zero, or after the end"));
            }
        }
        Ok(Self { kind, started_unix_ms, slice_ms, slices, lost, notes, names, stacks })
    }
}
