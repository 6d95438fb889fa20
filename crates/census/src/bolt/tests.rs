use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::writer::{BRANCH, Element, LEAF, Writer, meta, seal};
use super::*;

fn open(file: &[u8]) -> Result<Database, Error> {
    Database::open(Arc::new(file.to_vec()), file.len() as u64, CACHE_BYTES)
}

/// All of a bucket, buckets in it behind their names.
fn walk(database: &Database, bucket: &Bucket, direction: Direction) -> Result<Vec<Element>, Error> {
    let mut cursor = database.cursor(bucket, direction)?;
    let mut found = Vec::new();
    while let Some(entry) = cursor.next_entry()? {
        let Entry { key, value, is_bucket, .. } = entry;
        found.push(Element { key: key.into(), value: value.into(), is_bucket });
        if is_bucket {
            found.extend(walk(database, &Bucket::of(&entry)?, direction)?);
        }
    }
    assert!(cursor.pages_visited() <= database.meta().pages);
    assert!(cursor.next_entry()?.is_none() && cursor.entry().is_none());
    Ok(found)
}

fn everything(file: &[u8]) -> Result<Vec<Element>, Error> {
    let database = open(file)?;
    // First: a bucket that leads to itself would have no end below.
    let inventory = database.inventory()?;
    let found = walk(&database, &database.root(), Direction::Ascending)?;
    assert!(inventory.used() + inventory.free() <= database.meta().pages);
    for page in inventory.free_pages() {
        page?;
    }
    Ok(found)
}

fn numbered(count: usize, length: usize) -> Vec<Element> {
    (0..count).map(|number| Element::new(format!("{number:06}"), vec![number as u8; length])).collect()
}

/// Buckets as etcd has them: one of many pages, one in its element, one whose values need pages of their own.
fn sample() -> Vec<u8> {
    let mut writer = Writer::new(512);
    let large = writer.tree(&numbered(60, 20));
    writer.put(b"a page that nothing leads to");
    let long = writer.tree(&numbered(3, 1400));
    let small = numbered(2, 3);
    let root = writer.tree(&[
        Element::bucket("large", large),
        Element::bucket("long", long),
        Element::inline("small", &small),
    ]);
    writer.finish(root)
}

