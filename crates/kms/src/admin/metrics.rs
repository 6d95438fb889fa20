//! Every metric in one table: name, unit, labels, meaning, and where its value comes from.
//!
//! Label values come from the configuration, from this program and from key ids that the admin made: whatever clients
//! send, the number of series stays.

use std::fmt;
use std::sync::Arc;

use casemate_keys::secret_memory;
use casemate_keyservice::guarded::Counts;
use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::Shown;
use super::status::key_id_hash;
use crate::audit::{Head, Recorder};
use crate::provider::{OUTCOMES, Outcomes, Provider, SealedCounts, Sighting};
use crate::reload::Configured;
use crate::traffic::{Latencies, Method, code_name};

/// One metric.
pub struct Metric {
    name: &'static str,
    kind: Kind,
    in_seconds: bool,
    /// Its labels beside `provider`, which all but the first have.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
    source: Source,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

enum Source {
    /// Of the audit log; nothing where there is none.
    Audit(fn(&Recorder) -> Vec<Sample>),
    /// Of the configuration's file.
    Configuration(fn(&Configured) -> Vec<Sample>),
    Process(fn() -> Vec<Sample>),
    Provider(fn(&Provider) -> Vec<Sample>),
}

/// Label values in the order of [`Metric::labels`], and the value.
type Sample = (Vec<String>, Value);

enum Value {
    Whole(u64),
    Seconds(f64),
    Latencies(Latencies),
    Labels,
}

/// All of them, in the order of the text.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "casemate_kms_build",
        kind: Kind::Info,
        in_seconds: false,
        labels: &["version"],
        help: "Version of the program",
        source: Source::Process(|| vec![(vec![env!("CARGO_PKG_VERSION").into()], Value::Labels)]),
    },
    Metric {
        name: "casemate_kms_local_keks",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &["memory"],
        help: "Local KEKs that stand in memory of this kind: secret and locked are neither swapped nor dumped, ordinary may be",
        source: Source::Process(|| {
            let held = secret_memory::usage();
            [("secret", held.secret), ("locked", held.locked), ("ordinary", held.ordinary)]
                .map(|(memory, keys)| (vec![memory.into()], Value::Whole(keys as u64)))
                .into()
        }),
    },
    Metric {
        name: "casemate_kms_audit_head",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &["part"],
        help: "The last line of the audit log, as two numbers: seq, and hash, whose 13 hex digits the line's hash begins with",
        source: Source::Audit(|audit| {
            // Both of one line. As a label, a hash would make a new series each time.
            let Head { seq, hash } = audit.head();
            [("seq", seq), ("hash", hash.start())]
                .map(|(part, number)| (vec![part.into()], Value::Whole(number)))
                .into()
        }),
    },
    Metric {
        name: "casemate_kms_audit_missed",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &[],
        help: "Calls that are not in the audit log",
        source: Source::Audit(|audit| one(Value::Whole(audit.missed()))),
    },
    Metric {
        name: "casemate_kms_audit_failing",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "1 if nothing can be written to the audit log now",
        source: Source::Audit(|audit| one(Value::Whole(audit.problem().is_some().into()))),
    },
    Metric {
        name: "casemate_kms_config_reloads",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["outcome"],
        help: "Changed configurations: taken over, or refused (each text and reason once)",
        source: Source::Configuration(|held| {
            [("taken_over", held.reloads), ("refused", held.refusals)]
                .map(|(outcome, count)| (vec![outcome.into()], Value::Whole(count)))
                .into()
        }),
    },
    Metric {
        name: "casemate_kms_config_refused",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "1 if what the configuration's file says now is not what holds",
        source: Source::Configuration(|held| one(Value::Whole(held.refused.is_some().into()))),
    },
    Metric {
        name: "casemate_kms_not_started",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "Providers that could not be started; the others serve without them",
        source: Source::Configuration(|held| one(Value::Whole(held.not_started.len() as u64))),
    },
    Metric {
        name: "casemate_kms_config_since_timestamp",
        kind: Kind::Gauge,
        in_seconds: true,
        labels: &[],
        help: "Unix time since which the configuration holds",
        source: Source::Configuration(|held| one(Value::Seconds(held.since as f64))),
    },
    Metric {
        name: "casemate_kms_writing",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "1 if Encrypt writes and Status names a key id, 0 if both are refused",
        source: Source::Provider(|provider| one(Value::Whole(writing(provider).is_some().into()))),
    },
    Metric {
        name: "casemate_kms_state",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &["state"],
        help: "1 with the state that the provider is in: a row of the table of outages",
        source: Source::Provider(|provider| {
            vec![(vec![provider.snapshot().row.metric.into()], Value::Whole(1))]
        }),
    },
    Metric {
        name: "casemate_kms_key_id",
        kind: Kind::Info,
        in_seconds: false,
        labels: &["key_id_hash"],
        help: "The key id that the next write uses, hashed as in kube-apiserver's apiserver_envelope_encryption_key_id_hash_total",
        source: Source::Provider(|provider| {
            let key_id = writing(provider).map(|kek| key_id_hash(kek.key_id().as_str()));
            key_id.map(|hash| (vec![hash], Value::Labels)).into_iter().collect()
        }),
    },
    Metric {
        name: "casemate_kms_local_kek_age",
        kind: Kind::Gauge,
        in_seconds: true,
        labels: &[],
        help: "Age of the local KEK that the next write uses; it is replaced after 90 days",
        source: Source::Provider(|provider| {
            let now = (provider.settings().clock)();
            let age = writing(provider).map(|kek| now.saturating_sub(kek.record().core().created));
            age.map(|age| (Vec::new(), Value::Seconds(age as f64))).into_iter().collect()
        }),
    },
    Metric {
        name: "casemate_kms_reuse_refused",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "1 if the key id that should write was active before another one and is refused",
        source: Source::Provider(|provider| {
            one(Value::Whole(provider.snapshot().refused_reuse.is_some().into()))
        }),
    },
    Metric {
        name: "casemate_kms_ledger_unsaved",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "1 if the ledger of active key ids could not be written to the state directory",
        source: Source::Provider(|provider| one(Value::Whole(provider.snapshot().ledger_unsaved.into()))),
    },
    Metric {
        name: "casemate_kms_requests",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["method", "code"],
        help: "Calls by gRPC code; Canceled if the caller did not wait for the answer",
        source: Source::Provider(|provider| {
            let counted = |method: Method| {
                let counts = provider.traffic().by_code(method).into_iter();
                counts.map(move |(code, count)| {
                    (vec![method.name().into(), code_name(code).into()], Value::Whole(count))
                })
            };
            Method::ALL.into_iter().flat_map(counted).collect()
        }),
    },
    Metric {
        name: "casemate_kms_request_duration",
        kind: Kind::Histogram,
        in_seconds: true,
        labels: &["method"],
        help: "How long calls took, from the request to the answer",
        source: Source::Provider(|provider| {
            let latencies = |method: Method| Value::Latencies(provider.traffic().latencies(method));
            Method::ALL.map(|method| (vec![method.name().into()], latencies(method))).into()
        }),
    },
    Metric {
        name: "casemate_kms_connections",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "Connections to the KMS socket that are open",
        source: Source::Provider(|provider| one(Value::Whole(provider.traffic().connections().open()))),
    },
    Metric {
        name: "casemate_kms_connections_accepted",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &[],
        help: "Connections to the KMS socket that were accepted",
        source: Source::Provider(|provider| one(Value::Whole(provider.traffic().connections().accepted()))),
    },
    Metric {
        name: "casemate_kms_connections_refused",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["reason"],
        help: "Connections to the KMS socket that were closed at once: peer (not in allowedPeers) or excess (maxConnections)",
        source: Source::Provider(|provider| {
            let connections = provider.traffic().connections();
            let refused = [("peer", connections.refused_peers()), ("excess", connections.refused_excess())];
            refused.map(|(reason, count)| (vec![reason.into()], Value::Whole(count))).into()
        }),
    },
    Metric {
        name: "casemate_kms_kek_cache_lookups",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["result"],
        help: "What the cache of opened local KEKs did: hit, opened from the sealed cache (sealed) or by a root key (opened), joined an opening under way, failed",
        source: Source::Provider(|provider| {
            let counts = provider.opened_counts();
            let results = [
                ("hit", counts.hits),
                ("sealed", counts.sealed_hits),
                ("opened", counts.opened),
                ("joined", counts.joined),
                ("failed", counts.failed),
            ];
            results.map(|(result, count)| (vec![result.into()], Value::Whole(count))).into()
        }),
    },
    Metric {
        name: "casemate_kms_kek_cache_evictions",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &[],
        help: "Local KEKs that the cache dropped for newer ones",
        source: Source::Provider(|provider| one(Value::Whole(provider.opened_counts().evicted))),
    },
    Metric {
        name: "casemate_kms_kek_cache_entries",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "Local KEKs that the cache holds",
        source: Source::Provider(|provider| one(Value::Whole(provider.opened_counts().held))),
    },
    Metric {
        name: "casemate_kms_sealed_cache_entries",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "Local KEKs in the sealed cache's file; absent where none is configured",
        source: Source::Provider(|provider| of_sealed_cache(provider, |sealed| sealed.entries)),
    },
    Metric {
        name: "casemate_kms_sealed_cache_failing",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &[],
        help: "1 if the sealed cache can't be read or written: a start while root keys are out would fail",
        source: Source::Provider(|provider| {
            of_sealed_cache(provider, |sealed| sealed.problem.is_some().into())
        }),
    },
    Metric {
        name: "casemate_kms_sealed_cache_damaged",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &[],
        help: "Entries of the sealed cache that were refused: torn, or changed",
        source: Source::Provider(|provider| of_sealed_cache(provider, |sealed| sealed.damaged)),
    },
    Metric {
        name: "casemate_kms_root_key_observations",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["root_key", "class"],
        help: "What the plugin itself asked of a root key: which version writes, and its own wraps opened again",
        source: Source::Provider(|provider| by_class(provider, |key| &key.observed)),
    },
    Metric {
        name: "casemate_kms_root_key_opens",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["root_key", "class"],
        help: "What a root key was asked to open for a Decrypt: bytes from etcd, which say nothing about the root key",
        source: Source::Provider(|provider| by_class(provider, |key| &key.opened)),
    },
    Metric {
        name: "casemate_kms_root_key_failing",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &["root_key"],
        help: "1 if the last thing that the plugin itself asked of the root key failed",
        source: Source::Provider(|provider| {
            by_key(provider, |key| Some(Value::Whole(key.failing_since.is_some().into())))
        }),
    },
    Metric {
        name: "casemate_kms_root_key_observation_age",
        kind: Kind::Gauge,
        in_seconds: true,
        labels: &["root_key"],
        help: "Time since the root key last answered as it should; absent if it never did",
        source: Source::Provider(|provider| {
            by_key(provider, |key| Some(Value::Seconds(key.last_good?.instant.elapsed().as_secs_f64())))
        }),
    },
    Metric {
        name: "casemate_kms_root_key_breaker",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &["root_key", "state"],
        help: "1 with the state of its breaker: closed, half_open, or open (it is out, and stored data is tried one at a time)",
        source: Source::Provider(|provider| {
            let keys = &provider.snapshot().root_keys;
            let state = |key: &Sighting| key.key.condition().breaker.name().into();
            keys.iter().map(|key| (vec![key.name.clone(), state(key)], Value::Whole(1))).collect()
        }),
    },
    Metric {
        name: "casemate_kms_root_key_in_flight",
        kind: Kind::Gauge,
        in_seconds: false,
        labels: &["root_key", "asked"],
        help: "Calls to a root key that are under way: own (the plugin's) or stored (for a Decrypt)",
        source: Source::Provider(|provider| {
            let mut samples = Vec::new();
            for key in &provider.snapshot().root_keys {
                let now = key.key.condition();
                for (asked, calls) in [("own", now.own_in_flight), ("stored", now.stored_in_flight)] {
                    samples.push((vec![key.name.clone(), asked.into()], Value::Whole(calls)));
                }
            }
            samples
        }),
    },
    Metric {
        name: "casemate_kms_root_key_retries",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["root_key"],
        help: "Attempts after the first of a call to a root key",
        source: Source::Provider(|provider| counted(provider, |counts| counts.retries)),
    },
    Metric {
        name: "casemate_kms_root_key_fast_failures",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["root_key"],
        help: "Calls that failed without asking the root key: it is out, or asked for time",
        source: Source::Provider(|provider| counted(provider, |counts| counts.fast_failures)),
    },
    Metric {
        name: "casemate_kms_root_key_negative_hits",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["root_key"],
        help: "Stored wraps that did not open a moment ago, and were not tried again",
        source: Source::Provider(|provider| counted(provider, |counts| counts.negative_hits)),
    },
    Metric {
        name: "casemate_kms_root_key_limited",
        kind: Kind::Counter,
        in_seconds: false,
        labels: &["root_key"],
        help: "Stored wraps that were not tried, because too many others did not open",
        source: Source::Provider(|provider| counted(provider, |counts| counts.limited)),
    },
];

