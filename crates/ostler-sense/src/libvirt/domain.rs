//! What libvirt's description of a domain says that matters here.
//!
//! Labels are the operator's, in the domain's metadata, under a namespace of ours:
//!
//! ```xml
//! <metadata>
//!   <ostler:labels xmlns:ostler="urn:ostler:labels">
//!     <label key="tier" value="web"/>
//!   </ostler:labels>
//! </metadata>
//! ```

use roxmltree::{Document, Node, ParsingOptions};

use crate::qmp::process::Network;
use crate::qmp::process::TapRef;

/// The namespace of our labels.
const LABELS: &str = "urn:ostler:labels";
/// Elements of a description; that of a guest with hundreds of devices has some thousands.
const NODES_MAX: u32 = 100_000;
/// Labels, and vNICs, of one domain that are kept.
const LIST_MAX: usize = 64;

/// A domain as described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) uuid: Option<String>,
    /// In order of key; of a key that comes twice, the first.
    pub(super) labels: Vec<(String, String)>,
    pub(super) network: Vec<Network>,
    pub(super) cid: Option<u32>,
}

impl Domain {
    pub(super) fn parse(xml: &str) -> Option<Domain> {
        let options = ParsingOptions {
            allow_dtd: false,
            nodes_limit: NODES_MAX,
            ..ParsingOptions::default()
        };
        let document = Document::parse_with_options(xml, options).ok()?;
        let root = document.root_element();
        let mut labels: Vec<(String, String)> = root
            .children()
            .filter(|node| node.has_tag_name("metadata"))
            .flat_map(|metadata| metadata.children())
            .filter(|node| node.has_tag_name((LABELS, "labels")))
            .flat_map(|labels| labels.children())
            .filter(|node| node.is_element() && node.tag_name().name() == "label")
            .filter_map(|label| {
                let text = |name| label.attribute(name).map(str::to_owned);
                Some((text("key")?, text("value")?))
            })
            .take(LIST_MAX)
            .collect();
        // Stable, so that of equal keys the first stays.
        labels.sort_by(|a, b| a.0.cmp(&b.0));
        labels.dedup_by(|later, first| later.0 == first.0);

        let devices = child(root, "devices");
        let network = devices
            .into_iter()
            .flat_map(|devices| devices.children())
            .filter(|node| node.has_tag_name("interface"))
            .filter_map(|interface| {
                Some(Network {
                    tap: TapRef::Name(child(interface, "target")?.attribute("dev")?.to_owned()),
                    mac: child(interface, "mac")
                        .and_then(|mac| mac.attribute("address"))
                        .map(str::to_ascii_lowercase),
                })
            })
            .take(LIST_MAX)
            .collect();
        let cid = devices
            .and_then(|devices| child(devices, "vsock"))
            .and_then(|vsock| child(vsock, "cid")?.attribute("address")?.parse().ok());
        Some(Domain {
            name: child(root, "name")?.text()?.to_owned(),
            uuid: child(root, "uuid")
                .and_then(|uuid| uuid.text())
                .map(str::to_ascii_lowercase),
            labels,
            network,
            cid,
        })
    }
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_understood() {
        let xml = r"
            <domain type='kvm' id='3'>
              <name>web</name>
              <uuid>4DEA22B3-1d52-d8f3-2516-782e98ab3fa0</uuid>
              <metadata>
                <o:labels xmlns:o='urn:ostler:labels'>
                  <label key='tier' value='a &amp; b'/><label key='app' value='x'/>
                  <label key='tier' value='later'/><label key='bare'/>
                </o:labels>
                <labels xmlns='urn:other'><label key='no' value='no'/></labels>
              </metadata>
              <devices>
                <interface type='bridge'><mac address='52:54:00:AB:cd:01'/><target dev='vnet3'/></interface>
                <interface type='user'/>
                <vsock model='virtio'><cid auto='yes' address='9'/></vsock>
              </devices>
            </domain>";
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            Domain::parse(xml),
            Some(Domain {
                name: "web".to_owned(),
                uuid: Some("4dea22b3-1d52-d8f3-2516-782e98ab3fa0".to_owned()),
                labels: vec![label("app", "x"), label("tier", "a & b")],
                network: vec![Network {
                    mac: Some("52:54:00:ab:cd:01".to_owned()),
                    tap: TapRef::Name("vnet3".to_owned()),
                }],
                cid: Some(9),
            })
        );
        for other in ["", "<domain/>", "<domain><name/></domain>", "<a"] {
            assert_eq!(Domain::parse(other), None, "{other}");
        }
    }
}
