//! One question, asked again where its answer says how.
use std::time::Duration;

use casemate_wire::etcd::{RangeRequest, RangeResponse};
use tokio::time::{Instant, sleep};

use super::error::KeyRange;
use super::{Client, Error, MAX_MESSAGE};

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

/// How often a member may be behind, or a page too large although it can't be smaller, before that is an error.
const PATIENCE: u32 = 20;

/// What etcd answers, and how long it took. A page that is too large is asked for with a lower limit.
pub(super) async fn ask(
    client: &mut Client,
    request: &mut RangeRequest,
) -> Result<(RangeResponse, Duration), Missed> {
    let mut odd = 0;
    loop {
        let begun = Instant::now();
        let error = match client.range(request).await {
            Ok(answer) => return Ok((answer, begun.elapsed())),
            Err(error) if error.is_out_of_range() => error,
            Err(error) => return Err(error.into()),
        };
        match why(client, request).await? {
            Why::Compacted => return Err(Missed::Compacted),
            Why::Refused => return Err(error.into()),
            Why::TooLarge if request.limit > 1 => request.limit /= 2,
            Why::TooLarge if odd == PATIENCE => {
                let endpoint = client.endpoint().to_owned();
                let key = KeyRange::new(&request.key, &[]).from;
                return Err(Error::TooLarge { endpoint, key, limit: MAX_MESSAGE }.into());
            }
            Why::Behind if odd == PATIENCE => {
                let endpoint = client.endpoint().to_owned();
                return Err(Error::Lags { endpoint, asked: request.revision.unsigned_abs() }.into());
            }
            Why::TooLarge => odd += 1,
            Why::Behind => {
                odd += 1;
                client.turn();
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
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

pub(super) fn revision_of(answer: &RangeResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}
