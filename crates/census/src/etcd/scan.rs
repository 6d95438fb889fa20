//! Goes through the keys, page by page, until all of them were read at one revision.
use std::collections::VecDeque;
use std::time::Duration;

use casemate_wire::etcd::{RangeRequest, RangeResponse, UNBOUNDED};
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::error::KeyRange;
use super::pace::Pace;
use super::past::{self, Past};
use super::reach::Reach;
use super::{Client, Error, MAX_MESSAGE, page};
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
    read: Option<Read>,
}

/// What was read.
#[derive(Clone, Debug)]
struct Read {
    revision: i64,
    keys: i64,
    survey: Survey,
}

/// Why a page did not come.
pub(super) enum Missed {
    /// etcd has forgotten the revision.
    Compacted,
    /// Something that ends the survey.
    Error(Error),
}

impl From<Error> for Missed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Keys of a segment, where pages are smaller: what is kept of a segment does not depend on their number.
const JOINED: i64 = 500;

/// The most keys outside of the prefix that are looked at.
const LOOKED_AT_OUTSIDE: u64 = 1000;

/// How often a member may be behind, or a page too large although it can't be smaller, before that is an error.
const PATIENCE: u32 = 20;

impl Scanner {
    /// Of an etcd. Nothing is sent yet.
    pub fn new(client: Client, options: Options) -> Self {
        let unread = |(start, end)| Segment { start, end, read: None };
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
        let mut todo = std::mem::take(&mut self.segments);
        let (mut done, mut known, mut repins) = (VecDeque::new(), 0, 0);
        while let Some(mut segment) = todo.pop_front() {
            match self.bring(&mut segment, pinned).await {
                Ok(rest) => {
                    known += segment.keys();
                    join(&mut done, segment);
                    rest.into_iter().for_each(|rest| todo.push_front(rest));
                }
                Err(Missed::Compacted) => {
                    (pinned, all) = self.pin().await?;
                    repins += 1;
                    todo.push_front(segment);
                    if repins <= self.options.passes {
                        known = 0;
                        while let Some(segment) = done.pop_back() {
                            todo.push_front(segment);
                        }
                    }
                }
                Err(Missed::Error(error)) => {
                    done.push_back(segment);
                    done.append(&mut todo);
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
            let request = RangeRequest {
                key: start,
                range_end: end,
                count_only: true,
                revision,
                ..RangeRequest::default()
            };
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

    /// Brings a segment to `pinned`: by seeing that nothing in it has changed, or by reading its first page. What is
    /// behind that page is returned.
    async fn bring(&mut self, segment: &mut Segment, pinned: i64) -> Result<Option<Segment>, Missed> {
        if let Some(read) = &mut segment.read {
            if read.revision == pinned {
                return Ok(None);
            }
            let request = RangeRequest {
                key: segment.start.clone(),
                range_end: segment.end.clone(),
                limit: 1,
                revision: pinned,
                serializable: true,
                keys_only: true,
                min_mod_revision: read.revision + 1,
                ..RangeRequest::default()
            };
            let answer = self.ask(request, read.keys.unsigned_abs()).await?;
            // As many as before, and none of them written since: then none was deleted either.
            if answer.kvs.is_empty() && answer.count == read.keys {
                read.revision = pinned;
                return Ok(None);
            }
            segment.read = None;
        }
        let end = self.reach.from(&segment.start, &segment.end);
        let request = RangeRequest {
            key: segment.start.clone(),
            range_end: end.clone(),
            revision: pinned,
            serializable: true,
            ..RangeRequest::default()
        };
        let limit = self.pace.limit();
        let answer = match self.ask(request.clone(), 0).await {
            Err(Missed::Error(Error::Denied { .. })) if is_optional(&request) => RangeResponse::default(),
            answer => answer?,
        };
        let mut surveyor = Surveyor::new(&self.options.prefix);
        for pair in &answer.kvs {
            surveyor.add(&page::item(pair), Standing::Live);
        }
        let (keys, survey) = (answer.kvs.len() as i64, surveyor.into_survey());
        segment.read = Some(Read { revision: pinned, keys, survey });
        self.reach.learn(&answer, limit);
        let next = match answer.kvs.last() {
            Some(last) if answer.more => [&last.key[..], &[0]].concat().into(),
            _ => end,
        };
        let end = std::mem::replace(&mut segment.end, next.clone());
        Ok((next != end).then_some(Segment { start: next, end, read: None }))
    }

    /// One page, at the pace that is kept. A request without a limit gets one that fits; `seen` keys that etcd looks at
    /// without telling them count, too.
    async fn ask(&mut self, mut request: RangeRequest, seen: u64) -> Result<RangeResponse, Missed> {
        let is_page = request.limit == 0;
        let mut odd = 0;
        loop {
            if is_page {
                request.limit = self.pace.limit();
            }
            let begun = Instant::now();
            let error = match self.client.range(&request).await {
                Ok(answer) => {
                    let took = begun.elapsed();
                    self.rest(&answer, is_page, seen, took).await;
                    return Ok(answer);
                }
                Err(error) if error.is_out_of_range() => error,
                Err(error) => return Err(error.into()),
            };
            match why(&mut self.client, &request).await? {
                Why::Compacted => return Err(Missed::Compacted),
                Why::Refused => return Err(error.into()),
                Why::TooLarge if is_page && self.pace.shrink() => {}
                Why::TooLarge if odd == PATIENCE => {
                    let endpoint = self.client.endpoint().to_owned();
                    let key = KeyRange::new(&request.key, &[]).from;
                    return Err(Error::TooLarge { endpoint, key, limit: MAX_MESSAGE }.into());
                }
                Why::Behind if odd == PATIENCE => {
                    let endpoint = self.client.endpoint().to_owned();
                    return Err(Error::Lags { endpoint, asked: request.revision.unsigned_abs() }.into());
                }
                Why::TooLarge => odd += 1,
                Why::Behind => {
                    odd += 1;
                    self.client.turn();
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn rest(&mut self, answer: &RangeResponse, is_page: bool, seen: u64, took: Duration) {
        let bytes = answer.kvs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
        let pause = match is_page {
            true => self.pace.after(answer.kvs.len() as u64, bytes, took),
            // etcd reads them all the same; how large they are is not known, and it sends none.
            false => self.pace.pause(seen * 64, took),
        };
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }

    /// How many keys are elsewhere, and how many of these are encrypted, if they are few: other keys of an etcd of Kubernetes
    /// are. If it may not be looked at, something must be here.
    async fn outside(&mut self, inside: u64) -> Result<(u64, Option<u64>), Error> {
        let all = UNBOUNDED.to_vec();
        let request = RangeRequest {
            key: all.clone().into(),
            range_end: all.into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let keys = match self.client.range(&request).await {
            Ok(answer) => answer.count.unsigned_abs().saturating_sub(inside),
            Err(Error::Denied { .. }) if inside > 0 => return Ok((0, None)),
            Err(error) => return Err(error),
        };
        let is_looked_at = keys <= LOOKED_AT_OUTSIDE;
        Ok((keys, if is_looked_at { self.encrypted_outside().await? } else { None }))
    }

    /// How many encrypted values there are elsewhere; `None` if there came to be many meanwhile.
    async fn encrypted_outside(&mut self) -> Result<Option<u64>, Error> {
        let (mut looked_at, mut encrypted) = (0, 0);
        for (mut start, end) in elsewhere(&self.options.prefix) {
            loop {
                let (key, range_end) = (start.clone(), end.clone());
                let request = RangeRequest { key, range_end, ..RangeRequest::default() };
                let answer = match self.ask(request, 0).await {
                    Ok(answer) => answer,
                    Err(Missed::Error(Error::Denied { .. })) => return Ok(None),
                    Err(Missed::Error(error)) => return Err(error),
                    // No revision was asked for.
                    Err(Missed::Compacted) => return Ok(None),
                };
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

/// Why a revision, or an answer, is out of range.
enum Why {
    Compacted,
    /// The answer would be larger than is taken.
    TooLarge,
    /// The member has not come to that revision yet.
    Behind,
    /// It makes no sense.
    Refused,
}

/// The code alone does not tell; what etcd answers to smaller questions does.
async fn why(client: &mut Client, request: &RangeRequest) -> Result<Why, Error> {
    let count = RangeRequest {
        key: request.key.clone(),
        range_end: request.range_end.clone(),
        count_only: true,
        revision: request.revision,
        serializable: true,
        ..RangeRequest::default()
    };
    let is_there = async |client: &mut Client, count: &RangeRequest| match client.range(count).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_out_of_range() => Ok(false),
        Err(error) => Err(error),
    };
    if is_there(client, &count).await? {
        return Ok(Why::TooLarge);
    }
    let agreed = RangeRequest { serializable: false, ..count };
    if is_there(client, &agreed).await? {
        return Ok(Why::Behind);
    }
    let newest = revision_of(&client.range(&RangeRequest { revision: 0, ..agreed }).await?);
    if newest >= request.revision {
        return Ok(Why::Compacted);
    }
    if request.revision == 0 {
        return Ok(Why::Refused);
    }
    let endpoint = client.endpoint().to_owned();
    Err(Error::NoRevision { endpoint, asked: request.revision.unsigned_abs(), newest: newest.unsigned_abs() })
}

fn revision_of(answer: &RangeResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// The key itself, which is no object and which a user need not be allowed to read.
fn is_optional(request: &RangeRequest) -> bool {
    request.range_end.is_empty()
}

/// What `prefix` stands for: what is below it, and itself.
fn ranges(prefix: &str) -> Vec<(Bytes, Bytes)> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        let all = Bytes::from_static(UNBOUNDED);
        return vec![(all.clone(), all)];
    }
    // `0` comes after `/`.
    let below = (format!("{prefix}/").into(), format!("{prefix}0").into());
    vec![below, (prefix.to_owned().into(), Bytes::new())]
}

/// What [`ranges`] leaves out.
fn elsewhere(prefix: &str) -> Vec<(Bytes, Bytes)> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Vec::new();
    }
    let all = || Bytes::from_static(UNBOUNDED);
    let between = (format!("{prefix}\0").into(), format!("{prefix}/").into());
    vec![(all(), prefix.to_owned().into()), between, (format!("{prefix}0").into(), all())]
}
