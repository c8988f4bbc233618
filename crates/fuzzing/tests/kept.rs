//! Checks of the targets in every build, in a second: kept inputs pass, and sound inputs are taken.

use fuzzing::{TARGETS, Verdict, corpus, drive, find};
use types::rng::Rng;

/// One test, because the count of allocations is one for the whole process: beside a second test the test harness allocates
/// when the first one ends.
#[test]
fn targets_keep_their_bounds_and_take_sound_inputs() {
    every_kept_input_passes();
    every_folder_of_kept_inputs_belongs_to_a_target();
    names_of_targets_are_told_apart();
    every_encoder_makes_inputs_that_its_target_takes();
    mended_inputs_of_guarded_formats_get_behind_their_checksums();
    the_driver_runs_the_same_inputs_for_the_same_seed();
}

fn every_kept_input_passes() {
    let mut count = 0;
    for target in TARGETS.iter().filter(|t| !t.is_canary) {
        for (path, bytes) in corpus::of(target.name) {
            println!("{}", path.display());
            (target.run)(&bytes);
            count += 1;
        }
    }
    assert!(count >= 30, "{count} inputs are kept");
}

fn every_folder_of_kept_inputs_belongs_to_a_target() {
    for kind in ["corpus", "regressions"] {
        let Ok(folders) = std::fs::read_dir(corpus::root().join(kind)) else { continue };
        for folder in folders.map(|f| f.expect("a readable folder")).filter(|f| f.path().is_dir()) {
            let name = folder.file_name().into_string().expect("a plain name");
            assert!(find(&name).is_some_and(|t| !t.is_canary), "{kind}/{name} is of no target");
        }
    }
}

fn names_of_targets_are_told_apart() {
    let mut names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TARGETS.len());
}

fn every_encoder_makes_inputs_that_its_target_takes() {
    for target in TARGETS.iter().filter(|t| !t.is_canary && t.len_max != 1 << 10) {
        let mut rng = Rng::new(3);
        let taken = (0..50).filter(|_| (target.run)(&(target.seed)(&mut rng)) == Verdict::Taken).count();
        assert!(taken > 0, "{}: no sound input gets in", target.name);
    }
}

fn mended_inputs_of_guarded_formats_get_behind_their_checksums() {
    for name in ["wire_frame", "log_batch", "superblock", "checkpoint"] {
        let target = find(name).expect("it is in the registry");
        let mut rng = Rng::new(4);
        let pool = vec![(target.seed)(&mut rng), (target.seed)(&mut rng)];
        let mut input = Vec::new();
        let mut taken = 0;
        for _ in 0..400 {
            drive::draw(target, &mut rng, &pool, &mut input);
            taken += usize::from((target.run)(&input) == Verdict::Taken);
        }
        assert!(taken > 20, "{name}: {taken} of 400 damaged inputs get in");
    }
}

fn the_driver_runs_the_same_inputs_for_the_same_seed() {
    let target = find("wire_frame").expect("it is in the registry");
    let inputs = || {
        let mut rng = Rng::new(9);
        let pool: Vec<Vec<u8>> = (0..8).map(|_| (target.seed)(&mut rng)).collect();
        let mut input = Vec::new();
        let mut sum = 0;
        for _ in 0..500 {
            drive::draw(target, &mut rng, &pool, &mut input);
            sum = types::crc::append(sum, &input);
        }
        sum
    };
    assert_eq!(inputs(), inputs());
}
