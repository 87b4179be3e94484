//! `bpf/tap`: request-response times on taps.
#![allow(unsafe_code)] // libbpf-rs has no tcx attachment yet; libbpf's own call is used.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder};
use ostler_abi::bpf::{HIST_BUCKETS, TapHist};

use ostler_bpf::{BpfError, MappedArray, map, program, quiet_libbpf, require_btf, resize};

/// The most taps that are watched at once.
const TAPS_MAX: u32 = 1024;
/// Flows remembered per tap; the least recently used give way.
const FLOWS_MAX: u32 = 4096;
/// `sizeof(struct flow_key)` and `sizeof(struct flow)`.
const FLOW_BYTES: (u32, u32) = (40, 40);

/// A tap that is watched.
struct Watched {
    slot: u32,
    _links: [Link; 2],
}

/// The loaded programs and the taps they are attached to.
pub(crate) struct TapBpf {
    // Before the object: links go first.
    taps: BTreeMap<u32, Watched>,
    free: Vec<u32>,
    hists: MappedArray,
    object: Object,
}

impl TapBpf {
    pub(crate) fn load(sys: &Path) -> Result<TapBpf, BpfError> {
        quiet_libbpf();
        require_btf(sys)?;
        let mut open = ObjectBuilder::default()
            .open_memory(ostler_bpf::TAP)
            .map_err(|error| BpfError::step("open the tap programs", &error, "6.6"))?;
        resize(&mut open, "flows_of_slot", TAPS_MAX)?;
        resize(&mut open, "slot_of_tap", TAPS_MAX)?;
        resize(&mut open, "hists", TAPS_MAX)?;
        let mut object = open
            .load()
            .map_err(|error| BpfError::step("load the tap programs", &error, "6.6"))?;
        let hists = {
            let map = map(&mut object, "hists");
            MappedArray::new(map.as_fd(), TAPS_MAX as usize, size_of::<TapHist>() / 8)
        }
        .map_err(|source| BpfError::Map {
            map: "hists",
            source,
        })?;
        Ok(TapBpf {
            taps: BTreeMap::new(),
            free: (0..TAPS_MAX).rev().collect(),
            hists,
            object,
        })
    }

    /// Watches an interface of the network namespace we are in.
    pub(crate) fn watch(&mut self, ifindex: u32) -> Result<(), BpfError> {
        if self.taps.contains_key(&ifindex) {
            return Ok(());
        }
        let slot = self.free.pop().ok_or(BpfError::TooManyTaps(TAPS_MAX))?;
        match self.attach(ifindex, slot) {
            Ok(links) => {
                self.taps.insert(
                    ifindex,
                    Watched {
                        slot,
                        _links: links,
                    },
                );
                Ok(())
            }
            Err(error) => {
                self.free(ifindex, slot);
                Err(error)
            }
        }
    }

    fn attach(&mut self, ifindex: u32, slot: u32) -> Result<[Link; 2], BpfError> {
        let failed = |what: &str, error: &libbpf_rs::Error| {
            BpfError::step(format!("{what} on interface {ifindex}"), error, "6.6")
        };
        // A slot that was another tap's starts from nothing.
        for word in self.hists.entry(slot as usize) {
            word.store(0, Ordering::Relaxed);
        }
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let flows = MapHandle::create(
            MapType::LruHash,
            Some("ostler_flows"),
            FLOW_BYTES.0,
            FLOW_BYTES.1,
            FLOWS_MAX,
            &options,
        )
        .map_err(|error| failed("make a table of flows", &error))?;
        map(&mut self.object, "flows_of_slot")
            .update(
                &slot.to_ne_bytes(),
                &flows.as_fd().as_raw_fd().to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(|error| failed("set the table of flows", &error))?;
        map(&mut self.object, "slot_of_tap")
            .update(&ifindex.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| failed("register", &error))?;
        Ok([
            self.attach_tcx("to_guest", ifindex)?,
            self.attach_tcx("from_guest", ifindex)?,
        ])
    }

    fn attach_tcx(&self, name: &str, ifindex: u32) -> Result<Link, BpfError> {
        let program = program(&self.object, name);
        let index = i32::try_from(ifindex).unwrap_or(0);
        // SAFETY: the program belongs to the loaded object, which lives as long as self; null options are the defaults.
        let link = unsafe {
            libbpf_sys::bpf_program__attach_tcx(
                program.as_libbpf_object().as_ptr(),
                index,
                std::ptr::null(),
            )
        };
        match NonNull::new(link) {
            // SAFETY: libbpf made the link just now, and nobody else owns it.
            Some(link) => Ok(unsafe { Link::from_ptr(link) }),
            None => Err(BpfError::Step {
                what: format!("attach {name} to interface {ifindex}"),
                source_text: std::io::Error::last_os_error().to_string(),
                kernel_min: "6.6",
            }),
        }
    }

    /// Stops watching an interface, whether or not it is still there.
    pub(crate) fn unwatch(&mut self, ifindex: u32) {
        if let Some(watched) = self.taps.remove(&ifindex) {
            let slot = watched.slot;
            drop(watched);
            self.free(ifindex, slot);
        }
    }

    fn free(&mut self, ifindex: u32, slot: u32) {
        let _ = map(&mut self.object, "slot_of_tap").delete(&ifindex.to_ne_bytes());
        let _ = map(&mut self.object, "flows_of_slot").delete(&slot.to_ne_bytes());
        self.free.push(slot);
    }

    /// How many samples a tap has had; the cheap question to ask first.
    pub(crate) fn samples(&self, ifindex: u32) -> Option<u64> {
        let slot = self.taps.get(&ifindex)?.slot as usize;
        Some(self.hists.entry(slot)[0].load(Ordering::Acquire))
    }

    /// The counts of all buckets so far; they wrap.
    pub(crate) fn counts(&self, ifindex: u32, out: &mut [u32; HIST_BUCKETS]) -> bool {
        let Some(watched) = self.taps.get(&ifindex) else {
            return false;
        };
        let words = &self.hists.entry(watched.slot as usize)[1..];
        for (pair, word) in out.chunks_exact_mut(2).zip(words) {
            pair.copy_from_slice(&super::host::halves(word.load(Ordering::Relaxed)));
        }
        true
    }

    /// Runs a program on a packet made up for it, as if it had come by that interface.
    #[cfg(test)]
    pub(crate) fn run(&self, name: &str, ifindex: u32, packet: &[u8]) -> libbpf_rs::Result<u32> {
        // struct __sk_buff as far as ifindex, its eleventh field.
        let mut context = [0; 44];
        context[40..].copy_from_slice(&ifindex.to_ne_bytes());
        let output = program(&self.object, name).test_run(libbpf_rs::ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(packet),
            ..libbpf_rs::ProgramInput::default()
        })?;
        Ok(output.return_value)
    }
}
