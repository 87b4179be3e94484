//! What the image is made of. Its hash names the folder that caches the image, so a change here makes another image and
//! going back finds the old one.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::packages;

/// Everything that decides what is in an image.
#[derive(Clone, Debug, Serialize)]
pub struct Recipe {
    /// Raised when the code that builds the image changes what it builds.
    pub format: u32,
    /// Debian suite of the user space.
    pub suite: &'static str,
    /// Suite of the kernel.
    pub kernel_suite: &'static str,
    /// The oldest kernel that will do. Older ones of Debian lack `sched_ext`.
    pub kernel_at_least: (u32, u32),
    /// What a kernel's package name ends with. The generic flavour: the cloud one has no igb driver.
    pub kernel_suffix: &'static str,
    /// Packages of the host, on top of `minbase`.
    pub packages: &'static [&'static str],
    /// Modules that the host needs to find its root.
    pub host_modules: &'static [&'static str],
    /// Modules of a guest.
    pub guest_modules: &'static [&'static str],
    /// Programs of a guest, as paths in the host's tree; their libraries follow.
    pub guest_programs: &'static [&'static str],
    /// Folders of kernel modules that no emulated machine has use for.
    pub unwanted_modules: &'static [&'static str],
    /// The host's first program.
    pub host_initramfs: &'static str,
}

impl Recipe {
    /// The one recipe there is.
    pub fn current() -> Recipe {
        Recipe {
            format: 2,
            suite: "trixie",
            kernel_suite: "trixie-backports",
            kernel_at_least: (7, 3),
            kernel_suffix: "+deb13-amd64",
            packages: packages::HOST,
            // ext4 asks the kernel's crypto for CRC32C where that is not yet a library, and depmod knows no such need.
            host_modules: &["virtio_blk", "crc32c_generic", "ext4"],
            guest_modules: &["virtio_blk", "virtio_net", "vmw_vsock_virtio_transport"],
            guest_programs: &[
                "usr/bin/memcached",
                "usr/bin/redis-server",
                "usr/sbin/nginx",
                "usr/sbin/ethtool",
            ],
            unwanted_modules: &[
                "drivers/gpu",
                "drivers/iio",
                "drivers/infiniband",
                "drivers/media",
                "drivers/net/wireless",
                "drivers/scsi",
                "drivers/staging",
                "drivers/usb",
                "sound",
            ],
            host_initramfs: include_str!("../../assets/host-initramfs.sh"),
        }
    }

    /// A short name for exactly this recipe.
    pub fn hash(&self) -> String {
        // A plain struct of strings and numbers always serialises.
        let json = serde_json::to_vec(self).unwrap_or_default();
        let digest = Sha256::digest(&json);
        let short = u64::from_be_bytes(digest[..8].try_into().unwrap_or_default());
        format!("{:012x}", short >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_makes_another_image() {
        let recipe = Recipe::current();
        let changed = Recipe {
            host_initramfs: "#!/bin/sh\n",
            ..recipe.clone()
        };
        assert_eq!(recipe.hash(), Recipe::current().hash());
        assert_ne!(recipe.hash(), changed.hash());
        assert_eq!(recipe.hash().len(), 12);
    }
}
