//! Traces: what is generated has the published figures, what is written is read again, and what is damaged is told.

use std::io::Cursor;

use ostler_sim::trace::generate::{Settings, Trace, generate};
use ostler_sim::trace::read::{Readings, Selection, TraceError, table};
use ostler_sim::trace::{Category, MONTH, Reading, STEP, Vm, VmId, write_readings, write_table};
use proptest::prelude::*;

fn month() -> Trace {
    generate(&Settings {
        population: 20_000,
        seconds: MONTH + STEP,
        seed: 3,
    })
}

fn share(vms: &[Vm], holds: impl Fn(&Vm) -> bool) -> f64 {
    vms.iter().filter(|vm| holds(vm)).count() as f64 / vms.len() as f64
}

fn hours(vm: &Vm) -> f64 {
    (vm.deleted - vm.created).max(STEP) as f64 / 3600.0
}

/// Each figure of the generator's table, within a tenth of it, or two points of a share.
#[test]
fn generated_traces_have_the_published_figures() {
    let trace = month();
    let vms = &trace.vms;
    let near = |value: f64, published: f64, what: &str| {
        let within = (published * 0.1).max(0.02);
        assert!(
            (value - published).abs() <= within,
            "{what}: {value}, published {published}"
        );
    };
    let all: f64 = vms.iter().map(hours).sum();
    near(vms.len() as f64 / (all / 720.0), 13.9, "turnover");
    near(all / vms.len() as f64, 51.8, "mean lifetime, h");
    let core_hours = |holds: &dyn Fn(&Vm) -> bool| {
        let of = vms.iter().filter(|vm| holds(vm));
        of.map(|vm| hours(vm) * f64::from(vm.cores)).sum::<f64>()
    };
    let cores = core_hours(&|_| true);
    near(cores / all, 2.28, "mean cores");
    // More than 15 %, more than 90 %, almost 80 %, about 70 %.
    let minutes = share(vms, |vm| hours(vm) <= 1.0 / 6.0 + 1e-9);
    assert!(
        (0.15..0.25).contains(&minutes),
        "lifetimes of ten minutes: {minutes}"
    );
    let day = share(vms, |vm| hours(vm) < 24.0);
    assert!((0.9..0.95).contains(&day), "lifetimes below a day: {day}");
    near(share(vms, |vm| vm.cores <= 2), 0.79, "one or two cores");
    near(share(vms, |vm| vm.memory < 4 << 30), 0.7, "less than 4 GB");
    near(
        share(vms, |vm| vm.cpu_mean < 20.0),
        0.6,
        "mean utilisation below 20 %",
    );
    near(share(vms, |vm| vm.cpu_p95 < 50.0), 0.4, "P95 below 50 %");
    let of = |category| core_hours(&|vm| vm.category == category) / cores;
    near(of(Category::Interactive), 0.28, "interactive");
    near(of(Category::DelayInsensitive), 0.68, "delay-insensitive");
    let mut sizes = std::collections::BTreeMap::new();
    for vm in vms {
        *sizes.entry(vm.deployment).or_insert(0_u32) += 1;
    }
    let of_size = |most: u32| {
        sizes.values().filter(|size| **size <= most).count() as f64 / sizes.len() as f64
    };
    near(of_size(1), 0.4, "deployments of one");
    near(of_size(5), 0.8, "deployments of up to five");
    // Requests by the hour of the day: four times as many at the peak as at night, hours of both being means over a month.
    let mut by_hour = [0.0; 24];
    for vm in vms.iter().filter(|vm| vm.created > 0) {
        by_hour[usize::try_from(vm.created / 3600 % 24).expect("an hour")] += 1.0;
    }
    let least = by_hour.iter().copied().fold(f64::INFINITY, f64::min);
    let most = by_hour.iter().copied().fold(0.0, f64::max);
    assert!((3.0..5.5).contains(&(most / least)), "{by_hour:?}");
}

/// A VM's readings are what its row says of them.
#[test]
fn readings_are_what_the_table_says() {
    let trace = month();
    let (mut sum, mut expected, mut above, mut all) = (0.0, 0.0, 0.0, 0.0);
    for vm in trace.vms.iter().filter(|vm| hours(vm) > 600.0).take(300) {
        let readings: Vec<Reading> = (0..2000)
            .map(|at| ostler_sim::trace::generate::reading(3, vm, at * STEP))
            .collect();
        for reading in &readings {
            assert!(
                reading.min <= reading.mean && reading.mean <= reading.max && reading.max <= 100.0
            );
            sum += reading.mean;
            expected += vm.cpu_mean;
            above += f64::from(reading.max > vm.cpu_p95);
            all += 1.0;
        }
    }
    assert!((sum / expected - 1.0).abs() < 0.05, "{sum} {expected}");
    assert!((0.02..0.12).contains(&(above / all)), "{}", above / all);
}

#[test]
fn what_is_written_is_read_again() {
    let settings = Settings {
        population: 40,
        seconds: 6 * 3600,
        seed: 9,
    };
    let mut trace = generate(&settings);
    assert_eq!(
        trace,
        generate(&settings),
        "the same seed gives the same trace"
    );
    let mut text = Vec::new();
    write_table(&mut text, &trace.vms).expect("it is memory");
    let read = table(Cursor::new(&text), &Selection::default()).expect("it is a table");
    assert_eq!(read.vms, trace.vms);
    assert_eq!((read.left_out, read.damage.lines), (0, 0));
    let (mut text, mut into) = (Vec::new(), Vec::new());
    let mut steps = Vec::new();
    while let Some(at) = trace.step(&mut into) {
        write_readings(&mut text, &into).expect("it is memory");
        steps.push((at, into.clone()));
    }
    assert_eq!(steps.len(), 72);
    let mut readings = Readings::new(Cursor::new(&text));
    for (at, expected) in steps {
        let step = readings
            .step(|_| true, &mut into)
            .expect("they are readings");
        assert_eq!((step, &into), (Some(at), &expected));
        assert!(into.iter().all(|reading| reading.at == at));
    }
    assert_eq!(readings.step(|_| true, &mut into).expect("the end"), None);
}