fn fault(file: &[u8]) -> (u64, PageFault) {
    match everything(file) {
        Err(Error::Page { page, fault }) => (page, fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn buckets_are_found_and_what_no_tree_reaches_is_free() {
    let file = sample();
    let database = open(&file).unwrap();
    for (name, elements) in
        [("large", numbered(60, 20)), ("long", numbered(3, 1400)), ("small", numbered(2, 3))]
    {
        let bucket = database.bucket(name.as_bytes()).unwrap().unwrap();
        assert_eq!(walk(&database, &bucket, Direction::Ascending).unwrap(), elements);
        let mut back = walk(&database, &bucket, Direction::Descending).unwrap();
        back.reverse();
        assert_eq!(back, elements);
    }
    assert!(database.bucket(b"medium").unwrap().is_none());
    let inventory = database.inventory().unwrap();
    let free: Vec<_> = inventory.free_pages().map(Result::unwrap).collect();
    assert_eq!((free.len(), inventory.free()), (1, 1));
    assert!(free[0].1.starts_with(b"a page that nothing leads to"));
    assert_eq!(inventory.used() + 3, database.meta().pages);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_tree_is_read_both_ways_as_it_was_written(
        elements in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..90), proptest::collection::vec(any::<u8>(), 0..900), 0..120,
        ),
        bits in 9..17_u32,
    ) {
        let elements: BTreeMap<Vec<u8>, Vec<u8>> = elements;
        let elements: Vec<_> = elements.into_iter().map(|(key, value)| Element::new(key, value)).collect();
        let mut writer = Writer::new(1 << bits);
        let root = writer.tree(&elements);
        let file = writer.finish(root);
        prop_assert_eq!(&everything(&file).unwrap(), &elements);
        let database = open(&file).unwrap();
        let mut back = walk(&database, &database.root(), Direction::Descending).unwrap();
        back.reverse();
        prop_assert_eq!(back, elements);
        prop_assert_eq!(database.inventory().unwrap().free(), 0);
    }

    #[test]
    fn whatever_is_changed_it_ends(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in any::<Option<prop::sample::Index>>(),
    ) {
        let mut file = sample();
        for (place, byte) in changes {
            *place.get_mut(&mut file[1024..]) = byte;
        }
        if let Some(end) = end {
            file.truncate(end.index(file.len()));
            prop_assert!(everything(&file).is_err());
        }
        let _ = everything(&file);
    }
}

/// Where what bbolt computes stands: headers and elements, not keys and values. The size of a last value is the one
/// number that contradicts no other.
fn structure(file: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 1024;
    while at < file.len() {
        let number = |from: usize| u16::from_le_bytes([file[at + from], file[at + from + 1]]);
        let (flags, count, overflow) = (number(8), usize::from(number(10)), usize::from(number(12)));
        if flags == LEAF || flags == BRANCH {
            places.extend(at..at + 16);
            let elements = at + 16..at + 16 + 16 * count - usize::from(flags == LEAF) * 8;
            // Whether an element is a bucket, its meaning tells.
            places.extend(elements.filter(|place| flags == BRANCH || !(place - at).is_multiple_of(16)));
        }
        at += 512 * (overflow + 1);
    }
    places
}

#[test]
fn every_flipped_bit_of_the_structure_is_found_or_harmless() {
    let file = sample();
    let whole = everything(&file).unwrap();
    let (mut found, mut harmless) = (0, 0);
    for place in structure(&file) {
        for bit in 0..8 {
            let mut flipped = file.clone();
            flipped[place] ^= 1 << bit;
            match everything(&flipped) {
                Ok(same) => {
                    assert_eq!(same, whole, "byte {place}, bit {bit}");
                    harmless += 1;
                }
                Err(Error::Page { .. }) => found += 1,
                Err(other) => panic!("byte {place}, bit {bit}: {other}"),
            }
        }
    }
    // A page that seems to have more pages behind it is read all the same, if these are of no tree.
    assert!(found > 5000 && harmless < 10, "{found} {harmless}");
}

#[test]
fn the_newer_whole_meta_page_counts() {
    let mut writer = Writer::new(512);
    let old = writer.tree(&numbered(3, 4));
    let new = writer.tree(&numbered(9, 4));
    let pages = writer.next();
    let mut file = writer.finish(old);
    file[512..592].copy_from_slice(&meta(1, 512, new, pages, 9));
    assert_eq!(everything(&file).unwrap(), numbered(9, 4));
    assert_eq!(open(&file).unwrap().meta().transaction, 9);
    assert!(!open(&file).unwrap().meta().other_damaged);
    for place in 512..592 {
        for bit in 0..8 {
            let mut torn = file.clone();
            torn[place] ^= 1 << bit;
            // Its count and its overflow mean nothing there.
            let expected = if (522..528).contains(&place) { 9 } else { 3 };
            assert_eq!(everything(&torn).unwrap(), numbered(expected, 4), "byte {place}");
            assert_eq!(open(&torn).unwrap().meta().other_damaged, expected == 3);
        }
    }
    // The first one is damaged: the second is looked for at each size of pages.
    for size in [512, 4096, 65536] {
        let mut writer = Writer::new(size);
        let root = writer.tree(&numbered(5, 4));
        let mut file = writer.finish(root);
        file[40] ^= 1;
        let database = open(&file).unwrap();
        assert_eq!((database.meta().page_size as usize, database.meta().transaction), (size, 7));
        assert_eq!(everything(&file).unwrap(), numbered(5, 4));
        file[size + 40] ^= 1;
        assert!(matches!(open(&file), Err(Error::MetaChecksum)));
    }
}

#[test]
fn what_is_no_database_of_this_format_is_told_by_its_kind() {
    let said = |file: &[u8]| open(file).unwrap_err().to_string();
    assert!(said(b"").contains("empty (0 bytes)"));
    assert!(said(b"{}").contains("has 2 bytes, and the smallest database has 1024"));
    assert!(said(&[b'x'; 5000]).contains("no database of etcd"));
    let both = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = sample();
        for (id, at) in [(0, 0), (1, 512)] {
            let mut page = meta(id, 512, 4, 5, 7);
            change(&mut page);
            file[at..at + page.len()].copy_from_slice(&page);
        }
        said(&file)
    };
    let with = |at: usize, bytes: &'static [u8]| {
        both(&move |page| {
            page[at..at + bytes.len()].copy_from_slice(bytes);
            seal(page);
        })
    };
    assert!(with(16, &[0xED, 0x0C, 0xDA, 0xED]).contains("big-endian"));
    assert!(with(20, &[3]).contains("version 3 of bbolt's format"));
    assert!(with(24, &[0, 3]).contains("pages have 768 bytes"));
    assert!(with(24, &[0, 0, 2]).contains("pages have 131072 bytes"));
    assert!(with(32, &[1]).contains("contradicts itself: root 1 of 5 pages"));
    assert!(with(56, &[4]).contains("contradicts itself: root 4 of 4 pages"));
    assert!(with(63, &[1]).contains("cut off"));
    assert!(both(&|page| page[72] ^= 1).contains("both meta pages"));
}

