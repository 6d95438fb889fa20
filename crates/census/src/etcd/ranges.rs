//! What a prefix stands for, in ranges of etcd.
use casemate_wire::etcd::{RangeRequest, UNBOUNDED};
use prost::bytes::Bytes;

/// The key itself, which is no object and which a user need not be allowed to read.
pub(super) fn is_optional(request: &RangeRequest) -> bool {
    request.range_end.is_empty()
}

/// What `prefix` stands for: what is below it, and itself.
pub(super) fn ranges(prefix: &str) -> Vec<(Bytes, Bytes)> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        let all = Bytes::from_static(UNBOUNDED);
        return vec![(all.clone(), all)];
    }
    // `0` comes after `/`.
    let below = (format!("{prefix}/").into(), format!("{prefix}0").into());
    vec![below, (prefix.to_owned().into(), Bytes::new())]
}

/// What [`ranges`] leaves out. etcd counts no key in both.
pub(super) fn elsewhere(prefix: &str) -> Vec<(Bytes, Bytes)> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Vec::new();
    }
    let all = || Bytes::from_static(UNBOUNDED);
    let between = (format!("{prefix}\0").into(), format!("{prefix}/").into());
    vec![(all(), prefix.to_owned().into()), between, (format!("{prefix}0").into(), all())]
}
