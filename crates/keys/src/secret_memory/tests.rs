use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn leaked(kind: Kind) -> Page {
    (kind, Vec::leak(vec![0; 3 * KEY_LEN]))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    GiveBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![3 => Just(Step::Take), 2 => any::<usize>().prop_map(Step::GiveBack)];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever comes and goes, and whatever pages the system gives: each key has a place of its own, a new one is
    /// zero, and the counts are right.
    #[test]
    fn places_are_never_shared_and_always_clean(
        steps in steps(),
        pages in proptest::collection::vec(0usize..4, 100),
    ) {
        let mut pool = Pool::new();
        let mut pages: VecDeque<_> = pages.into();
        let mut held: Vec<(Page, u8)> = Vec::new();
        for (number, step) in (1u8..=200).zip(steps) {
            match step {
                Step::Take => {
                    let next = || {
                        let kind = [Kind::Secret, Kind::Locked].get(pages.pop_front()?)?;
                        Some(leaked(*kind))
                    };
                    let (kind, place) = pool.take(next);
                    prop_assert_eq!(&*place, &[0; KEY_LEN]);
                    place.fill(number);
                    held.push(((kind, place), number));
                }
                Step::GiveBack(which) if !held.is_empty() => {
                    let ((kind, place), number) = held.swap_remove(which % held.len());
                    prop_assert_eq!(&*place, &[number; KEY_LEN]);
                    pool.give_back(kind, place);
                }
                Step::GiveBack(_) => {}
            }
            let count = |kind| held.iter().filter(|((of, _), _)| *of == kind).count();
            let usage = Usage {
                secret: count(Kind::Secret),
                locked: count(Kind::Locked),
                ordinary: count(Kind::Ordinary),
                reserved: pool.usage.reserved,
            };
            prop_assert_eq!(pool.usage, usage);
            prop_assert!(pool.free.iter().flatten().all(|place| **place == [0; KEY_LEN]));
        }
    }
}

#[test]
fn the_best_memory_is_taken_and_none_is_fetched_while_a_place_is_free() {
    let mut pool = Pool::new();
    let none = || None;
    assert_eq!(pool.kind_of_next(none), Kind::Ordinary);
    assert_eq!(pool.usage.reserved, ORDINARY_PAGE_LEN);
    let (kind, ordinary) = pool.take(none);
    assert_eq!((kind, pool.usage.ordinary), (Kind::Ordinary, 1));
    // The system gives again.
    let (kind, first) = pool.take(|| Some(leaked(Kind::Locked)));
    assert_eq!((kind, pool.usage.locked), (Kind::Locked, 1));
    let never = || -> Option<Page> { panic!("a place is free") };
    let places: Vec<_> = (0..2).map(|_| pool.take(never)).collect();
    assert_eq!(pool.take(|| Some(leaked(Kind::Secret))).0, Kind::Secret);
    for (kind, place) in places.into_iter().chain([(Kind::Locked, first), (Kind::Ordinary, ordinary)]) {
        pool.give_back(kind, place);
    }
    let left = Usage { secret: 1, reserved: ORDINARY_PAGE_LEN + 6 * KEY_LEN, ..Usage::default() };
    assert_eq!(pool.usage, left);
}

#[test]
fn thousands_of_keys_take_few_pages() {
    let keys: Vec<_> = (0..4096u32)
        .map(|number| {
            let mut key = KeyBytes::zero();
            key.bytes_mut()[..4].copy_from_slice(&number.to_be_bytes());
            key
        })
        .collect();
    let usage = usage();
    let held = usage.secret + usage.locked + usage.ordinary;
    assert!(held >= 4096, "{usage:?}");
    // Other tests of this process hold some too, and a page of a system may have 64 kB.
    assert!(usage.reserved <= (held + 256) * KEY_LEN + 3 * 65536, "{usage:?}");
    for (number, key) in (0..4096u32).zip(&keys) {
        assert_eq!(key.bytes()[..4], number.to_be_bytes());
    }
    let copies = keys.clone();
    drop(keys);
    assert_eq!(copies[77].bytes()[..4], 77u32.to_be_bytes());
}

/// What the system says of the memory that keys stand in.
#[test]
fn a_page_is_locked_and_neither_dumped_nor_inherited() {
    let key = KeyBytes::zero();
    let address = key.bytes.as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut of_key = maps.lines().skip_while(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        !range.is_some_and(|(start, end)| {
            number(start).is_some_and(|start| start <= address)
                && number(end).is_some_and(|end| address < end)
        })
    });
    let mapping = of_key.next().unwrap();
    assert_eq!(mapping.contains("secretmem"), key.kind == Kind::Secret, "{mapping}");
    let flags = of_key.find(|line| line.starts_with("VmFlags:")).unwrap();
    if key.kind == Kind::Ordinary {
        return;
    }
    for flag in [" lo", " dd", " dc"] {
        assert!(flags.contains(flag), "{flag} is not in {flags}");
    }
}

#[test]
fn where_keys_stand_is_said() {
    assert_eq!(kind(), KeyBytes::zero().kind);
    for kind in KINDS {
        assert!(kind.to_string().starts_with(&format!("{kind:?}").to_lowercase()));
    }
}
