//! What a NIC's driver tells by the ethtool ioctl.
#![allow(unsafe_code)] // The ioctl takes an untyped pointer; each call passes one to a buffer of the layout its command names.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: u32 = 0x8946;
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Entries of an indirection table that are read; mlx5 has up to 16384 in the largest configurations.
const TABLE_MAX: usize = 16384;

/// Queue counts of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Receive queues in use now, combined ones included.
    pub(crate) rx: u32,
    /// Receive queues at the most.
    pub(crate) rx_max: u32,
}

/// A socket on which any NIC of the namespace can be asked.
#[derive(Debug)]
pub(crate) struct Ethtool(OwnedFd);

impl Ethtool {
    pub(crate) fn open() -> io::Result<Ethtool> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(Ethtool(socket))
    }

    /// Calls with a command in `words[0]`; the driver fills the rest.
    fn call(&self, nic: &str, words: &mut [u32]) -> io::Result<()> {
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte must stay for the end of the text.
        if nic.is_empty() || nic.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(nic.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the request and the words live throughout the call. Each caller's slice is as long as its command's
        // structure, and for a table as its size field says, which bounds what the kernel writes.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL.into(), &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub(crate) fn channels(&self, nic: &str) -> io::Result<Channels> {
        // cmd, max {rx, tx, other, combined}, now {rx, tx, other, combined}.
        let mut words = [0; 9];
        words[0] = ETHTOOL_GCHANNELS;
        self.call(nic, &mut words)?;
        let [_, rx_max, _, _, combined_max, rx, _, _, combined] = words;
        Ok(Channels {
            rx: rx.saturating_add(combined),
            rx_max: rx_max.saturating_add(combined_max),
        })
    }

    /// Receive rings, of a driver that knows no channels.
    pub(crate) fn rx_rings(&self, nic: &str) -> io::Result<u32> {
        // struct ethtool_rxnfc: cmd, flow_type, then 64 bits of data, and a rule that this command leaves alone.
        let mut words = [0; 64];
        words[0] = ETHTOOL_GRXRINGS;
        self.call(nic, &mut words)?;
        let low_first = cfg!(target_endian = "little");
        Ok(words[if low_first { 2 } else { 3 }])
    }

    /// Entries of the RSS indirection table; 0 when there is none.
    pub(crate) fn rss_size(&self, nic: &str) -> io::Result<usize> {
        let mut words = [ETHTOOL_GRXFHINDIR, 0];
        self.call(nic, &mut words)?;
        Ok(words[1] as usize)
    }

    /// How many queues the RSS indirection table of `size` entries spreads over.
    pub(crate) fn rss_queues(&self, nic: &str, size: usize) -> io::Result<u32> {
        let size = size.min(TABLE_MAX);
        let mut words = vec![0; 2 + size];
        words[0] = ETHTOOL_GRXFHINDIR;
        words[1] = u32::try_from(size).unwrap_or(0);
        self.call(nic, &mut words)?;
        let mut queues = words.split_off(2);
        queues.sort_unstable();
        queues.dedup();
        Ok(u32::try_from(queues.len()).unwrap_or(u32::MAX))
    }
}
