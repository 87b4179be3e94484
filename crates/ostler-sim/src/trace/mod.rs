//! Traces of a cloud's VMs: the public Azure one, or one generated with its published figures.
//!
//! | file | columns, without a header | from |
//! |---|---|---|
//! | `vmtable.csv` | VM, subscription, deployment, created, deleted (s), max CPU, mean CPU, P95 of max CPU (%), category, cores, memory (GB) | AzurePublicDataset, "Azure Public Dataset - Trace Analysis.ipynb" |
//! | `vm_cpu_readings-file-N-of-M.csv` | timestamp (s, every 300), VM, min, max, mean CPU (%) | AzurePublicDatasetV1.md and V2.md, items 15 to 18 |
//!
//! In V1 (2017) cores and memory are figures, in V2 (2019) the upper bounds of buckets, of which the last have none: `>24` and `>64`. The files of readings are slices of time, in order of the
//! timestamp. They have gigabytes, so nothing here holds more of them than one timestamp's ([`read::Readings`]); of the table, only VMs that are asked for.
//!
//! VMs' names are 64 characters of a hash; what is kept is a number made of them ([`VmId`]), which is the same for the same name.

pub mod generate;
pub mod read;
mod write;

pub use write::{write_readings, write_table};

/// A VM's name, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId(pub u64);

impl VmId {
    /// Of a name; `vm-` and digits, as generated traces have them, are those digits.
    pub fn of(name: &str) -> VmId {
        if let Some(number) = name
            .strip_prefix("vm-")
            .and_then(|digits| digits.parse().ok())
        {
            return VmId(number);
        }
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        VmId(hash ^ (hash >> 29))
    }
}

/// A row of `vmtable.csv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vm {
    /// Which.
    pub id: VmId,
    /// Whose it is.
    pub subscription: VmId,
    /// What it was deployed with.
    pub deployment: VmId,
    /// When it begins, s from the trace's beginning, at which there may be many already.
    pub created: u64,
    /// When it ends, s; those that are there at the trace's end have that.
    pub deleted: u64,
    /// The greatest of its readings' maxima, percent of its cores.
    pub cpu_max: f64,
    /// The mean, percent.
    pub cpu_mean: f64,
    /// The 95th percentile of maxima, percent.
    pub cpu_p95: f64,
    /// What it is used for, as far as its load tells.
    pub category: Category,
    /// Its cores.
    pub cores: u32,
    /// Its memory, bytes.
    pub memory: u64,
}

/// What a VM is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// Somebody waits for it: its load has days.
    Interactive,
    /// Nobody does.
    DelayInsensitive,
    /// It wasn't there for long enough to tell.
    Unknown,
}

impl Category {
    /// As the table has it.
    pub fn name(self) -> &'static str {
        match self {
            Category::Interactive => "Interactive",
            Category::DelayInsensitive => "Delay-insensitive",
            Category::Unknown => "Unknown",
        }
    }
}

/// A row of a file of readings: what a VM did in the five minutes from a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// When, s.
    pub at: u64,
    /// Which.
    pub vm: VmId,
    /// The least, percent of its cores.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

/// The time between readings, s.
pub const STEP: u64 = 300;
/// The public traces' last second: 30 days, less a reading.
pub const MONTH: u64 = 30 * 86_400 - STEP;
/// GB as the table has them.
pub const GB: f64 = (1_u64 << 30) as f64;
