//! A small file system of its own, which can be filled.
//!
//! Mounting one takes rights that not everybody has: without them there is none, and a test that
//! wants one says so and does nothing. `VECHE_TEST_DISK=loop` takes an ext4 on a loop device
//! instead of the default, a tmpfs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Other data is written in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

/// A mounted file system. It goes when this is dropped.
pub(crate) struct SmallDisk {
    mount: PathBuf,
    image: Option<PathBuf>,
}

impl SmallDisk {
    /// One of `mib` MiB at `mount`, which is made; `None`, and a word about it, where none can be
    /// mounted.
    pub(crate) fn mount(mount: &Path, mib: u32) -> Option<Self> {
        std::fs::create_dir_all(mount).expect("a directory to mount on");
        let is_loop = std::env::var("VECHE_TEST_DISK").is_ok_and(|kind| kind == "loop");
        let image = is_loop.then(|| mount.with_added_extension("img"));
        let mounted = match &image {
            Some(image) => {
                let file = File::create(image).expect("an image");
                file.set_len(u64::from(mib) << 20).expect("its length");
                runs(Command::new("mkfs.ext4").arg("-q").arg(image))
                    && runs(Command::new("mount").args(["-o", "loop"]).arg(image).arg(mount))
            }
            None => {
                let size = format!("size={mib}m");
                runs(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(mount))
            }
        };
        if !mounted {
            println!("skipped: no small file system can be mounted here (this takes root and mount)");
            return None;
        }
        Some(Self { mount: mount.to_owned(), image })
    }

    /// Takes `share` of what is free for other data, and returns its file; with a share of 1, all
    /// there is.
    pub(crate) fn fill(&self, share: f64) -> PathBuf {
        let path = self.mount.join("other-data");
        let free = rustix::fs::statvfs(&self.mount).expect("it is mounted");
        let bytes = (free.f_bavail * free.f_frsize) as f64 * share;
        let mut file = File::create(&path).expect("a file");
        let piece = [1; PIECE_BYTES];
        for _ in 0..=bytes as usize / PIECE_BYTES {
            // The end of the room is where it was to come to.
            if file.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = file.sync_data();
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The process that used it may still be ending.
        let _ = runs(Command::new("umount").arg("-l").arg(&self.mount));
        if let Some(image) = &self.image {
            let _ = std::fs::remove_file(image);
        }
    }
}

fn runs(command: &mut Command) -> bool {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
