//! The BPF programs that sense: attaching them, and reading their maps.

pub(crate) mod host;
#[cfg(test)]
mod host_tests;
pub(crate) mod tap;
pub(crate) mod vcpus;