/// A row of each of the two public traces.
#[test]
fn rows_of_both_public_traces_are_read() {
    let text = "x/XsOfHO4ocsV99i,VDU4C8cq,Pc2VLB8a,0,2591700,99.369869,3.424094,10.194309,Delay-insensitive,1,1.75\n\
                2F0vVZ0zF3,BSXOcywx,3J17LcV4,424500,425400,37.87,3.32,37.87,Interactive,>24,>64\r\n";
    let read = table(Cursor::new(text), &Selection::default()).expect("it is a table");
    assert_eq!((read.vms[0].cores, read.vms[0].memory), (1, 7 << 28));
    assert_eq!((read.vms[1].cores, read.vms[1].memory), (30, 70 << 30));
    assert_eq!(read.vms[0].id, VmId::of("x/XsOfHO4ocsV99i"));
    assert_eq!(read.vms[1].category, Category::Interactive);
    let text = "0,x/XsOfHO4ocsV99i,1.5,3.25,2.5\n300,x/XsOfHO4ocsV99i,0,1,0.5\n";
    let mut readings = Readings::new(Cursor::new(text));
    let mut into = Vec::new();
    assert_eq!(readings.step(|_| true, &mut into).expect("fine"), Some(0));
    assert_eq!(into[0].max.to_bits(), 3.25_f64.to_bits());
}

#[test]
fn damaged_lines_are_told() {
    let fine = "a,s,d,0,300,9,2,5,Unknown,1,1.75\n";
    let of = |line: &str| {
        let mut text = String::new();
        for name in 0..60 {
            text.push_str(&fine.replacen('a', &format!("vm-{name}"), 1));
        }
        text.push_str(line);
        let read = table(Cursor::new(text), &Selection::default()).expect("one line is no harm");
        assert_eq!((read.vms.len(), read.damage.lines), (60, 1), "{line}");
        assert_eq!(read.damage.first[0].0, 61);
        read.damage.first[0].1
    };
    let long = format!("{}\n", "x".repeat(10_000));
    for (line, what) in [
        ("a,s,d,0,300\n", "fewer than 11"),
        (",s,d,0,300,9,2,5,Unknown,1,1.75\n", "no name"),
        ("a,s,d,0,300,9,2,5,Unknown,1,1.75,7\n", "more than 11"),
        ("a,s,d,600,300,9,2,5,Unknown,1,1.75\n", "ends before"),
        ("a,s,d,x,300,9,2,5,Unknown,1,1.75\n", "whole number"),
        ("a,s,d,0,300,900,2,5,Unknown,1,1.75\n", "0 to 100"),
        ("a,s,d,0,300,NaN,2,5,Unknown,1,1.75\n", "0 to 100"),
        ("a,s,d,0,300,9,2,5,Batch,1,1.75\n", "category"),
        ("a,s,d,0,300,9,2,5,Unknown,0,1.75\n", "1 to 4096"),
        ("a,s,d,0,300,9,2,5,Unknown,1,-3\n", "100000 GB"),
        ("vm-7,s,d,0,300,9,2,5,Unknown,1,1.75\n", "there already"),
        (long.as_str(), "no name"),
    ] {
        assert!(of(line).contains(what), "{}", of(line));
    }
    // A header, or another file altogether.
    let error = table(Cursor::new("vmid,subscriptionid\n"), &Selection::default());
    assert!(matches!(error, Err(TraceError::Damaged { line: 1, .. })));
    let few = Selection {
        vms_max: 1,
        ..Selection::default()
    };
    let two = format!("{fine}{}", fine.replacen('a', "b", 1));
    let error = table(Cursor::new(two), &few).expect_err("it is one too many");
    assert!(error.to_string().contains("select fewer"), "{error}");
    let mut into = Vec::new();
    let mut readings = Readings::new(Cursor::new("300,a,1,2,1\n0,a,1,2,1\n"));
    let error = readings
        .step(|_| true, &mut into)
        .expect_err("time goes back");
    assert!(error.to_string().contains("line 2"), "{error}");
}

proptest! {
    /// Whatever is read: no panic, every line is a VM, left out or damaged, and selections are parts of the whole.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..2000), one_of in 0..5_u64) {
        let _ = table(Cursor::new(&bytes), &Selection::default());
        let mut into = Vec::new();
        let mut readings = Readings::new(Cursor::new(&bytes));
        while let Ok(Some(_)) = readings.step(|_| true, &mut into) {}
        let trace = generate(&Settings { population: 10, seconds: 3600, seed: 1 });
        let mut text = Vec::new();
        write_table(&mut text, &trace.vms).expect("it is memory");
        let selection = Selection { one_of, ..Selection::default() };
        let read = table(Cursor::new(&text), &selection).expect("it is a table");
        prop_assert_eq!(read.vms.len() as u64 + read.left_out, trace.vms.len() as u64);
        prop_assert!(read.vms.iter().all(|vm| vm.id.0 % one_of.max(1) == 0));
    }
}
