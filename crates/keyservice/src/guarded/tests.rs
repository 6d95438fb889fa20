#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use casemate_keys::Algorithm;

use super::*;

/// A root key that does each time what it is told to: one after the other, and the last again and again.
#[derive(Debug)]
struct Told {
    prefix: LineagePrefix,
    answers: Answers,
}

type Answers = Arc<Mutex<VecDeque<Result<Duration, Failure>>>>;

impl Told {
    fn answer<T: Send + 'static>(&self, good: T) -> Answer<'_, T> {
        Box::pin(async move {
            let answer = {
                let mut answers = self.answers.lock().unwrap();
                if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() }
            };
            tokio::time::sleep(answer?).await;
            Ok(good)
        })
    }
}

impl RootKey for Told {
    fn prefix(&self) -> &LineagePrefix {
        &self.prefix
    }

    fn observe(&self) -> Answer<'_, Root> {
        self.answer(root())
    }

    fn wrap<'a>(&'a self, _: &'a Root, _: &'a Digest, _: &'a [u8; payload::LEN]) -> Answer<'a, Vec<u8>> {
        self.answer(Vec::new())
    }

    fn unwrap<'a>(&'a self, _: &'a Root, _: &'a Digest, _: &'a [u8]) -> Answer<'a, Zeroizing<Vec<u8>>> {
        self.answer(Zeroizing::default())
    }

    fn binds_associated_data(&self, _: &Root) -> bool {
        true
    }
}

fn root() -> Root {
    Root { lineage: "exec:told/1".parse().unwrap(), algorithm: Algorithm::EXEC }
}

fn failure(class: Class) -> Failure {
    Failure::new(class, "planted", "nothing")
}

struct Subject {
    guarded: Arc<Guarded>,
    answers: Answers,
}

impl Subject {
    fn new() -> Self {
        let answers = Arc::new(Mutex::new([Ok(Duration::ZERO)].into()));
        let prefix = LineagePrefix::new("exec", ["told"]).unwrap();
        Self { guarded: Guarded::around(Box::new(Told { prefix, answers: answers.clone() })), answers }
    }

    fn is(&self, answer: Result<Duration, Failure>) {
        *self.answers.lock().unwrap() = [answer].into();
    }

    /// Once so, and then so.
    fn is_then(&self, first: Result<Duration, Failure>, then: Result<Duration, Failure>) {
        *self.answers.lock().unwrap() = [first, then].into();
    }

    fn breaker(&self) -> BreakerState {
        self.guarded.condition().breaker
    }

    async fn stored(&self, wrap: &[u8]) -> Result<(), Failure> {
        self.guarded.unwrap_stored(&root(), &[0; 32], wrap).await.map(drop)
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_asked_says_nothing_of_how_long_openings_take() {
    let subject = Subject::new();
    subject.is(Ok(Duration::from_millis(40)));
    subject.stored(b"good").await.unwrap();
    let measured = subject.guarded.cost();
    // Not let in.
    subject.is(Err(failure(Class::Credential)));
    for _ in 0..20 {
        subject.stored(b"good").await.unwrap_err();
    }
    assert_eq!(subject.guarded.cost(), measured);
    // Limited, and remembered: by this program itself.
    subject.is(Err(failure(Class::NotOpened)));
    for number in 0..FAILURES_AT_ONCE {
        subject.is(Err(failure(Class::NotOpened)));
        subject.stored(&number.to_be_bytes()).await.unwrap_err();
    }
    let measured = subject.guarded.cost();
    for number in 0..2 * FAILURES_AT_ONCE {
        subject.stored(&number.to_be_bytes()).await.unwrap_err();
    }
    assert_eq!(subject.guarded.cost(), measured);

    // A silence that is remembered.
    let subject = Subject::new();
    subject.is(Ok(Duration::from_millis(40)));
    subject.stored(b"good").await.unwrap();
    let measured = subject.guarded.cost();
    subject.is(Err(failure(Class::Unreachable).unasked()));
    for _ in 0..20 {
        subject.stored(b"good").await.unwrap_err();
    }
    assert_eq!(subject.guarded.cost(), measured);

    // Out, and somebody else tries it.
    let subject = Subject::new();
    subject.is(Err(failure(Class::Unreachable)));
    for _ in 0..2 {
        subject.guarded.observe().await.unwrap_err();
    }
    subject.is(Ok(Duration::from_secs(2)));
    let trial = tokio::spawn({
        let guarded = subject.guarded.clone();
        async move { guarded.unwrap_stored(&root(), &[0; 32], b"good").await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let measured = subject.guarded.cost();
    for _ in 0..20 {
        subject.stored(b"good").await.unwrap_err();
    }
    assert_eq!(subject.guarded.cost(), measured);
    trial.await.unwrap().unwrap();

    // Asked, and not answered: that is dear.
    let subject = Subject::new();
    let measured = subject.guarded.cost();
    subject.is(Err(failure(Class::Unreachable)));
    subject.stored(b"good").await.unwrap_err();
    assert!(subject.guarded.cost() > measured);
    // Be it that its retries were answered from memory.
    let subject = Subject::new();
    subject.is_then(Err(failure(Class::Unreachable)), Err(failure(Class::Unreachable).unasked()));
    subject.stored(b"good").await.unwrap_err();
    assert!(subject.guarded.cost() > measured);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_asked_is_neither_an_answer_nor_a_silence() {
    let (silence, remembered) = (failure(Class::Unreachable), failure(Class::Unreachable).unasked());
    let unreadable = failure(Class::Credential).unasked();
    let subject = Subject::new();
    let own = async |answer: &Failure| {
        subject.is(Err(answer.clone()));
        subject.guarded.observe().await.unwrap_err();
        subject.breaker()
    };
    assert_eq!(own(&silence).await, BreakerState::Closed);
    for _ in 0..5 {
        assert_eq!(own(&remembered).await, BreakerState::Closed);
        assert_eq!(own(&unreadable).await, BreakerState::Closed);
    }
    assert_eq!(own(&silence).await, BreakerState::Open, "it was the second in a row");
    for _ in 0..5 {
        assert_eq!(own(&unreadable).await, BreakerState::Open);
    }
    assert_eq!(own(&failure(Class::Credential)).await, BreakerState::HalfOpen, "it has answered");
    assert_eq!(own(&unreadable).await, BreakerState::HalfOpen);
    assert_eq!(own(&failure(Class::Refused)).await, BreakerState::Closed);

    // Asked once, and the retries answered from memory: a silence all the same.
    for state in [BreakerState::Closed, BreakerState::Open] {
        subject.is_then(Err(silence.clone()), Err(remembered.clone()));
        subject.guarded.observe().await.unwrap_err();
        assert_eq!(subject.breaker(), state);
    }
}

#[tokio::test(start_paused = true)]
async fn callers_are_told_to_wait_as_long_as_they_would() {
    let subject = Subject::new();
    let day = Failure { retry_after: Some(Duration::from_secs(24 * 3600)), ..failure(Class::Throttled) };
    subject.is(Err(day));
    assert_eq!(subject.guarded.observe().await.unwrap_err().retry_after, Some(LONGEST_WAIT));
    assert_eq!(subject.stored(b"good").await.unwrap_err().retry_after, Some(LONGEST_WAIT));
    subject.is(Ok(Duration::ZERO));
    tokio::time::advance(LONGEST_WAIT - Duration::from_secs(1)).await;
    let left = subject.guarded.observe().await.unwrap_err().retry_after;
    assert_eq!(left, Some(Duration::from_secs(1)));
    tokio::time::advance(Duration::from_secs(1)).await;
    subject.guarded.observe().await.unwrap();
}
