//! Goes through the keys, page by page, until all of them were read at one revision.
use std::collections::VecDeque;
use std::time::Duration;

use casemate_wire::etcd::{KeyValue, RangeRequest, RangeResponse};
use prost::bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ask::{Missed, ask, revision_of};
use super::pace::Pace;
use super::past::{self, Past};
use super::ranges::{elsewhere, is_optional, ranges};
use super::reach::{Reach, Seen};
use super::{Client, Error, page};
use crate::classify::is_encrypted;
use crate::mvcc::Standing;
use crate::survey::{Survey, Surveyor, Unseen};

/// How an etcd is surveyed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Below which key kube-apiserver keeps its objects.
    pub prefix: String,
    /// Bytes a second at most; `None` for as fast as etcd answers.
    pub rate: Option<u64>,
    /// How often to begin anew because etcd was compacted, before it is read at several revisions.
    pub passes: u32,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Keys of this revision that are accounted for.
    pub done: u64,
    /// Keys that there are.
    pub all: u64,
    /// How often a compaction made another revision necessary.
    pub repins: u32,
}

/// Surveys one etcd, once or again and again: what did not change since is not read again.
#[derive(Debug)]
pub struct Scanner {
    client: Client,
    options: Options,
    pace: Pace,
    reach: Reach,
    segments: VecDeque<Segment>,
}

/// Keys from one to another, and what is known of them.
#[derive(Clone, Debug)]
struct Segment {
    start: Bytes,
    end: Bytes,
    /// How many keys it has, where that was told.
    known: Option<u64>,
    read: Option<Read>,
}

/// What was read.
#[derive(Clone, Debug)]
struct Read {
    revision: i64,
    keys: i64,
    survey: Survey,
}

/// A segment that is not done with.
struct Turn {
    segment: Segment,
    /// The page at its beginning, if it was asked for. It ends with this.
    asked: Option<JoinSet<(Client, Result<Page, Missed>)>>,
}

/// What a page says.
struct Page {
    read: Read,
    seen: Seen,
    bytes: u64,
    took: Duration,
}

/// Keys of a segment, where pages are smaller: what is kept of a segment does not depend on their number.
const JOINED: i64 = 500;

/// The most keys outside of the prefix that are looked at.
const LOOKED_AT_OUTSIDE: u64 = 1000;

/// Pages that are asked for at a time, where no rate is kept: etcd reads one while another is looked at here.
const AT_ONCE: usize = 2;

impl Scanner {
    /// Of an etcd. Nothing is sent yet.
    pub fn new(client: Client, options: Options) -> Self {
        let unread = |(start, end)| Segment { start, end, known: None, read: None };
        let segments = ranges(&options.prefix).into_iter().map(unread).collect();
        let pace = Pace::new(options.rate);
        let reach = Reach::new(&options.prefix);
        Self { client, options, pace, reach, segments }
    }

    /// Who is asked.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What etcd holds now. What was read before and did not change is not read again.
    ///
    /// # Errors
    /// If etcd can't be asked, or answers wrongly.
    pub async fn survey(&mut self, mut progress: impl FnMut(Progress)) -> Result<Survey, Error> {
        let (mut pinned, mut all) = self.pin().await?;
        let mut todo: VecDeque<Turn> = self.segments.drain(..).map(Turn::new).collect();
        let (mut done, mut known, mut repins) = (VecDeque::new(), 0, 0);
        loop {
            // Where etcd forgets as fast as it is read, one page at a time gets on.
            let at_once = if self.options.rate.is_none() && repins == 0 { AT_ONCE } else { 1 };
            self.ask_for(&mut todo, at_once, pinned, all.saturating_sub(known));
            let Some(Turn { mut segment, asked }) = todo.pop_front() else { break };
            let brought = match asked {
                Some(page) => self.take(&mut segment, page).await,
                None => self.look_again(&mut segment, pinned).await,
            };
            match brought {
                Ok(rest) => {
                    rest.into_iter().for_each(|rest| todo.push_front(Turn::new(rest)));
                    if segment.read.is_some() {
                        known += segment.keys();
                        join(&mut done, segment);
                    }
                }
                Err(Missed::Compacted) => {
                    (pinned, all) = self.pin().await?;
                    repins += 1;
                    todo.push_front(Turn::new(segment));
                    todo.iter_mut().for_each(|turn| turn.asked = None);
                    if repins <= self.options.passes {
                        known = 0;
                        while let Some(segment) = done.pop_back() {
                            todo.push_front(Turn::new(segment));
                        }
                    }
                }
                Err(Missed::Error(error)) => {
                    done.push_back(segment);
                    done.extend(todo.into_iter().map(|turn| turn.segment));
                    self.segments = done;
                    return Err(error);
                }
            }
            progress(Progress { done: known, all, repins });
        }
        self.segments = done;
        self.sum_up(pinned).await
    }