#[test]
fn cut_off_at_every_page_and_in_each() {
    let file = sample();
    for end in (0..file.len()).step_by(256) {
        let error = everything(&file[..end]).unwrap_err();
        match end {
            0 => assert!(matches!(error, Error::Empty)),
            1..1024 => assert!(matches!(error, Error::TooShort { .. }), "{error}"),
            _ => assert!(matches!(error, Error::Truncated { .. }), "{error}"),
        }
    }
}

#[test]
fn a_file_that_gets_shorter_is_told_with_the_place() {
    let file = sample();
    let database = Database::open(Arc::new(file[..2048].to_vec()), file.len() as u64, 0);
    // What was read at opening is all that there was.
    assert!(matches!(database, Err(Error::Shrunk { offset: 2048 })), "{database:?}");
}

/// A file of three levels, whose pages a test changes.
fn three_levels(change: impl Fn(&mut Writer, &[(Vec<u8>, u64)]) -> u64) -> Vec<u8> {
    let mut writer = Writer::new(512);
    let leaves: Vec<_> =
        numbered(40, 30).chunks(4).map(|part| (part[0].key.clone(), writer.page(LEAF, part))).collect();
    let root = change(&mut writer, &leaves);
    writer.finish(root)
}

#[test]
fn cycles_and_overlaps_end_with_their_page() {
    // A branch that leads to itself, and two that lead to each other.
    let file = three_levels(|writer, _| {
        let itself = writer.next();
        writer.branch(&[(b"000000".to_vec(), itself)])
    });
    assert_eq!(fault(&file), (12, PageFault::Twice));
    let file = three_levels(|writer, leaves| {
        let next = writer.next();
        writer.branch(&[leaves[0].clone(), (b"000004".to_vec(), next + 1)]);
        writer.branch(&[(b"000004".to_vec(), next)])
    });
    assert_eq!(fault(&file), (12, PageFault::Outside { index: 0 }));
    // One leaf twice.
    let file = three_levels(|writer, leaves| {
        let (_, first) = leaves[0];
        writer.branch(&[leaves[0].clone(), (b"000004".to_vec(), first)])
    });
    assert_eq!(fault(&file), (2, PageFault::Twice));
    // A leaf that says that its neighbour belongs to it, before and after that.
    for (changed, other) in [(2_usize, 3), (3, 4)] {
        let mut file = three_levels(|writer, leaves| writer.branch(leaves));
        file[changed * 512 + 12] = 1;
        assert_eq!(fault(&file), (other, PageFault::Twice));
    }
    // Two buckets with one tree.
    let mut writer = Writer::new(512);
    let tree = writer.tree(&numbered(2, 2));
    let root = writer.tree(&[Element::bucket("a", tree), Element::bucket("b", tree)]);
    let file = writer.finish(root);
    let twice = open(&file).unwrap().inventory().map(|_| ()).unwrap_err().to_string();
    assert!(twice.starts_with("page 2: two places"), "{twice}");
}

