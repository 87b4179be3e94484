//! A NIC's RSS indirection table, by the ethtool ioctls.
//!
//! The table says which receive queue each hash bucket goes to; spreading it over the first n queues changes the number of
//! queues in use without touching the link, where changing the channel count (`ethtool -L`) resets it on most drivers and
//! drops packets for seconds. That is why this is the only way in which a NIC's queues are set here.
//!
//! Unsafe code is allowed in this module alone: there is no safe wrapper for `SIOCETHTOOL`, whose argument is a pointer to a
//! structure of variable length.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::RssView;

/// The type of an ioctl's number differs between C libraries; the number fits all of them.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;

/// No NIC has a table longer than this; a driver that claims so is not believed.
const TABLE_MAX: u32 = 1 << 16;

pub(crate) fn get(nic: &str) -> io::Result<RssView> {
    let socket = open()?;
    // struct ethtool_rxfh_indir: cmd, size, ring_index[size]. Asked with size 0, the kernel fills in the size.
    let mut head = [ETHTOOL_GRXFHINDIR, 0];
    ethtool(&socket, nic, &mut head)?;
    let size = head[1];
    if size == 0 || size > TABLE_MAX {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let mut request = vec![0; 2 + size as usize];
    request[0] = ETHTOOL_GRXFHINDIR;
    request[1] = size;
    ethtool(&socket, nic, &mut request)?;
    let table = request.split_off(2);
    // struct ethtool_rxnfc: cmd, flow_type, then data as a u64, the number of rings; 192 bytes in all.
    let mut rings = [0_u32; 64];
    rings[0] = ETHTOOL_GRXRINGS;
    ethtool(&socket, nic, &mut rings)?;
    let (low, high) = if cfg!(target_endian = "little") {
        (rings[2], rings[3])
    } else {
        (rings[3], rings[2])
    };
    let rings = if high == 0 { low } else { u32::MAX };
    Ok(RssView { table, rings })
}

pub(crate) fn set(nic: &str, table: Option<&[u32]>) -> io::Result<()> {
    let table = table.unwrap_or_default();
    let size = u32::try_from(table.len())
        .ok()
        .filter(|&size| size <= TABLE_MAX)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    // Size 0 is the kernel's word for the driver's default.
    let mut request = vec![ETHTOOL_SRXFHINDIR, size];
    request.extend_from_slice(table);
    ethtool(&open()?, nic, &mut request)
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one ethtool request. Every command used here reads and writes at most as many words as the request holds: the
/// length is either fixed by the command or stated in its second word.
fn ethtool(socket: &OwnedFd, nic: &str, request: &mut [u32]) -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which all zeroes is a valid value.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte less than there is, so that the name ends with a zero.
    let room = ifreq.ifr_name.len() - 1;
    if nic.is_empty() || nic.len() > room {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in ifreq.ifr_name.iter_mut().zip(nic.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    ifreq.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
    // SAFETY: the socket is open, ifreq lives through the call, and its data pointer is to `request`, which is as long as
    // the command takes it to be (see above) and borrowed mutably for the call.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            SIOCETHTOOL,
            std::ptr::from_mut(&mut ifreq),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
