//! Manifest of a backup.
//!
//! A manifest is text, so that a person can read it, followed by a checksum of the text. It lists
//! each file of the data directory with its length, its checksum, and the object that holds it.
//! `docs/backup.md` specifies the format.

use crate::checksum::Checksum;
use crate::error::CtlError;
use crate::files::Contents;
use std::fmt;
use std::path::Path;
use std::str::{FromStr, Lines};
use stdx::{NodeTag, WallTime};

const HEADER: &str = "veche-backup 2";
/// Header of a manifest without the line `layout`: of a directory without a layout record, or of an
/// earlier release.
const HEADER_WITHOUT_LAYOUT: &str = "veche-backup 1";
const SEAL: &str = "xxh3 ";
/// A change of the layout was running, or none was.
const CHANGING: &str = "changing";
const STEADY: &str = "steady";
/// Minimum number of digits: backups sort by name up to a million of them.
const NUMBER_DIGITS: usize = 6;

/// Number of a backup in its repository. The newest backup has the greatest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupNumber(pub u32);

impl fmt::Display for BackupNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0NUMBER_DIGITS$}", self.0)
    }
}

impl FromStr for BackupNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A backup: its node, its time, and its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupManifest {
    /// Number of the backup.
    pub number: BackupNumber,
    /// Tag of the node.
    pub node: NodeTag,
    /// The node's address in its cluster; empty for a single node.
    pub own: String,
    /// Addresses of all nodes; none or one for a single node.
    pub nodes: Vec<String>,
    /// Time of the backup, by the clock of the machine that took it.
    pub taken: WallTime,
    /// Version of the program that took the backup.
    pub software: String,
    /// The layout of the cluster at that time. `None`: the backup does not say.
    pub layout: Option<BackupLayout>,
    /// Files of the data directory, in the order of their paths.
    pub files: Vec<BackupFile>,
}

/// The layout of the cluster in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupLayout {
    /// Epoch of the layout record.
    pub epoch: u64,
    /// Epoch in which the replicas of some partition changed last; 1 if they never did. Backups of
    /// nodes with equal ones were made while each partition had the same nodes.
    pub placement_epoch: u64,
    /// Whether a change of the layout was running: data was on its way between nodes.
    pub is_changing: bool,
    /// SHA-256 of the record, in hexadecimal digits.
    pub hash: String,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    /// Path in the data directory, with `/` as separator.
    pub path: String,
    /// Length, in bytes.
    pub bytes: u64,
    /// Checksum of the contents.
    pub checksum: Checksum,
    /// Object of the repository that holds the contents.
    pub object: String,
}

impl BackupManifest {
    /// Total length of all files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Whether the node is part of a cluster.
    pub fn has_peers(&self) -> bool {
        self.nodes.len() > 1
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { number, node, own, nodes, taken, software, layout, files } = self;
        let header = if layout.is_some() { HEADER } else { HEADER_WITHOUT_LAYOUT };
        let mut text = format!(
            "{header}\nnumber {number}\nnode {:016x}\nself {own}\nnodes {}\ntaken {}\nsoftware {software}\n",
            node.0,
            nodes.join(","),
            taken.micros_since_unix_epoch(),
        );
        if let Some(BackupLayout { epoch, placement_epoch, is_changing, hash }) = layout {
            let state = if *is_changing { CHANGING } else { STEADY };
            text.push_str(&format!("layout {epoch} {placement_epoch} {state} {hash}\n"));
        }
        text.push_str(&format!("files {}\n", files.len()));
        for BackupFile { path, bytes, checksum, object } in files {
            text.push_str(&format!("{checksum} {bytes} {object} {path}\n"));
        }
        let seal = Checksum::of(text.as_bytes());
        text.push_str(&format!("{SEAL}{seal}\n"));
        text.into_bytes()
    }