#[test]
fn a_free_list_that_lies_is_not_believed() {
    let whole = sample();
    let expected = everything(&whole).unwrap();
    let with = |page: u64| {
        let mut file = whole.clone();
        for at in [0, 512] {
            let mut meta = file[at..at + 80].to_vec();
            meta[48..56].copy_from_slice(&page.to_le_bytes());
            // Behind its header, the field that says where the list is.
            assert_eq!(&file[at + 48..at + 56], &u64::MAX.to_le_bytes());
            seal(&mut meta);
            file[at..at + 80].copy_from_slice(&meta);
        }
        file
    };
    let pages = open(&whole).unwrap().meta().pages;
    // A meta page, each page of a tree, none of the file, and one that would be the whole of memory.
    for page in (0..=pages).chain([u64::MAX - 1, 1 << 40]) {
        let file = with(page);
        assert_eq!(open(&file).unwrap().meta().free_list, Some(page));
        assert_eq!(everything(&file).unwrap(), expected, "{page}");
    }
    // One that frees a page in use, as often as its count can say.
    let inventory = |file: &[u8]| -> Vec<u64> {
        open(file).unwrap().inventory().unwrap().free_pages().map(|page| page.unwrap().0).collect()
    };
    let unused = inventory(&whole)[0];
    let mut file = with(unused);
    let list = &mut file[unused as usize * 512..][..512];
    list[..8].copy_from_slice(&unused.to_le_bytes());
    list[8..16].copy_from_slice(&[0x10, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    list[16..].chunks_exact_mut(8).for_each(|free| free.copy_from_slice(&4_u64.to_le_bytes()));
    assert_eq!(everything(&file).unwrap(), expected);
    assert_eq!(inventory(&file), [unused]);
}

#[test]
fn each_fault_of_a_page_is_told_with_its_number() {
    let leaf = |change: &dyn Fn(&mut [u8])| {
        let mut file = three_levels(|writer, leaves| writer.branch(leaves));
        change(&mut file[3 * 512..4 * 512]);
        fault(&file)
    };
    let set = |at: usize, byte: u8| leaf(&move |page| page[at] = byte);
    assert_eq!(set(0, 9), (3, PageFault::WrongId { found: 9 }));
    assert_eq!(set(8, 0x10), (3, PageFault::Flags { found: 0x10 }));
    assert_eq!(set(8, 3), (3, PageFault::Flags { found: 3 }));
    assert_eq!(set(11, 0xff), (3, PageFault::Count { count: 0xff04, bytes: 496 }));
    assert_eq!(set(13, 1), (3, PageFault::Overflow { pages: 257, of: 13, most: MAX_LEAF_BYTES }));
    assert_eq!(set(10, 3), (3, PageFault::Place { index: 0 }));
    assert_eq!(set(20, 65), (3, PageFault::Place { index: 0 }));
    assert_eq!(set(16 + 3 * 16 + 15, 1), (3, PageFault::Place { index: 3 }));
    assert_eq!(set(16, 2), (3, PageFault::ElementFlags { index: 0, found: 2 }));
    assert_eq!(set(80, b'9'), (3, PageFault::Order { index: 1 }));
    assert_eq!(set(80 + 3 * 36, b'9'), (3, PageFault::Outside { index: 3 }));
    assert_eq!(set(85, b'0'), (3, PageFault::Outside { index: 0 }));
    let empty = leaf(&|page| page[10] = 0);
    assert_eq!(empty, (3, PageFault::NoElements));
    let no_key = leaf(&|page| {
        // The first element's six bytes go to its value.
        page[24] = 0;
        page[28] += 6;
    });
    assert_eq!(no_key, (3, PageFault::NoKey { index: 0 }));

    let root = |children: &[(Vec<u8>, u64)]| fault(&three_levels(|writer, _| writer.branch(children)));
    assert_eq!(root(&[(b"0".into(), 1)]), (1, PageFault::OutOfRange { of: 13 }));
    assert_eq!(root(&[(b"0".into(), 13)]), (13, PageFault::OutOfRange { of: 13 }));
    assert_eq!(root(&[(b"0".into(), u64::MAX)]), (u64::MAX, PageFault::OutOfRange { of: 13 }));
    assert_eq!(root(&[]), (12, PageFault::NoElements));
    let deep = three_levels(|writer, leaves| {
        (0..MAX_DEPTH).fold(leaves[0].1, |below, _| writer.branch(&[(b"000000".to_vec(), below)]))
    });
    assert_eq!(fault(&deep), (2, PageFault::TooDeep { most: MAX_DEPTH }));
}

#[test]
fn faults_of_buckets() {
    let of = |elements: &[Element]| {
        let mut writer = Writer::new(512);
        let root = writer.tree(elements);
        let file = writer.finish(root);
        let database = open(&file).unwrap();
        database.bucket(b"key").and_then(|bucket| walk(&database, &bucket.unwrap(), Direction::Ascending))
    };
    let told = |elements: &[Element]| of(elements).unwrap_err().to_string();
    let cut = Element { is_bucket: true, ..Element::new("key", [0; 15]) };
    assert!(told(&[cut]).contains("page 2: element 0 is no bucket"));
    assert!(told(&[Element::new("key", [0; 40])]).contains("element 0 is no bucket"));
    let short = Element { is_bucket: true, ..Element::new("key", [0; 20]) };
    assert!(told(&[short]).contains("page 2: the small bucket in it: it says that it has 0 elements"));
    for (place, what) in
        [(24, "its flags are"), (26, ""), (36, "does not stand behind"), (44, "does not stand behind")]
    {
        let mut inline = Element::inline("key", &numbered(2, 3));
        assert_eq!(of(std::slice::from_ref(&inline)).unwrap(), numbered(2, 3));
        inline.value[place] ^= 1;
        let told = if place == 26 {
            inline.value[place] = 200;
            "it says that it has 200 elements"
        } else {
            what
        };
        let error = of(&[inline]).unwrap_err().to_string();
        assert!(error.contains("the small bucket") && error.contains(told), "{error}");
    }
    let mut longer = Element::inline("key", &numbered(2, 3));
    longer.value.push(0);
    assert!(told(&[longer]).contains("the small bucket in it: 1 bytes are behind"));
    // Buckets in buckets in buckets.
    let nested =
        (0..=MAX_BUCKET_DEPTH).fold(Element::new("a", "b"), |inner, _| Element::inline("key", &[inner]));
    let mut writer = Writer::new(4096);
    let root = writer.tree(&[nested]);
    let file = writer.finish(root);
    let error = open(&file).unwrap().inventory().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("more than 4 pages deep"), "{error}");
}

/// Endless zeros behind some bytes, and how many were asked for.
struct Endless {
    bytes: Vec<u8>,
    read: AtomicU64,
}

impl Source for Endless {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        buffer.fill(0);
        self.bytes.read_at(buffer, offset)?;
        Ok(buffer.len())
    }
}

