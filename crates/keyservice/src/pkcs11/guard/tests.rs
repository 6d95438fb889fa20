use tempfile::TempDir;

use super::super::pin::tests::read;
use super::*;

/// A guard's folder, over restarts of all that uses it.
struct Site {
    folder: TempDir,
    now: SystemTime,
}

impl Site {
    fn new() -> Self {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        Self { folder: tempfile::tempdir().unwrap(), now }
    }

    fn guard(&self) -> Guard {
        Guard::of(self.folder.path(), "serial")
    }

    fn allow(&self, pin: &Pin) -> Result<Attempt, Failure> {
        self.guard().allow(pin, self.now)
    }

    /// As if the process had crashed in it.
    fn crash(&self, pin: &Pin) {
        drop(self.allow(pin).unwrap());
    }

    fn refusal(&self, pin: &Pin) -> Failure {
        self.allow(pin).err().unwrap()
    }

    fn notes(&self) -> Option<String> {
        fs::read_to_string(self.guard().file).ok()
    }
}

fn pin(content: &str) -> Pin {
    read(content.as_bytes()).unwrap()
}

#[test]
fn a_refused_pin_is_not_tried_until_the_file_changes() {
    let site = Site::new();
    let (wrong, changed) = (pin("wrong"), pin("wrong\n"));
    site.allow(&wrong).unwrap().refused().unwrap();
    let refused = site.refusal(&wrong);
    assert_eq!(refused.class, Class::Credential);
    assert!(!format!("{refused}").contains("wrong\""), "the PIN is not shown");
    assert!(!site.notes().unwrap().contains("wrong"), "the PIN is not kept");

    site.allow(&changed).unwrap().dropped();
    Guard::of(site.folder.path(), "another token").allow(&wrong, site.now).unwrap().dropped();
    assert!(site.allow(&wrong).is_err(), "what is neither refused nor accepted changes nothing");
    site.allow(&changed).unwrap().accepted();
    site.allow(&wrong).unwrap().dropped();
    assert_eq!(site.notes(), None);
}

#[test]
fn a_pin_is_noted_before_it_is_tried_and_tried_twice_without_a_clear_answer() {
    let mut site = Site::new();
    let perhaps = pin("perhaps");
    site.crash(&perhaps);
    assert!(site.notes().is_some());
    site.allow(&perhaps).unwrap().dropped();
    site.crash(&perhaps);
    let failure = site.refusal(&perhaps);
    assert!(failure.what.contains("2 times") && failure.what.contains("is not tried again"), "{failure}");
    assert!(failure.remedy.contains(&site.guard().file.display().to_string()), "{failure}");
    assert!(failure.remedy.contains(&perhaps.path.display().to_string()), "{failure}");
    assert!(!failure.remedy.contains("space"), "{failure}");
    site.now += BETWEEN_TRIES * 100;
    assert!(site.refusal(&perhaps).what.contains("is not tried again"), "time does not make it right");
    // What another one does to it.
    site.allow(&pin("other")).unwrap().accepted();
    site.allow(&perhaps).unwrap().accepted();
    assert_eq!(site.notes(), None);
}

#[test]
fn a_space_around_a_pin_is_named_where_it_was_refused() {
    let site = Site::new();
    let spaced = pin("1234 ");
    site.allow(&spaced).unwrap().refused().unwrap();
    assert!(site.refusal(&spaced).remedy.contains("ends with a space"));
}

#[test]
fn a_pin_that_was_accepted_before_is_tried_again_after_an_hour() {
    let mut site = Site::new();
    let good = pin("good");
    site.allow(&good).unwrap().accepted();
    site.crash(&good);
    site.crash(&good);
    for _ in 0..3 {
        let failure = site.refusal(&good);
        assert!(failure.what.contains("asked again in 60 minutes"), "{failure}");
        site.now += BETWEEN_TRIES - Duration::from_secs(1);
        assert!(site.refusal(&good).what.contains("in 1 minutes"));
        site.now += Duration::from_secs(1);
        site.crash(&good);
    }
    // It is the file that is known: the same content in another one is not.
    site.now += BETWEEN_TRIES;
    assert!(site.refusal(&pin("good")).what.contains("is not tried again"));
    // A clock that was wrong.
    site.now -= BETWEEN_TRIES * 10_000;
    site.crash(&good);
    assert!(site.refusal(&good).what.contains("in 60 minutes"));
    // The token's word counts more than that it was right once.
    site.now += BETWEEN_TRIES;
    site.allow(&good).unwrap().refused().unwrap();
    site.now += BETWEEN_TRIES;
    assert!(site.refusal(&good).what.contains("refused"));
    fs::remove_file(site.guard().file).unwrap();
    site.crash(&good);
    site.crash(&good);
    assert!(site.refusal(&good).what.contains("is not tried again"), "it is not known any more");
}

#[test]
fn which_pin_is_good_is_told_by_its_file_and_not_by_its_content() {
    let site = Site::new();
    site.allow(&pin("1234567")).unwrap().accepted();
    let mut turn = site.guard().file.into_os_string();
    turn.push(".turn");
    let kept = fs::read_to_string(&turn).unwrap();
    assert!(!kept.is_empty() && !kept.contains("digest") && !kept.contains("1234567"), "{kept}");
    // Torn by a power cut: it is not known, and no harm is done.
    fs::write(&turn, &kept[..kept.len() / 2]).unwrap();
    site.allow(&pin("1234567")).unwrap().accepted();
}

#[test]
fn two_wrong_pins_in_turn_are_both_remembered_and_of_many_the_last() {
    let site = Site::new();
    let numbered = |number: usize| pin(&format!("wrong {number}"));
    for number in 0..=MOST {
        site.allow(&numbered(number)).unwrap().refused().unwrap();
    }
    assert!((1..=MOST).all(|number| site.allow(&numbered(number)).is_err()));
    site.allow(&numbered(0)).unwrap().dropped();
}

#[test]
fn one_process_at_a_time_tries() {
    let site = Site::new();
    let wrong = pin("wrong");
    let first = site.allow(&wrong).unwrap();
    let (guard, now) = (site.guard(), site.now);
    let second = std::thread::spawn(move || guard.allow(&pin("wrong"), now).err().unwrap());
    // It waits for the lock of the first, or comes after it: it is refused by what that one learned.
    first.refused().unwrap();
    assert!(second.join().unwrap().what.contains("refused"));
}

#[test]
fn no_login_while_it_could_not_be_remembered() {
    let site = Site::new();
    let nowhere = Guard::of(&site.folder.path().join("absent"), "serial");
    assert_eq!(nowhere.allow(&pin("12345"), site.now).err().unwrap().class, Class::Credential);
    fs::write(site.guard().file, "{torn").unwrap();
    assert!(site.refusal(&pin("12345")).remedy.contains("delete"));
}

#[test]
fn what_root_writes_is_the_folders_owners() {
    let site = Site::new();
    // Whoever is not root can't give files away, and need not.
    let owner = if geteuid().is_root() { 12345 } else { geteuid().as_raw() };
    std::os::unix::fs::chown(site.folder.path(), Some(owner), None).unwrap();
    site.allow(&pin("wrong")).unwrap().refused().unwrap();
    for entry in fs::read_dir(site.folder.path()).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().uid(), owner);
    }
}