    /// Decodes the output of [`BackupManifest::encode`]. The error describes the violation.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let with_layout = unseal(text, HEADER);
        let has_layout = with_layout.is_ok();
        let body = with_layout.or_else(|error| unseal(text, HEADER_WITHOUT_LAYOUT).map_err(|_| error))?;
        let mut lines = body.lines();
        let number = parsed(&mut lines, "number")?;
        let node = field(&mut lines, "node")?;
        let node = u64::from_str_radix(node, 16).map_err(|_| format!("{node:?} is not the tag of a node"))?;
        let own = field(&mut lines, "self")?.to_owned();
        let nodes = field(&mut lines, "nodes")?;
        let nodes = nodes.split(',').filter(|node| !node.is_empty()).map(str::to_owned).collect();
        let taken = WallTime::from_micros_since_unix_epoch(parsed(&mut lines, "taken")?);
        let software = field(&mut lines, "software")?.to_owned();
        let layout = has_layout.then(|| BackupLayout::decode(field(&mut lines, "layout")?)).transpose()?;
        let count: usize = parsed(&mut lines, "files")?;
        let files = lines.map(BackupFile::decode).collect::<Result<Vec<_>, _>>()?;
        if files.len() != count || !files.is_sorted_by(|before, after| before.path < after.path) {
            return Err("its list of files is inconsistent".to_owned());
        }
        Ok(Self { number, node: NodeTag(node), own, nodes, taken, software, layout, files })
    }
}

impl BackupLayout {
    /// Decodes what follows the name of the line.
    fn decode(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split(' ').collect();
        let [epoch, placement_epoch, state @ (STEADY | CHANGING), hash] = words[..] else {
            return Err(format!("{text:?} is not a layout"));
        };
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not an epoch"));
        Ok(Self {
            epoch: number(epoch)?,
            placement_epoch: number(placement_epoch)?,
            is_changing: state == CHANGING,
            hash: hash.to_owned(),
        })
    }
}

impl BackupFile {
    /// Compares the contents found at `path` with this file. An error names `path`.
    pub(crate) fn check(&self, path: &Path, found: &Contents) -> Result<(), CtlError> {
        if found.bytes != self.bytes {
            let (found, written) = (found.bytes, self.bytes);
            return Err(CtlError::damaged(path, format!("it has {found} bytes, and {written} were written")));
        }
        if found.checksum != self.checksum {
            return Err(CtlError::damaged(path, "its checksum does not match: its contents have changed"));
        }
        Ok(())
    }

    fn decode(line: &str) -> Result<Self, String> {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().ok_or_else(|| format!("the line {line:?} is cut"));
        let (checksum, bytes, object, path) = (word()?, word()?, word()?, word()?);
        let checksum = checksum.parse().map_err(|_| format!("{checksum:?} is not a checksum"))?;
        let bytes = bytes.parse().map_err(|_| format!("{bytes:?} is not a length"))?;
        // Names become paths, which must stay below their directory.
        if !is_name(object) || !path.split('/').all(is_name) {
            return Err(format!("the line {line:?} does not name a file"));
        }
        Ok(Self { path: path.to_owned(), bytes, checksum, object: object.to_owned() })
    }
}

/// Whether the text is a plain file name.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\\', '\0', '\n'])
}

/// Verifies the checksum and the header of `text`, and returns the lines between them.
fn unseal<'a>(text: &'a str, header: &str) -> Result<&'a str, String> {
    let kind = header.split_inclusive(' ').next().unwrap_or_default();
    if !text.starts_with(kind) {
        return Err(format!("it does not begin with {kind:?}"));
    }
    let at = text.rfind(SEAL).ok_or("its seal is missing")?;
    let (sealed, seal) = text.split_at(at);
    if seal != format!("{SEAL}{}\n", Checksum::of(sealed.as_bytes())) {
        return Err("its checksum does not match".to_owned());
    }
    match sealed.split_once('\n') {
        Some((first, body)) if first == header => Ok(body),
        _ => Err("its format is of another version than this build reads".to_owned()),
    }
}

fn field<'a>(lines: &mut Lines<'a>, name: &str) -> Result<&'a str, String> {
    let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.ok_or_else(|| format!("its line {name:?} is missing"))
}