#[test]
fn what_a_page_says_of_its_length_costs_nothing() {
    for flags in [LEAF, BRANCH] {
        let mut writer = Writer::new(65536);
        let page = writer.page(flags, &numbered(1, 8));
        let mut bytes = writer.finish(page);
        let pages = 1 << 40;
        for id in [0, 1] {
            let at = id as usize * 65536;
            bytes[at..at + 80].copy_from_slice(&meta(id, 65536, page, pages, id));
        }
        bytes[2 * 65536 + 12..2 * 65536 + 16].fill(0xff);
        let source = Arc::new(Endless { bytes, read: AtomicU64::new(0) });
        let database = Database::open(source.clone(), pages * 65536, CACHE_BYTES).unwrap();
        let error = database.cursor(&database.root(), Direction::Ascending).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Page { page: 2, fault: PageFault::Overflow { .. } }), "{error}");
        assert!(source.read.load(Ordering::Relaxed) <= 3 * 65536);
    }
}

#[test]
fn the_cache_keeps_what_it_may() {
    let mut writer = Writer::new(65536);
    let root = writer.tree(&numbered(100, 20_000));
    let file = writer.finish(root);
    let walked = |cache_bytes: usize| {
        let source = Arc::new(Endless { bytes: file.clone(), read: AtomicU64::new(0) });
        let database = Database::open(source.clone(), file.len() as u64, cache_bytes).unwrap();
        for _ in 0..2 {
            assert_eq!(walk(&database, &database.root(), Direction::Ascending).unwrap().len(), 100);
        }
        source.read.load(Ordering::Relaxed)
    };
    let (all, none) = (walked(file.len()), walked(0));
    assert!(all <= 2 * file.len() as u64 && none > all, "{all} {none}");
}