    /// All segments, and what is not in them.
    async fn sum_up(&mut self, pinned: i64) -> Result<Survey, Error> {
        let prefix = &self.options.prefix;
        let mut survey = Survey { prefix: prefix.clone(), ..Survey::default() };
        let mut oldest = pinned;
        let read = || self.segments.iter().filter_map(|segment| segment.read.as_ref());
        for read in read() {
            oldest = oldest.min(read.revision);
            survey.live += read.keys.unsigned_abs();
        }
        survey.absorb(read().map(|read| &read.survey));
        survey.revision = Some(pinned.unsigned_abs());
        if oldest < pinned {
            let (oldest, newest) = (oldest.unsigned_abs(), pinned.unsigned_abs());
            survey.unseen.push(Unseen::Moment { oldest, newest });
        }
        let Past { compacted, survey: past, outside_encrypted, unseen } =
            past::look(&mut self.client, prefix, pinned, &self.pace).await?;
        survey.compacted = compacted;
        survey.past = past.past;
        survey.absorb([&past]);
        survey.unseen.extend(unseen);
        survey.groups.sort_by(|one, other| one.group.cmp(&other.group));
        (survey.outside, survey.outside_encrypted) = self.outside(survey.live).await?;
        survey.outside_encrypted = survey.outside_encrypted.map(|now| now + outside_encrypted);
        Ok(survey)
    }

    /// The newest revision, with the consent of the cluster, and how many keys there are.
    async fn pin(&mut self) -> Result<(i64, u64), Error> {
        let (mut revision, mut keys) = (0, 0);
        for (start, end) in ranges(&self.options.prefix) {
            // Not at the revision of the answer before, which may be compacted by now: how many there are is for progress.
            let request =
                RangeRequest { key: start, range_end: end, count_only: true, ..RangeRequest::default() };
            let answer = match self.client.range(&request).await {
                // That much was not asked for: see `is_optional`.
                Err(Error::Denied { .. }) if is_optional(&request) => continue,
                answer => answer?,
            };
            if revision == 0 {
                revision = revision_of(&answer);
            }
            keys += answer.count.unsigned_abs();
        }
        Ok((revision, keys))
    }

    /// Asks for the pages that come next, where `left` keys are to come. What was read already comes in its turn.
    fn ask_for(&self, todo: &mut VecDeque<Turn>, at_once: usize, pinned: i64, left: u64) {
        for place in 0..at_once {
            match todo.get_mut(place) {
                Some(Turn { asked: Some(_), .. }) => {}
                Some(Turn { segment, asked }) if segment.read.is_none() => {
                    let behind = self.cut(segment, left);
                    *asked = Some(self.first_page(segment, pinned));
                    if let Some(behind) = behind {
                        todo.insert(place + 1, Turn::new(behind));
                    }
                }
                _ => break,
            }
        }
    }

    /// Has the segment end where its page should reach at most, and returns what is behind that.
    fn cut(&self, segment: &mut Segment, left: u64) -> Option<Segment> {
        let Segment { start, end, known, .. } = segment;
        let border = self.reach.from(start, end, *known, left, self.pace.limit().unsigned_abs());
        if border == *end {
            return None;
        }
        *known = None;
        let end = std::mem::replace(end, border.clone());
        Some(Segment { start: border, end, known: None, read: None })
    }

