//! The Debian packages that ostler needs, in one place: to build it, to build the lab's image, and inside that image.
//! `xtask` installs from these same lists.

/// To compile ostler: C and BPF compilers, a C compiler for AArch64 (programs for simulated machines), and what libbpf's own libelf and zlib are built with. The build script that compiles BPF
/// programs is linked with the system's libelf and zlib: cargo tells the features of what runs here from those of what is built.
pub const BUILD: &[&str] = &[
    "autoconf",
    "automake",
    "autopoint",
    "bison",
    "clang-19",
    "clang-format-19",
    "flex",
    "gawk",
    "gcc",
    "gcc-aarch64-linux-gnu",
    "gettext",
    "libc6-dev",
    "libelf-dev",
    "libtool",
    "llvm-19",
    "make",
    "pkg-config",
    "zlib1g-dev",
];

/// To build and boot the lab's image. QEMU is not among them: the lab brings its own.
pub const LAB: &[&str] = &[
    "debian-archive-keyring",
    "e2fsprogs",
    "kmod",
    "mmdebstrap",
    "xz-utils",
];

/// The QEMUs that simulated machines run in, unpacked into a tree of their own ([`crate::image::Emulators`]).
pub const EMULATORS: &[&str] = &["qemu-system-arm", "qemu-system-x86"];

/// What tests hold ostler against: real servers, a browser for the reports, and another's caches.
pub const TEST: &[&str] = &[
    "chromium",
    "fonts-dejavu-core",
    "iproute2",
    "libvirt-dev",
    "memcached",
    "nginx-light",
    "redis-server",
    "valgrind",
];

/// User space of the emulated host, on top of mmdebstrap's `minbase`.
pub const HOST: &[&str] = &[
    "bpftool",
    "busybox-static",
    "ethtool",
    "iproute2",
    "kmod",
    "memcached",
    "nftables",
    "nginx-light",
    "numactl",
    "procps",
    "qemu-system-x86",
    "redis-server",
    "socat",
    "stress-ng",
    "util-linux",
];

/// What building ostler and running the lab needs.
pub fn all() -> Vec<&'static str> {
    let mut all: Vec<_> = BUILD.iter().chain(LAB).copied().collect();
    all.sort_unstable();
    all
}
