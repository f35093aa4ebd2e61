//! A disk that can be throttled: an ext4 file system on a loop device, whose write bandwidth the
//! kernel's `blkio` controller limits.
//!
//! The limit is set on the device in the root cgroup, so it applies to every writer: the node, its
//! syncs, and the kernel on its behalf. The node is unaware of it.
//!
//! **Caveats.** Requires root, `mkfs.ext4`, `losetup`, and the `blkio` controller of cgroups
//! version 1, because version 2 has no limits in its root group. The underlying file system has a
//! cache and a journal of its own, so a sync takes longer than on the bare disk. The node is
//! measured on this disk, throttled and not.

use rustix::fs::{major, minor, stat, syncfs};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const WRITE_LIMIT: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";
const SECTOR_BYTES: u64 = 512;
/// Index of the number of written sectors in a device's statistics.
const SECTORS_WRITTEN: usize = 6;

/// A mounted disk. It is unmounted and removed when this is dropped.
#[derive(Debug)]
pub(super) struct PacedDisk {
    mount: PathBuf,
    image: PathBuf,
    device: PathBuf,
    /// Major and minor number of the device.
    number: String,
}

impl PacedDisk {
    /// Creates an unthrottled disk of `bytes` bytes, mounted in `dir`.
    ///
    /// # Errors
    /// The missing prerequisite.
    pub(super) fn new(dir: &Path, bytes: u64) -> Result<Self, String> {
        if !Path::new(WRITE_LIMIT).exists() {
            return Err(format!("there is no {WRITE_LIMIT}"));
        }
        let (mount, image) = (dir.join("disk"), dir.join("disk.img"));
        let failed = |error: io::Error| format!("{}: {error}", image.display());
        fs::create_dir_all(&mount).map_err(failed)?;
        fs::File::create(&image).and_then(|file| file.set_len(bytes)).map_err(failed)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let device =
            PathBuf::from(run(Command::new("losetup").args(["--find", "--show"]).arg(&image))?.trim());
        let rdev = stat(&device).map_err(|error| failed(error.into()))?.st_rdev;
        let number = format!("{}:{}", major(rdev), minor(rdev));
        let disk = Self { mount, image, device, number };
        run(Command::new("mount").arg(&disk.device).arg(&disk.mount))?;
        Ok(disk)
    }

    /// Mount point.
    pub(super) fn path(&self) -> &Path {
        &self.mount
    }

    /// Limits writes to `bytes_per_second`; 0 removes the limit.
    pub(super) fn pace(&self, bytes_per_second: u64) -> io::Result<()> {
        fs::write(WRITE_LIMIT, format!("{} {bytes_per_second}", self.number))
    }

    /// Writes back the dirty pages of the file system.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(syncfs(fs::File::open(&self.mount)?)?)
    }

    /// Bytes written to the disk so far.
    pub(super) fn written_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/sys/dev/block/{}/stat", self.number))?;
        let sectors =
            text.split_ascii_whitespace().nth(SECTORS_WRITTEN).and_then(|text| text.parse::<u64>().ok());
        let sectors = sectors.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text.clone()))?;
        Ok(sectors * SECTOR_BYTES)
    }
}

impl Drop for PacedDisk {
    fn drop(&mut self) {
        let ended = [
            self.pace(0).map_err(|error| error.to_string()),
            run(Command::new("umount").arg("--lazy").arg(&self.mount)).map(drop),
            run(Command::new("losetup").arg("--detach").arg(&self.device)).map(drop),
            fs::remove_file(&self.image).map_err(|error| error.to_string()),
        ];
        for error in ended.into_iter().filter_map(Result::err) {
            eprintln!("{} cannot be removed: {error}", self.device.display());
        }
    }
}

/// Runs a command. Returns its output, or its errors.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
