//! The examples of the manual pages, run on a cluster: a page that shows a command which fails is wrong.
//!
//! Each block begins with the volumes and snapshots that its text takes for granted, and the next one without them. Lines that need a
//! second machine, a device, a terminal or a bucket are not run.

use crate::dev::Dev;
use std::path::{Path, PathBuf};

/// Parts of lines that cannot run here.
const ELSEWHERE: [&str; 14] = [
    "dev up",
    "nbd ",
    "ssh ",
    "s3://",
    "/dev/",
    "/etc/",
    "10.0.0.",
    "node3",
    "--session 17",
    "osd drain",
    "--follow",
    "bench ",
    "trash restore 12",
    "backup import main",
];

/// A block of examples: page, heading of its section, and the commands before it.
struct Block {
    page: &'static str,
    section: &'static str,
    before: &'static [&'static str],
    /// Each line begins like the block: it takes away what the others need.
    apart: bool,
}

const VM: &str = "volume create main/vm1 64MiB";
const MONDAY: &str = "snapshot create main/vm1@monday";
const TUESDAY: &str = "snapshot create main/vm1@tuesday";

const BLOCKS: [Block; 12] = [
    Block { page: "basalt.md", section: "", before: &[], apart: false },
    Block { page: "basalt.md", section: "basalt volume create", before: &[], apart: false },
    Block { page: "basalt.md", section: "basalt volume diff", before: &[VM, MONDAY, TUESDAY], apart: false },
    Block { page: "basalt.md", section: "basalt volume set", before: &[VM], apart: false },
    Block { page: "basalt.md", section: "basalt volume fault add", before: &[VM], apart: false },
    Block {
        page: "basalt.md",
        section: "basalt snapshot create",
        before: &["volume create main/db 64MiB", "volume create main/log 64MiB"],
        apart: false,
    },
    Block { page: "basalt.md", section: "basalt backup export", before: &[VM, MONDAY, TUESDAY], apart: false },
    Block {
        page: "basalt.md",
        section: "basalt backup import",
        before: &[
            VM,
            MONDAY,
            TUESDAY,
            "backup export main/vm1@monday -o vm1-monday.basalt",
            "backup export main/vm1@tuesday --since monday -o vm1-tuesday.basalt",
        ],
        apart: false,
    },
    Block { page: "basalt.md", section: "basalt trash ls", before: &[VM, "volume rm main/vm1"], apart: true },
    Block { page: "events.md", section: "", before: &[], apart: false },
    Block { page: "health.md", section: "", before: &[], apart: false },
    Block { page: "json.md", section: "", before: &[], apart: false },
];

/// Returns the lines of the first block of a section.
fn lines(page: &str, section: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let begin = if section.is_empty() { 0 } else { text.find(&format!("\n## {section}\n")).expect(section) };
    let block = text[begin..].split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    block.lines().map(str::to_owned).collect()
}

/// Returns what can run of a line: a filter that this machine lacks is left out.
fn runnable(line: &str) -> Option<String> {
    let here = line.starts_with("basalt ") && !ELSEWHERE.iter().any(|part| line.contains(part));
    let has_jq =
        std::env::var_os("PATH").is_some_and(|all| std::env::split_paths(&all).any(|dir| dir.join("jq").exists()));
    let cut = line.find("| jq").filter(|_| !has_jq);
    here.then(|| cut.map_or(line, |at| &line[..at]).to_owned())
}

struct Shell<'a> {
    dev: &'a Dev,
    /// Folder of the script that stands for the installed program, and of the files that examples write.
    dir: PathBuf,
}

impl Shell<'_> {
    fn new(dev: &Dev) -> Shell<'_> {
        let dir = PathBuf::from(dev.file("examples"));
        std::fs::create_dir_all(&dir).expect("a folder");
        Shell { dev, dir }
    }

    /// Runs a line as a user of this cluster types it; returns its exit code and what it said.
    fn run(&self, line: &str) -> (i32, String) {
        let script = format!("cd '{}'; basalt() {{ \"$0\" \"$@\"; }}; {line}", self.dir.display());
        let ran = self.dev.run_shell(&script);
        (ran.code, format!("{}{}", ran.out, ran.err))
    }

    fn expect(&self, what: &str, line: &str) {
        let (code, said) = self.run(line);
        // The state of the cluster is that of its OSDs, and of the errors that a page shows.
        let told = ["basalt health", "basalt status", "main/nope"].iter().any(|may| line.contains(may));
        assert!(
            code == 0 || told && (code == 3 || line.contains("main/nope")),
            "{what}: `{line}` ended with {code}: {said}"
        );
    }

    /// Removes what examples made.
    fn clear(&self) {
        for volume in self.dev.json(&["volume", "ls"])["volumes"].as_array().expect("a list") {
            let name = volume["name"].as_str().expect("a name");
            if name != "main/demo" {
                let snapshots = self.dev.json(&["snapshot", "ls", name]);
                for snapshot in snapshots["snapshots"].as_array().expect("a list") {
                    let own = snapshot["name"].as_str().expect("a name");
                    self.dev.run(&["snapshot", "set", own, "--protect", "off"]);
                }
                let gone = self.dev.run(&["volume", "rm", name, "--now", "--snapshots", "--detach", "--force"]);
                assert_eq!(gone.code, 0, "{gone:?}");
            }
        }
        self.dev.run(&["trash", "purge", "--all"]);
    }
}

pub fn examples_of_the_manual_run(dev: &Dev) {
    let shell = Shell::new(dev);
    let mut count = 0;
    for block in BLOCKS {
        let what = format!("{} {}", block.page, block.section);
        let prepare = || {
            shell.clear();
            block.before.iter().for_each(|command| shell.expect(&what, &format!("basalt {command}")));
        };
        prepare();
        for line in lines(block.page, block.section).iter().filter_map(|line| runnable(line)) {
            if block.apart {
                prepare();
            }
            shell.expect(&what, &line);
            count += 1;
        }
    }
    shell.clear();
    assert!(count > 45, "only {count} examples ran");
}
