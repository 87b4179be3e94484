//! A network device's queue count, by the ethtool ioctls.
//!
//! The netlink interface to the same setting would need a generic-netlink client; two ioctls need one structure each, and
//! every kernel has them.

// ioctl(2) with a structure behind a pointer has no safe wrapper.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::kernel::Channels;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;

/// `struct ethtool_channels` of linux/ethtool.h.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct EthtoolChannels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx_count: u32,
    tx_count: u32,
    other_count: u32,
    combined_count: u32,
}

const _: () = assert!(size_of::<EthtoolChannels>() == 36);

/// The number of the interface called `name`.
pub fn interface_index(name: &str) -> io::Result<u32> {
    Ok(rustix::net::netdevice::name_to_index(any_socket()?, name)?)
}

/// The queue pairs of `nic`.
pub fn channels(nic: &str) -> io::Result<Channels> {
    let answer = get(&any_socket()?, nic)?;
    Ok(Channels {
        combined: answer.combined_count,
        combined_max: answer.max_combined,
    })
}

/// Makes `nic` use `combined` queue pairs; its other counts stay.
pub fn set_channels(nic: &str, combined: u32) -> io::Result<()> {
    let socket = any_socket()?;
    let mut request = get(&socket, nic)?;
    request.cmd = ETHTOOL_SCHANNELS;
    request.combined_count = combined;
    ethtool_ioctl(&socket, nic, &mut request)
}

fn get(socket: &OwnedFd, nic: &str) -> io::Result<EthtoolChannels> {
    let mut request = EthtoolChannels {
        cmd: ETHTOOL_GCHANNELS,
        ..Default::default()
    };
    ethtool_ioctl(socket, nic, &mut request)?;
    Ok(request)
}

/// Device ioctls go through any socket of the network namespace; this one is never bound.
fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn ethtool_ioctl(socket: &OwnedFd, nic: &str, request: &mut EthtoolChannels) -> io::Result<()> {
    let mut name: [c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    // One byte is left for the terminator.
    if nic.is_empty() || nic.len() >= libc::IFNAMSIZ || nic.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in name.iter_mut().zip(nic.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    let mut ifreq = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: std::ptr::from_mut(request).cast(),
        },
    };
    // SAFETY: the descriptor is open; `ifreq` is a whole `struct ifreq` with a terminated name; its data points to a
    // `struct ethtool_channels` that outlives the call and that both commands read and write within its size.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut ifreq) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_names_are_refused_before_the_kernel_sees_them() {
        for name in ["", "a-name-of-16-byte", "a\0b"] {
            assert_eq!(
                channels(name).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }

    #[test]
    fn the_loopback_device_has_no_channels() {
        assert_eq!(
            channels("lo").unwrap_err().raw_os_error(),
            Some(libc::EOPNOTSUPP)
        );
    }
}
