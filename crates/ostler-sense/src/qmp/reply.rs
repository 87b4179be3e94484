//! What QMP's answers mean. Each function takes what came after `"return":` and yields what it understands of it.

use serde_json::Value;

use ostler_model::Tid;

/// The most vCPUs that are believed of one guest (QEMU's own limit is 4096).
const VCPUS_MAX: usize = 4096;
/// The most devices of one guest that are looked at.
pub(super) const DEVICES_MAX: usize = 64;
/// The longest text that is kept.
const TEXT_MAX: usize = 256;

/// A vNIC and what it is plugged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// The MAC address that the guest sees, in our form, where it is one.
    pub(crate) mac: Option<String>,
    /// The interface, or QEMU's descriptor of it.
    pub(crate) tap: TapRef,
}

/// How QEMU names a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TapRef {
    /// By interface name.
    Name(String),
    /// By file descriptor, when somebody else opened it.
    Fd(u32),
}

/// A device of the guest that can be asked for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// A vsock device; the path to its properties.
    Vsock(String),
}

/// A text, cut to what is kept.
fn text(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (!text.is_empty()).then(|| text.chars().take(TEXT_MAX).collect())
}

/// `query-status`: whether the guest has ever been made to run. `prelaunch` is also what a paused guest is in that was reset.
pub(super) fn started(value: &Value) -> Option<bool> {
    let status = value["status"].as_str()?;
    Some(!matches!(status, "preconfig" | "prelaunch" | "inmigrate"))
}

/// `query-name`.
pub(super) fn name(value: &Value) -> Option<String> {
    text(&value["name"])
}

/// `query-uuid`; the nil UUID is what QEMU says when it has none.
pub(super) fn uuid(value: &Value) -> Option<String> {
    let uuid = text(&value["UUID"])?.to_ascii_lowercase();
    let shaped = uuid.len() == 36 && uuid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (shaped && uuid.bytes().any(|b| b != b'0' && b != b'-')).then_some(uuid)
}

/// `query-cpus-fast`: index and thread, in order of index; `None` when it isn't a list.
pub(super) fn vcpus(value: &Value) -> Option<Vec<(u32, Tid)>> {
    let mut vcpus: Vec<(u32, Tid)> = value
        .as_array()?
        .iter()
        .take(VCPUS_MAX)
        .filter_map(|cpu| {
            let number = |key: &str| u32::try_from(cpu[key].as_u64()?).ok();
            Some((number("cpu-index")?, Tid(number("thread-id")?)))
        })
        .collect();
    vcpus.sort_unstable();
    vcpus.dedup_by_key(|(index, _)| *index);
    Some(vcpus)
}

/// `qom-list` of a folder of devices.
pub(super) fn devices(folder: &str, value: &Value) -> Vec<Device> {
    let Some(children) = value.as_array() else {
        return Vec::new();
    };
    children
        .iter()
        .take(DEVICES_MAX)
        .filter_map(|child| {
            let kind = child["type"].as_str()?;
            let name = text(&child["name"])?;
            (kind.starts_with("child<vhost-vsock") || kind.starts_with("child<vhost-user-vsock"))
                .then(|| Device::Vsock(format!("{folder}/{name}")))
        })
        .collect()
}

/// `qom-get guest-cid`; 0 to 2 are not guests'.
pub(super) fn cid(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok().filter(|&cid| cid > 2)
}

/// The monitor's `info network`, which alone tells which tap each vNIC is plugged into:
///
/// ```text
/// net0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56
///  \ hn0: index=0,type=tap,ifname=tap0,script=no,downscript=no
/// ```
///
/// A multi-queue vNIC has a line per queue; a backend without a vNIC (or behind a hub) stands alone.
pub(crate) fn taps_of_network(text: &str) -> Vec<Network> {
    let mut out: Vec<Network> = Vec::new();
    let mut mac = None;
    for line in text.lines().take(DEVICES_MAX * 256) {
        let Some((_, fields)) = line.split_once(": ") else {
            continue;
        };
        let field = |key: &str| {
            fields
                .split(',')
                .find_map(|field| field.trim().strip_prefix(key)?.strip_prefix('='))
        };
        let of_nic = line.trim_start().starts_with('\\');
        match field("type") {
            Some("nic") => mac = field("macaddr").and_then(mac_address),
            Some("tap") => {
                if !of_nic {
                    mac = None;
                }
                let tap = match (field("ifname"), field("fd")) {
                    (Some(name), _) => TapRef::Name(name.chars().take(TEXT_MAX).collect()),
                    (None, Some(fd)) => match fd.parse() {
                        Ok(fd) => TapRef::Fd(fd),
                        Err(_) => continue,
                    },
                    (None, None) => continue,
                };
                let network = Network {
                    mac: mac.clone(),
                    tap,
                };
                if !out.contains(&network) && out.len() < DEVICES_MAX {
                    out.push(network);
                }
            }
            _ => {}
        }
    }
    out
}

/// Six bytes in hexadecimal, lower case with colons.
fn mac_address(text: &str) -> Option<String> {
    let mac = text.to_ascii_lowercase();
    let shaped = mac.len() == 17
        && mac.bytes().enumerate().all(|(at, b)| {
            if at % 3 == 2 {
                b == b':'
            } else {
                b.is_ascii_hexdigit()
            }
        });
    shaped.then_some(mac)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_monitors_network_text_is_understood() {
        let text = "n0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:AA:00:01\r\n \
                    \\ h0: index=0,type=tap,ifname=tap7,script=no,downscript=no\r\n \
                    \\ h0: index=1,type=tap,ifname=tap7,script=no,downscript=no\r\n\
                    n1: index=0,type=nic,model=virtio-net-pci,macaddr=nonsense\r\n \
                    \\ h1: index=0,type=tap,fd=31\r\n\
                    alone: index=0,type=tap,ifname=tap9\r\n\
                    u0: index=0,type=user,net=10.0.2.0,restrict=off\r\n";
        let network = |mac: Option<&str>, tap| Network {
            mac: mac.map(str::to_owned),
            tap,
        };
        assert_eq!(
            taps_of_network(text),
            [
                network(Some("52:54:00:aa:00:01"), TapRef::Name("tap7".into())),
                network(None, TapRef::Fd(31)),
                network(None, TapRef::Name("tap9".into())),
            ]
        );
    }

    #[test]
    fn answers_of_another_shape_are_no_answers() {
        assert_eq!(vcpus(&json!({})), None);
        let odd = json!([{"cpu-index": 1}, 7, {"cpu-index": -1, "thread-id": 5}, {"cpu-index": 0, "thread-id": 9}]);
        assert_eq!(vcpus(&odd), Some(vec![(0, Tid(9))]));
        assert_eq!(uuid(&json!({"UUID": "not one"})), None);
        assert_eq!(started(&json!([])), None);
        assert_eq!(started(&json!({"status": 7})), None);
        assert_eq!(started(&json!({"status": "prelaunch"})), Some(false));
        assert_eq!(started(&json!({"status": "paused"})), Some(true));
        assert_eq!(
            uuid(&json!({"UUID": "00000000-0000-0000-0000-000000000000"})),
            None
        );
        assert_eq!(cid(&json!(2)), None);
        assert_eq!(cid(&json!(1u64 << 40)), None);
        assert_eq!(
            name(&json!({"name": "x".repeat(9999)})).map(|n| n.len()),
            Some(TEXT_MAX)
        );
    }
}
