//! The kernel's texts: CPU masks in hexadecimal, `stat` and `cgroup` of a task, file names made of guests' names.

use std::fmt::Write;

use ostler_model::{CpuId, CpuSet, GuestId, MAX_CPUS};

/// The longest directory name made of a guest's id; the kernel takes 255 bytes.
const NAME_MAX_BYTES: usize = 64;

/// Reads a mask such as `00000001,0000000f`: groups of 32 bits, the highest first.
pub(crate) fn parse_mask(text: &str) -> Option<CpuSet> {
    let mut set = CpuSet::EMPTY;
    let mut base = 0;
    for group in text.trim().rsplit(',') {
        if group.len() > 8 {
            return None;
        }
        let bits = u32::from_str_radix(group, 16).ok()?;
        for bit in (0..32).filter(|bit| bits & (1 << bit) != 0) {
            if base + bit >= MAX_CPUS {
                return None;
            }
            set.insert(CpuId(base + bit));
        }
        base += 32;
    }
    Some(set)
}

/// Writes a mask as short as it can be: the kernel takes leading groups of zeroes as read.
pub(crate) fn format_mask(cpus: &CpuSet) -> String {
    let mut groups = [0_u32; MAX_CPUS as usize / 32];
    for cpu in cpus {
        groups[cpu.0 as usize / 32] |= 1 << (cpu.0 % 32);
    }
    let top = groups.iter().rposition(|&group| group != 0).unwrap_or(0);
    let mut text = format!("{:x}", groups[top]);
    for group in groups[..top].iter().rev() {
        // Writing to a String cannot fail.
        let _ = write!(text, ",{group:08x}");
    }
    text
}

/// The cgroup v2 path in `/proc/PID/cgroup`.
pub(crate) fn parse_cgroup(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The last task of a removed cgroup is still told to be there.
    Some(path.strip_suffix(" (deleted)").unwrap_or(path))
}

/// When a task started, in clock ticks since boot: field 22 of `stat`. With its number it names a task for good. A zombie or
/// dead task counts as none: it runs nowhere and takes no setting.
pub(crate) fn parse_start(stat: &str) -> Option<u64> {
    // The name, in parentheses, may hold spaces and parentheses of its own.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A directory name for a guest. Ids are chosen by whoever runs the guest, so all but a few letters are replaced, and where
/// that changed anything a hash of the id keeps two guests apart.
pub(crate) fn sanitised(guest: &GuestId) -> String {
    let id = guest.as_str();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !id.is_empty() && id.len() <= NAME_MAX_BYTES && id.chars().all(plain) {
        return id.to_owned();
    }
    // FNV-1a: it must be the same in every release, which the standard library's hashers don't promise.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let kept: String = id
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(NAME_MAX_BYTES)
        .collect();
    // The dot occurs in no plain name, so the two kinds never meet.
    format!("guest-{kept}.{hash:016x}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn masks_round_trip(ids in proptest::collection::btree_set(0..MAX_CPUS, 0..40)) {
            let set: CpuSet = ids.into_iter().map(CpuId).collect();
            prop_assert_eq!(parse_mask(&format_mask(&set)), Some(set));
        }

        #[test]
        fn any_text_is_a_mask_or_none(text in "[0-9a-fA-F,x\n]{0,40}") {
            let _ = parse_mask(&text);
        }

        #[test]
        fn a_guests_directory_has_a_tame_name(id in ".{0,80}") {
            let name = sanitised(&GuestId::from(id.as_str()));
            prop_assert!(!name.is_empty() && name.len() <= 120);
            prop_assert!(!name.starts_with('.'));
            prop_assert!(!name.contains('/'));
        }

        #[test]
        fn two_guests_never_share_a_directory(a in ".{0,6}", b in ".{0,6}") {
            let same = sanitised(&GuestId::from(a.as_str())) == sanitised(&GuestId::from(b.as_str()));
            prop_assert_eq!(same, a == b);
        }
    }

    #[test]
    fn reads_the_kernels_masks() {
        assert_eq!(parse_mask("00000000,0000000f\n"), Some(CpuSet::range(0, 4)));
        assert_eq!(parse_mask("1,00000000"), Some(CpuSet::single(CpuId(32))));
        assert_eq!(parse_mask("0"), Some(CpuSet::EMPTY));
        assert_eq!(parse_mask(""), None);
        assert_eq!(format_mask(&CpuSet::EMPTY), "0");
    }

    #[test]
    fn reads_when_a_task_started() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(parse_start(stat), Some(4242));
        assert_eq!(parse_start(&stat.replace(" S ", " Z ")), None);
        assert_eq!(parse_start("7 (x"), None);
    }

    #[test]
    fn reads_where_a_task_is() {
        assert_eq!(
            parse_cgroup("3:cpuset:/\n0::/a.slice/b\n"),
            Some("/a.slice/b")
        );
        assert_eq!(parse_cgroup("0::/gone (deleted)\n"), Some("/gone"));
        assert_eq!(parse_cgroup("3:cpuset:/\n"), None);
    }
}
