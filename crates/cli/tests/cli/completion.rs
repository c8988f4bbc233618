//! Completion as bash requests it: the script runs the program with the words and the position of the
//! cursor.

use crate::dev::Dev;

/// Returns the candidates for the last word.
fn offered(dev: &Dev, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let index = (words.len() - 1).to_string();
    let vars = [
        ("BASALT_COMPLETE", "bash"),
        ("_CLAP_COMPLETE_INDEX", &index),
        ("_CLAP_IFS", "\n"),
        ("_CLAP_COMPLETE_COMP_TYPE", "9"),
    ];
    let ran = dev.run_env(&vars, &[&["--"], words.as_slice()].concat());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line}: {ran:?}");
    ran.out.lines().map(|word| word.trim().to_owned()).collect()
}

/// Checks that a word is offered behind a line.
pub fn offers(dev: &Dev, line: &str, word: &str) {
    let words = offered(dev, &format!("basalt --cluster clitest {line}"));
    assert!(words.iter().any(|w| w == word), "{line}: no {word} in {words:?}");
}

pub fn live_names_are_offered(dev: &Dev) {
    let has = |line: &str, word: &str| offers(dev, line, word);
    has("volume info ", "main/demo");
    has("nbd main/", "main/demo");
    has("volume ls --pool m", "main");
    has("pg verify 1.1", "1.1f");
    has("dev kill ", "2");
    has("events --of osd.", "osd.1");
    has("events --of main/", "main/demo");
    has("explain 202", "2020");
    has("volume cre", "create");
    has("config set osd_", "osd_out_after");
    has("health mute osd_d", "OSD_DOWN");
    assert!(offered(dev, "basalt --cluster nowhere volume info ").iter().all(|w| w != "main/demo"));
    for shell in ["bash", "zsh", "fish"] {
        let script = dev.run(&["completion", shell]);
        assert!(script.code == 0 && script.out.contains("BASALT_COMPLETE"), "{script:?}");
    }
}