fn parsed<T: FromStr>(lines: &mut Lines<'_>, name: &str) -> Result<T, String> {
    let text = field(lines, name)?;
    text.parse().map_err(|_| format!("{text:?} is not a number of {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str, bytes: u64) -> BackupFile {
        let checksum = Checksum::of(path.as_bytes());
        BackupFile {
            path: path.to_owned(),
            bytes,
            checksum,
            object: format!("{path}-{checksum}").replace('/', "-"),
        }
    }

    fn manifest() -> BackupManifest {
        BackupManifest {
            number: BackupNumber(7),
            node: NodeTag(0x0123_4567_89ab_cdef),
            own: "http://a:1".to_owned(),
            nodes: vec!["http://a:1".to_owned(), "http://b:1".to_owned()],
            taken: WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000),
            software: "0.1.0".to_owned(),
            layout: None,
            files: vec![file("identity", 120), file("shard-000/tables/0000000000000001.sst", 4_096)],
        }
    }

    /// Repositories of the first release contain these bytes, which must remain readable.
    #[test]
    fn the_format_of_a_manifest_is_stable() {
        let bytes = "veche-backup 1\nnumber 000007\nnode 0123456789abcdef\nself http://a:1\n\
                     nodes http://a:1,http://b:1\ntaken 1767225600000000\nsoftware 0.1.0\nfiles 2\n\
                     C1 120 identity-C1 identity\n\
                     C2 4096 shard-000-tables-0000000000000001.sst-C2 shard-000/tables/0000000000000001.sst\n\
                     xxh3 C3\n"
            .replace("C1", "6587ecd0e6bc20a580fe708a787e45ac")
            .replace("C2", "126d3c2aab9829ad4d7abf24f60716db")
            .replace("C3", "67c5da19e9b35cbb925ff181be92c8f5");
        assert_eq!(String::from_utf8_lossy(&manifest().encode()), bytes);
        assert_eq!(BackupManifest::decode(bytes.as_bytes()), Ok(manifest()));
    }

    fn with_layout(is_changing: bool) -> BackupManifest {
        let layout = BackupLayout { epoch: 9, placement_epoch: 7, is_changing, hash: "0ab1".to_owned() };
        BackupManifest { layout: Some(layout), ..manifest() }
    }

    #[test]
    fn a_manifest_of_version_2_names_the_layout() {
        for (is_changing, line) in
            [(false, "\nlayout 9 7 steady 0ab1\n"), (true, "\nlayout 9 7 changing 0ab1\n")]
        {
            let bytes = with_layout(is_changing).encode();
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.starts_with("veche-backup 2\n") && text.contains(line), "{text}");
            assert_eq!(BackupManifest::decode(&bytes), Ok(with_layout(is_changing)));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = with_layout(true).encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(BackupManifest::decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(BackupManifest::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_manifest_names_nothing_outside_of_the_directory() {
        for path in ["/etc/passwd", "../x", "a/../../x", "a//b", "", ".", "a/.", "a\0"] {
            let files = vec![BackupFile { path: path.to_owned(), ..file("x", 1) }];
            assert!(
                BackupManifest::decode(&BackupManifest { files, ..manifest() }.encode()).is_err(),
                "{path:?}"
            );
        }
        for object in ["..", "a/b", "", ".hidden"] {
            let files = vec![BackupFile { object: object.to_owned(), ..file("x", 1) }];
            assert!(
                BackupManifest::decode(&BackupManifest { files, ..manifest() }.encode()).is_err(),
                "{object:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_manifest_survives_encoding(
            number: u32, node: u64, taken: u64, names in proptest::collection::btree_map("[a-z0-9]{1,9}", any::<u64>(), 0..9)
        ) {
            let files = names.iter().map(|(path, bytes)| file(path, *bytes)).collect();
            let (number, node) = (BackupNumber(number), NodeTag(node));
            let taken = WallTime::from_micros_since_unix_epoch(taken);
            let manifest = BackupManifest { number, node, taken, files, nodes: Vec::new(), own: String::new(), ..manifest() };
            prop_assert_eq!(BackupManifest::decode(&manifest.encode()), Ok(manifest));
        }

        #[test]
        fn any_bytes_are_refused(bytes: Vec<u8>) {
            prop_assert!(BackupManifest::decode(&bytes).is_err());
        }
    }
}
