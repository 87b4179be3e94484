//! What the tests of machines that really run have in common.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::time::Duration;

use ostler_lab::image::{Emulators as Tree, LabDir};
use ostler_machine_launch::{Emulators, Ended, Options, World};
use ostler_machine_programs::{Program, figures};

/// Far more than any of these takes, on a busy machine too.
pub const HUNG: Duration = Duration::from_mins(5);
/// The QEMUs, and the plugin that was built with this test.
pub fn emulators(test: &str) -> Option<Emulators> {
    let Some(tree) = Tree::find(&LabDir::detect()) else {
        println!("SKIP {test}: there are no QEMUs; `ostler machine setup` fetches them");
        return None;
    };
    let folder = std::env::current_exe().expect("this program is a file");
    let plugin = folder.with_file_name("libostler_machine_time.so");
    Some(Emulators::in_tree(tree.root(), plugin))
}

/// A folder with a program for both, and a description beside it.
pub struct Bench {
    pub folder: tempfile::TempDir,
}

impl Bench {
    pub fn new(program: Program, parameters: &[u64]) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let bench = Bench { folder };
        bench.write("x86_64", program.x86_64(parameters));
        bench.write("aarch64", program.aarch64(parameters));
        bench
    }

    pub fn write(&self, name: &str, image: Vec<u8>) {
        std::fs::write(self.folder.path().join(name), image).expect("a file");
    }

    pub fn world(&self, text: &str) -> World {
        World::parse(text, &self.folder.path().join("world.toml")).expect("it is good")
    }
}

pub fn options() -> Options {
    Options {
        timeout: Some(HUNG),
        quiet: true,
        ..Options::default()
    }
}

/// A machine alone.
pub fn alone(isa: &str, kernel: &str) -> String {
    format!(
        "[[machine]]\nname = \"one\"\nisa = \"{isa}\"\nmemory = \"64M\"\nkernel = \"{kernel}\"\n"
    )
}

/// Two machines; memory that both see is at the returned address.
pub fn two(model: &str) -> (String, u64) {
    let ranges: &[(&str, &str, &str)] = match model {
        "separated" => &[
            ("0", "1G", "x86"),
            ("1G", "1G", "arm"),
            ("2G", "2G", "arm"),
            ("4G", "1G", "x86"),
        ],
        "shared" => &[
            ("0", "1G", "x86"),
            ("1G", "3G", "arm"),
            ("4G", "1G", "pool"),
        ],
        "fully-shared" => &[
            ("0", "1G", "x86"),
            ("1G", "1G", "pool"),
            ("2G", "512M", "pool"),
        ],
        _ => unreachable!("there are three"),
    };
    let shared = match model {
        "separated" => 4 << 30,
        "shared" => (4 << 30) + (64 << 20),
        _ => 2 << 30,
    };
    let ranges: Vec<_> = ranges
        .iter()
        .map(|(start, size, owner)| {
            format!(
                "[[memory.range]]\nstart = \"{start}\"\nsize = \"{size}\"\nowner = \"{owner}\"\n"
            )
        })
        .collect();
    let ranges = ranges.concat();
    let text = format!(
        "[[machine]]\nname = \"x86\"\nisa = \"x86-64\"\nkernel = \"x86_64\"\n\
         [[machine]]\nname = \"arm\"\nisa = \"aarch64\"\nkernel = \"aarch64\"\n\
         [memory]\nmodel = \"{model}\"\n{ranges}"
    );
    (text.replace("\"0\"", "0"), shared)
}

/// The figures of a word.
pub fn of(ended: &Ended, word: &str) -> Vec<u64> {
    let text = String::from_utf8_lossy(&ended.serial);
    let all = figures(&text).into_iter();
    let found: Vec<_> = all
        .filter(|(its, _)| *its == word)
        .map(|(_, n)| n)
        .collect();
    assert!(
        !found.is_empty(),
        "{} printed no {word}:\n{text}\n{}",
        ended.name,
        ended.said
    );
    found
}

/// Processes that this thread has started and that are still there. Other tests' are other threads'.
pub fn children() -> Vec<String> {
    let thread = std::fs::read_link("/proc/thread-self").expect("Linux tells");
    let list = Path::new("/proc").join(thread).join("children");
    let list = std::fs::read_to_string(list).expect("Linux tells");
    list.split_whitespace().map(str::to_owned).collect()
}