impl Metric {
    /// As it stands in the text.
    pub fn full_name(&self) -> String {
        let unit = if self.in_seconds { "_seconds" } else { "" };
        let kind = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{unit}{kind}", self.name)
    }

    /// In words.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info, always 1",
        }
    }

    /// In words.
    pub fn unit(&self) -> &'static str {
        if self.in_seconds { "seconds" } else { "" }
    }

    /// Whether it has the label `provider`.
    pub fn is_of_a_provider(&self) -> bool {
        matches!(self.source, Source::Provider(_))
    }

    fn encode(&self, encoder: &mut DescriptorEncoder, Scrape { providers, shown }: &Scrape) -> fmt::Result {
        let unit = self.in_seconds.then_some(&Unit::Seconds);
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        let mut encoder = encoder.encode_descriptor(self.name, self.help, unit, kind)?;
        match self.source {
            Source::Audit(samples) => {
                let mut samples = shown.audit.iter().flat_map(samples);
                samples.try_for_each(|sample| self.encode_sample(&mut encoder, None, sample))
            }
            Source::Process(samples) => {
                samples().into_iter().try_for_each(|sample| self.encode_sample(&mut encoder, None, sample))
            }
            Source::Configuration(samples) => {
                let mut samples = shown.configuration.iter().flat_map(samples);
                samples.try_for_each(|sample| self.encode_sample(&mut encoder, None, sample))
            }
            Source::Provider(samples) => providers.iter().try_for_each(|provider| {
                let mut samples = samples(provider).into_iter();
                samples.try_for_each(|sample| self.encode_sample(&mut encoder, Some(provider.name()), sample))
            }),
        }
    }

    fn encode_sample(
        &self,
        encoder: &mut MetricEncoder,
        provider: Option<&str>,
        (values, value): Sample,
    ) -> fmt::Result {
        let provider = provider.map(|name| ("provider", name));
        let own = self.labels.iter().copied().zip(values.iter().map(String::as_str));
        let labels: Vec<(&str, &str)> = provider.into_iter().chain(own).collect();
        if let Value::Labels = value {
            return encoder.encode_info(&labels);
        }
        let mut encoder = encoder.encode_family(&labels)?;
        match (value, self.kind) {
            (Value::Whole(count), Kind::Counter) => {
                encoder.encode_counter::<NoLabelSet, _, f64>(&count, None)
            }
            (Value::Whole(number), _) => encoder.encode_gauge(&number),
            (Value::Seconds(seconds), _) => encoder.encode_gauge(&seconds),
            (Value::Latencies(Latencies { sum, buckets }), _) => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            }
            (Value::Labels, _) => Ok(()),
        }
    }
}

