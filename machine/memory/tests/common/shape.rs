//! Small machines, described once: as the room's own TOML, and as the numbers that the reference is built from.

#![allow(clippy::format_push_string, reason = "short texts, made once")]

use ostler_machine_memory::{Catalogue, Policy, System, Topology};

/// Sets and ways.
pub type Size = (u64, usize);

/// A device beside the sockets' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// None.
    Absent,
    /// One without a filter.
    Plain,
    /// One with a filter.
    Filtered(Size),
}

/// A machine of equal cores.
#[derive(Clone, Debug)]
pub struct Shape {
    pub sockets: usize,
    /// In each socket.
    pub cores: usize,
    /// Cores that share an L3, or would.
    pub group_cores: usize,
    pub l1i: Size,
    pub l1d: Size,
    pub l2: Size,
    pub l3: Option<(Size, Policy)>,
    /// Memory that is nobody's own.
    pub pool: Pool,
}

/// Where node `n` begins; each is a gibibyte, and the pool comes last.
pub const NODE_BYTES: u64 = 1 << 30;

impl Shape {
    /// Cores in all.
    pub fn count(&self) -> usize {
        self.sockets * self.cores
    }

    /// Nodes in all.
    pub fn nodes(&self) -> usize {
        self.sockets + usize::from(self.pool != Pool::Absent)
    }

    /// As the room reads it.
    pub fn system(&self) -> System {
        let (topology, catalogue) = self.machine();
        System::new(&topology, &catalogue).expect("a good machine")
    }

    /// What the room reads.
    pub fn machine(&self) -> (Topology, Catalogue) {
        let kib = |(sets, ways): Size| {
            let bytes = sets * ways as u64 * 64;
            assert_eq!(bytes % 1024, 0, "whole KiB only");
            bytes / 1024
        };
        let cache =
            |name: &str, size: Size| format!("[{name}]\nkib = {}\nways = {}\n", kib(size), size.1);
        let mut part = String::from(
            "kind = 'cpu'\nsummary = ''\nclock_mhz = 1000\noutstanding_misses = 10\nmemory_mb_per_s = 10000\n\
             [snoop_data_cycles]\ngroup = 60\nsocket = 100\nremote = 600\n\
             [snoop_invalidate_cycles]\ngroup = 30\nsocket = 50\nremote = 300\n",
        );
        part += &cache("l1i", self.l1i);
        part += &cache("l1d", self.l1d);
        part += &cache("l2", self.l2);
        part += "[cycles]\nl1 = 4\nl2 = 12\nmemory = 300\nremote = 640\n";
        if let Some((size, policy)) = self.l3 {
            let policy = match policy {
                Policy::Inclusive => "inclusive",
                Policy::Victim => "victim",
            };
            part += "l3 = 40\n";
            part += &cache("l3", size);
            part += &format!("cores = {}\npolicy = '{policy}'\n", self.group_cores);
        }
        let mut catalogue = Catalogue::default();
        catalogue.add("core", &part).expect("a good part");
        let mut text = String::new();
        for socket in 0..self.sockets {
            text += &format!(
                "[[cores]]\nfirst = {}\nlast = {}\npart = 'core'\nnode = {socket}\ngroup_cores = {}\n",
                socket * self.cores,
                (socket + 1) * self.cores - 1,
                self.group_cores
            );
        }
        for node in 0..self.nodes() as u64 {
            text += &format!(
                "[[nodes]]\nranges = [{{ start = {}, bytes = {NODE_BYTES} }}]\n",
                node * NODE_BYTES
            );
            if node == self.sockets as u64 {
                text += "device = 'pool'\n";
            }
        }
        if self.pool != Pool::Absent {
            let mut device = String::from(
                "kind = 'memory'\nsummary = ''\nlatency_ns = 250\nmb_per_s = 5000\nback_invalidate_ns = 100\n",
            );
            if let Pool::Filtered((sets, ways)) = self.pool {
                device += &format!("[filter]\nlines = {}\nways = {ways}\n", sets * ways as u64);
            }
            catalogue.add("pool", &device).expect("a good device");
        }
        let topology = Topology::parse(&text).expect("a good topology");
        (topology, catalogue)
    }
}
