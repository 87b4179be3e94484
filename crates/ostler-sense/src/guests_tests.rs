//! Guests' queues and labels.

use super::*;

fn queues(workers: u32, queues: u32, vsock: bool) -> Vec<Option<u32>> {
    let workers = (100..100 + workers).map(Tid).collect();
    let assigned = assign_queues(workers, queues, vsock);
    assigned.into_iter().map(|(_, queue)| queue).collect()
}

#[test]
fn a_queue_is_claimed_only_when_the_numbers_add_up() {
    assert_eq!(queues(2, 2, false), [Some(0), Some(1)]);
    assert_eq!(queues(3, 2, true), [Some(0), Some(1), None]);
    assert_eq!(queues(1, 0, true), [None]);
    // A worker too many, or one too few: whose is whose can't be told.
    assert_eq!(queues(3, 2, false), [None; 3]);
    assert_eq!(queues(1, 2, false), [None; 1]);
    assert_eq!(queues(2, 2, true), [None; 2]);
    assert_eq!(queues(0, 0, false), []);
}

struct Told(Vec<Report>);

impl Source for Told {
    fn reports(&mut self, out: &mut Vec<(Arc<Report>, Nanos)>) {
        out.extend(self.0.iter().map(|r| (Arc::new(r.clone()), Nanos::ZERO)));
    }

    fn nudge(&mut self, _pid: Pid) {}
}

/// A rule by a label must match, however else the guest is found.
#[test]
fn a_domain_that_is_found_by_its_socket_too_has_its_labels() {
    let proc = PathBuf::from("/proc");
    let pid = Pid(std::process::id());
    let report = |source, labels: &[(&str, &str)]| Report {
        source,
        name: "web".to_owned(),
        uuid: None,
        metadata: labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        pid,
        started: Process::of(&proc, pid).unwrap().started,
        vcpus: Vec::new(),
        taps: Vec::new(),
        vsock_cid: None,
    };
    let mut guests = Guests::new(proc.clone(), PathBuf::from("/nowhere")).unwrap();
    let mut labels = |libvirt: Option<&[(&str, &str)]>| {
        let domain = libvirt.map(|labels| report(GuestSource::Libvirt, labels));
        let mut sources: Vec<Box<dyn Source>> = vec![
            Box::new(Told(vec![report(GuestSource::Qmp, &[])])),
            Box::new(Told(domain.into_iter().collect())),
        ];
        guests.adopt(&mut sources);
        let views = guests.views(None, &mut sources, Nanos::ZERO, |_, _| None);
        let [view] = <[GuestView; 1]>::try_from(views).unwrap();
        assert_eq!(view.source, GuestSource::Qmp);
        view.metadata
            .into_iter()
            .map(|(key, _)| key)
            .collect::<Vec<_>>()
    };
    assert!(labels(None).is_empty());
    assert_eq!(labels(Some(&[("tier", "web")])), ["tier"]);
    assert_eq!(labels(Some(&[("app", "x")])), ["app"]);
    assert!(labels(Some(&[])).is_empty());
}