    /// The first page of a segment, which comes.
    fn first_page(&self, segment: &Segment, pinned: i64) -> JoinSet<(Client, Result<Page, Missed>)> {
        let request = RangeRequest {
            key: segment.start.clone(),
            range_end: segment.end.clone(),
            limit: self.pace.limit(),
            revision: pinned,
            serializable: true,
            ..RangeRequest::default()
        };
        let (mut client, prefix) = (self.client.clone(), self.options.prefix.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let page = page(&mut client, request, &prefix).await;
            (client, page)
        });
        task
    }

    /// Takes the page that was asked for. What of the segment is behind it is returned.
    async fn take(
        &mut self,
        segment: &mut Segment,
        mut asked: JoinSet<(Client, Result<Page, Missed>)>,
    ) -> Result<Option<Segment>, Missed> {
        let (client, page) = match asked.join_next().await {
            Some(Ok(answered)) => answered,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Nobody ends it but the runtime, and this with it.
            _ => std::future::pending().await,
        };
        self.client = client;
        let Page { read, seen, bytes, took } = page?;
        wait(self.pace.after(read.keys.unsigned_abs(), bytes, took)).await;
        self.reach.learn(&segment.start, &segment.end, &seen);
        segment.read = Some(read);
        let Some((_, last)) = seen.keys.filter(|_| seen.more) else { return Ok(None) };
        let start: Bytes = [&last[..], &[0]].concat().into();
        let end = std::mem::replace(&mut segment.end, start.clone());
        Ok(Some(Segment { start, end, known: Some(seen.left), read: None }))
    }

    /// Brings a segment that was read to `pinned`, if nothing in it has changed. Else it is returned to be read.
    async fn look_again(&mut self, segment: &mut Segment, pinned: i64) -> Result<Option<Segment>, Missed> {
        let Some(read) = segment.read.as_mut().filter(|read| read.revision != pinned) else {
            return Ok(None);
        };
        let mut request = RangeRequest {
            key: segment.start.clone(),
            range_end: segment.end.clone(),
            limit: 1,
            revision: pinned,
            serializable: true,
            keys_only: true,
            min_mod_revision: read.revision + 1,
            ..RangeRequest::default()
        };
        let (answer, took) = ask(&mut self.client, &mut request).await?;
        // etcd reads them all the same; how large they are is not known, and it sends none.
        wait(self.pace.pause(read.keys.unsigned_abs() * 64, took)).await;
        // As many as before, and none of them written since: then none was deleted either.
        if answer.kvs.is_empty() && answer.count == read.keys {
            read.revision = pinned;
            return Ok(None);
        }
        segment.read = None;
        Ok(Some(segment.clone()))
    }

    /// How many keys are elsewhere, and how many of these are encrypted, if they are few: other keys of an etcd of Kubernetes
    /// are. If it may not be looked at, something must be here.
    async fn outside(&mut self, inside: u64) -> Result<(u64, Option<u64>), Error> {
        let mut keys = 0;
        for (key, range_end) in elsewhere(&self.options.prefix) {
            let request = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
            match self.client.range(&request).await {
                Ok(answer) => keys += answer.count.unsigned_abs(),
                Err(Error::Denied { .. }) if inside > 0 => return Ok((0, None)),
                Err(error) => return Err(error),
            }
        }
        let is_looked_at = keys <= LOOKED_AT_OUTSIDE;
        Ok((keys, if is_looked_at { self.encrypted_outside().await? } else { None }))
    }

    /// How many encrypted values there are elsewhere; `None` if there came to be many meanwhile.
    async fn encrypted_outside(&mut self) -> Result<Option<u64>, Error> {
        let (mut looked_at, mut encrypted) = (0, 0);
        for (mut start, end) in elsewhere(&self.options.prefix) {
            loop {
                let (key, range_end, limit) = (start.clone(), end.clone(), self.pace.limit());
                let mut request = RangeRequest { key, range_end, limit, ..RangeRequest::default() };
                let (answer, took) = match ask(&mut self.client, &mut request).await {
                    Ok(answered) => answered,
                    Err(Missed::Error(Error::Denied { .. })) => return Ok(None),
                    Err(Missed::Error(error)) => return Err(error),
                    // No revision was asked for.
                    Err(Missed::Compacted) => return Ok(None),
                };
                wait(self.pace.after(answer.kvs.len() as u64, bytes(&answer), took)).await;
                looked_at += answer.kvs.len() as u64;
                encrypted += answer.kvs.iter().filter(|pair| is_encrypted(&pair.value)).count() as u64;
                match answer.kvs.last() {
                    Some(_) if looked_at > 2 * LOOKED_AT_OUTSIDE => return Ok(None),
                    Some(last) if answer.more => start = [&last.key[..], &[0]].concat().into(),
                    _ => break,
                }
            }
        }
        Ok(Some(encrypted))
    }
}

impl Turn {
    fn new(segment: Segment) -> Self {
        Self { segment, asked: None }
    }
}

impl Segment {
    fn keys(&self) -> u64 {
        self.read.as_ref().map_or(0, |read| read.keys.unsigned_abs())
    }
}

/// Puts `segment` behind `done`; small ones of one revision become one.
fn join(done: &mut VecDeque<Segment>, segment: Segment) {
    if let (Some(Segment { end, read: Some(last), .. }), Some(read)) = (done.back_mut(), &segment.read)
        && *end == segment.start
        && last.revision == read.revision
        && last.keys + read.keys <= JOINED
    {
        *end = segment.end;
        last.keys += read.keys;
        last.survey.absorb([&read.survey]);
        return;
    }
    done.push_back(segment);
}

/// A page, counted.
async fn page(client: &mut Client, mut request: RangeRequest, prefix: &str) -> Result<Page, Missed> {
    let (answer, took) = match ask(client, &mut request).await {
        Err(Missed::Error(Error::Denied { .. })) if is_optional(&request) => Default::default(),
        answer => answer?,
    };
    let mut surveyor = Surveyor::new(prefix);
    for pair in &answer.kvs {
        surveyor.add(&page::item(pair), Standing::Live);
    }
    // By themselves: else all of the page stays in memory.
    let copy = |pair: &KeyValue| Bytes::copy_from_slice(&pair.key);
    let keys = answer.kvs.len() as i64;
    let count = answer.count.max(keys).unsigned_abs();
    let seen = Seen {
        keys: answer.kvs.first().map(copy).zip(answer.kvs.last().map(copy)),
        count,
        left: count - keys.unsigned_abs(),
        more: answer.more,
        limit: request.limit.unsigned_abs(),
    };
    let read = Read { revision: request.revision, keys, survey: surveyor.into_survey() };
    Ok(Page { read, seen, bytes: bytes(&answer), took })
}

fn bytes(answer: &RangeResponse) -> u64 {
    answer.kvs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum()
}

async fn wait(pause: Duration) {
    if !pause.is_zero() {
        sleep(pause).await;
    }
}