/// The text that Prometheus reads, of type [`CONTENT_TYPE`].
///
/// # Errors
/// None that is known: it writes to memory.
pub fn text(shown: Arc<Shown>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { providers: shown.providers(), shown }));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scrape {
    providers: Vec<Arc<Provider>>,
    shown: Arc<Shown>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        METRICS.iter().try_for_each(|metric| metric.encode(&mut encoder, self))
    }
}

fn one(value: Value) -> Vec<Sample> {
    vec![(Vec::new(), value)]
}

fn writing(provider: &Provider) -> Option<Arc<crate::provider::WriteKek>> {
    provider.standing().writes().cloned()
}

fn by_key(provider: &Provider, value: impl Fn(&Sighting) -> Option<Value>) -> Vec<Sample> {
    let snapshot = provider.snapshot();
    let keys = snapshot.root_keys.iter();
    keys.filter_map(|key| Some((vec![key.name.clone()], value(key)?))).collect()
}

fn counted(provider: &Provider, count: impl Fn(Counts) -> u64) -> Vec<Sample> {
    by_key(provider, |key| Some(Value::Whole(count(key.key.condition().counts))))
}

/// Outcomes that never occurred are left out, but for `ok`.
fn of_sealed_cache(provider: &Provider, number: impl Fn(&SealedCounts) -> u64) -> Vec<Sample> {
    provider.sealed_counts().iter().flat_map(|sealed| one(Value::Whole(number(sealed)))).collect()
}

fn by_class(provider: &Provider, outcomes: impl Fn(&Sighting) -> &Outcomes) -> Vec<Sample> {
    let snapshot = provider.snapshot();
    let mut samples = Vec::new();
    for key in &snapshot.root_keys {
        let counts = OUTCOMES.into_iter().zip(outcomes(key).counts());
        for (class, count) in counts.filter(|(class, count)| *count > 0 || *class == OUTCOMES[0]) {
            samples.push((vec![key.name.clone(), class.into()], Value::Whole(count)));
        }
    }
    samples
}
