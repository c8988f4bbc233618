//! Limits of layouts, and the permutation: both directions, its borders, and the runs of a range.

use super::*;
use crate::rng::Rng;

fn all() -> impl Iterator<Item = Stripe> {
    let units = (12..=24).map(|bits| 1 << bits);
    units.flat_map(|unit| (0..=6).map(move |bits| Stripe::new(unit, 1 << bits).expect("powers of two")))
}

#[test]
fn layout_outside_its_limits_is_refused() {
    for unit in [0, 2048, 4097, 3 << 12, 32 << 20] {
        assert_eq!(Stripe::new(unit, 4), Err(BadStripe::Unit), "{unit}");
    }
    for count in [0, 3, 65, 128] {
        assert_eq!(Stripe::new(4096, count), Err(BadStripe::Count), "{count}");
        assert_eq!(Stripe::with_count(count), Err(BadStripe::Count), "{count}");
    }
    assert_eq!(Stripe::new(4096, 1), Ok(Stripe::NONE));
}

#[test]
fn count_alone_spreads_one_mebibyte_over_all_columns() {
    for bits in 1..=6 {
        let stripe = Stripe::with_count(1 << bits).expect("a power of two");
        assert_eq!(stripe.unit_bytes() * u64::from(stripe.count()), 1 << 20);
    }
    assert_eq!(Stripe::with_count(1), Ok(Stripe::NONE));
}

#[test]
fn units_go_round_the_columns() {
    let stripe = Stripe::new(64 << 10, 4).expect("a layout");
    let (unit, column) = (64 << 10, SEGMENT / 4);
    assert_eq!([0, 1, 2, 3].map(|n| stripe.chunk_address(n * unit)), [0, column, 2 * column, 3 * column]);
    assert_eq!(stripe.chunk_address(4 * unit + 5), unit + 5);
    assert_eq!(stripe.chunk_address(SEGMENT - 1), SEGMENT - 1);
    assert_eq!(stripe.chunk_address(SEGMENT + unit), SEGMENT + column);
    assert_eq!([0, 15, 16, 63, 64, 80].map(|chunk| stripe.column_of(chunk)), [0, 0, 1, 3, 0, 1]);
    assert_eq!([1, SEGMENT, SEGMENT + 1].map(|len| stripe.chunk_count(len)), [64, 64, 128]);
    assert_eq!(Stripe::NONE.chunk_count(CHUNK + 1), 2);
}

#[test]
fn chunk_address_and_volume_address_are_inverse() {
    let mut rng = Rng::new(1);
    for stripe in all() {
        let unit = stripe.unit_bytes();
        let borders = [0, 1, unit - 1, unit, SEGMENT - 1, SEGMENT, SEGMENT + unit * u64::from(stripe.count())];
        for at in borders.into_iter().chain((0..50).map(|_| rng.below(5 * SEGMENT))) {
            let there = stripe.chunk_address(at);
            assert_eq!(stripe.volume_address(there), at, "{stripe:?}");
            assert_eq!(stripe.chunk_address(stripe.volume_address(at)), at, "{stripe:?}");
            assert_eq!((there / SEGMENT, there % unit), (at / SEGMENT, at % unit), "{stripe:?}");
            let column = at % SEGMENT / unit % u64::from(stripe.count());
            assert_eq!(u64::from(stripe.column_of((there / CHUNK) as u32)), column, "{stripe:?}");
        }
    }
}

/// The runs as the definition gives them: every unit of the range, mapped, sorted and joined within its column.
fn runs_by_unit(stripe: Stripe, range: &Range<u64>) -> Vec<Range<u64>> {
    let (mut units, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let end = ((at / stripe.unit_bytes() + 1) * stripe.unit_bytes()).min(range.end);
        units.push(stripe.chunk_address(at)..stripe.chunk_address(at) + (end - at));
        at = end;
    }
    units.sort_by_key(|unit| unit.start);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for unit in units {
        match runs.last_mut() {
            Some(run) if run.end == unit.start && !unit.start.is_multiple_of(stripe.column_bytes()) => {
                run.end = unit.end
            }
            _ => runs.push(unit),
        }
    }
    runs
}

#[test]
fn range_has_one_run_in_each_column_and_they_cover_its_units() {
    let mut rng = Rng::new(2);
    for stripe in all() {
        for len_max in [512, 3 * stripe.unit_bytes(), 200 * stripe.unit_bytes()] {
            let start = SEGMENT - rng.between(1, 4 * stripe.unit_bytes() / 512) * 512;
            let range = start..start + rng.between(1, len_max.min(SEGMENT) / 512) * 512;
            let (mut runs, mut from) = (Vec::new(), 0);
            while let Some(run) = stripe.run_from(&range, from) {
                from = run.end;
                runs.push(run);
            }
            assert_eq!(runs, runs_by_unit(stripe, &range), "{stripe:?} {range:?}");
            let cut = runs[0].start + 512;
            let rest = stripe.run_from(&range, cut);
            assert!(rest.is_none_or(|rest| rest.start >= cut), "{stripe:?} {range:?}");
        }
    }
}

#[test]
fn stored_layout_is_checked() {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, MapDeserializer};
    let decoded = |unit: u64, count: u64| {
        let fields = [("unit_bytes", unit), ("count", count)];
        let map: MapDeserializer<'_, _, Error> = MapDeserializer::new(fields.into_iter());
        Stripe::deserialize(map.into_deserializer())
    };
    assert_eq!(decoded(65536, 8).ok(), Stripe::new(65536, 8).ok());
    assert!(decoded(65537, 8).is_err() && decoded(65536, 9).is_err());
}
