//! The report in a real browser: nothing on the console, nothing loaded, everything there and of some size.
//!
//! `OSTLER_REPORT_DIR=DIR cargo test -p ostler-outcome --test report_chromium` leaves the page and its screenshots in DIR to look at.

mod report_sample;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ostler_outcome::report::render;

/// What must be on the page, and how many of it at least.
const EXPECTED: [(&str, usize); 15] = [
    ("h1", 1),
    (".caveat", 1),
    (".card", 4),
    ("#summary-table tbody tr", 9),
    ("#summary-table td.best", 11),
    ("#latency-load", 1),
    ("#latency-load .slo", 1),
    ("#latency-load .mark", 9 * 14 - 1),
    ("#events-ctx .bar", 9),
    ("#events-exits .bar", 8),
    ("section.policy", 9),
    ("[id^=timeline-][viewBox]", 8),
    (
        "#timeline-8 .g-vcpu, #timeline-8 .g-nq, #timeline-8 .g-be",
        3,
    ),
    ("#timeline-8 .suspended", 1),
    ("#timeline-8 .decision", 4),
];

/// Runs in the page after everything else, and writes what it sees into the document, where `--dump-dom` shows it.
fn probe() -> String {
    let selectors = serde_json::to_string(&EXPECTED.map(|(selector, _)| selector)).unwrap();
    format!(
        "var seen = {selectors}.map(function (selector) {{
            return Array.from(document.querySelectorAll(selector)).filter(function (element) {{
                var box = element.getBoundingClientRect();
                return box.width + box.height > 0;
            }}).length;
        }});
        var svg = document.querySelector('#latency-load').getBoundingClientRect();
        var hit = document.querySelector('#timeline-8 rect.hit');
        hit.dispatchEvent(new PointerEvent('pointermove', {{bubbles: true, clientX: 200, clientY: 200}}));
        var tip = document.getElementById('tip');
        document.documentElement.setAttribute('data-seen', JSON.stringify({{
            counts: seen, errors: window.seenErrors, width: svg.width, tip: tip.hidden ? '' : tip.textContent,
            overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
            loaded: performance.getEntriesByType('resource').length
        }}));"
    )
}

fn chromium() -> Option<PathBuf> {
    [
        "/usr/bin/chromium",
        "/usr/bin/chromium-browser",
        "/usr/bin/google-chrome",
    ]
    .iter()
    .map(PathBuf::from)
    .find(|p| p.exists())
}

fn browser(chromium: &Path, profile: &Path, arguments: &[&str], page: &Path) -> (String, String) {
    let output = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
        ])
        .args(["--timeout=60000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn the_report_renders_in_a_browser() {
    let Some(chromium) = chromium() else {
        println!(
            "SKIP the_report_renders_in_a_browser: no chromium here (apt-get install chromium)"
        );
        return;
    };
    let temporary = tempfile::tempdir().unwrap();
    let profile = temporary.path().join("profile");
    let kept = std::env::var_os("OSTLER_REPORT_DIR").map(PathBuf::from);
    let dir = kept.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(dir).unwrap();

    let page = render(&report_sample::sample());
    let plain = dir.join("report.html");
    std::fs::write(&plain, &page).unwrap();
    let catcher = "<script>window.seenErrors = []; window.addEventListener('error', function (e) { seenErrors.push(e.message); });\
        document.addEventListener('securitypolicyviolation', function (e) { seenErrors.push(e.violatedDirective); });</script>";
    let probed = page
        .replacen("<style>", &format!("{catcher}<style>"), 1)
        .replacen(
            "</body>",
            &format!("<script>{}</script></body>", probe()),
            1,
        );
    let probed_path = temporary.path().join("probed.html");
    std::fs::write(&probed_path, probed).unwrap();

    let (dom, log) = browser(
        &chromium,
        &profile,
        &["--window-size=1280,1000", "--dump-dom"],
        &probed_path,
    );
    let console: Vec<&str> = log.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    let seen = dom
        .split("data-seen=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("the probe ran");
    let seen: serde_json::Value = serde_json::from_str(&seen.replace("&quot;", "\"")).unwrap();
    assert_eq!(seen["errors"], serde_json::json!([]), "{seen}");
    assert_eq!(seen["loaded"], 0, "the page loads nothing");
    assert_eq!(seen["overflow"], 0, "the page doesn't scroll sideways");
    assert!(seen["width"].as_f64().unwrap() > 900.0);
    assert!(
        seen["tip"].as_str().unwrap().contains("P95"),
        "the pointer shows figures: {seen}"
    );
    for ((selector, least), count) in EXPECTED.iter().zip(seen["counts"].as_array().unwrap()) {
        assert!(
            count.as_u64().unwrap() >= *least as u64,
            "{selector}: {count} visible, expected {least}"
        );
    }

    for (name, arguments) in [
        ("light", vec!["--window-size=1280,7600"]),
        ("dark", vec!["--window-size=1280,7600", "--force-dark-mode"]),
        ("phone", vec!["--window-size=500,4000"]),
    ] {
        let shot = dir.join(format!("{name}.png"));
        let screenshot = format!("--screenshot={}", shot.display());
        let arguments: Vec<&str> = arguments.into_iter().chain([screenshot.as_str()]).collect();
        browser(&chromium, &profile, &arguments, &plain);
        let png = std::fs::read(&shot).unwrap();
        assert!(
            png.starts_with(b"\x89PNG") && png.len() > 50_000,
            "{name}: {} bytes",
            png.len()
        );
    }
}
