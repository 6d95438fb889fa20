//! Gauges, in the text format that Prometheus' node exporter reads from files (`--collector.textfile.directory`).
//!
//! The exporter takes no times, so there are none: a report that has a time has it as a gauge.
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The first line of every file, by which one is known as a report: a comment.
pub const MARK: &str = "# casemate report\n";

/// Gauges in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    gauges: Vec<Gauge>,
}

/// One gauge, with all its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    samples: Vec<(Vec<String>, u64)>,
}

impl Metrics {
    /// Adds a gauge, which has nothing to tell yet; without samples it is left out of the file.
    pub fn gauge(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> &mut Gauge {
        self.gauges.push(Gauge { name, help, labels, samples: Vec::new() });
        let last = self.gauges.len() - 1;
        &mut self.gauges[last]
    }

    /// Name, labels and meaning of each, for documentation.
    pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static str)> {
        self.gauges.iter().map(|gauge| (gauge.name, gauge.labels, gauge.help))
    }

    /// The whole file.
    pub fn text(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = MARK.to_owned();
        prometheus_text::encode(&mut text, &registry).expect("a string takes any text");
        text
    }
}

impl Gauge {
    /// Adds a sample: values of the labels, in their order.
    ///
    /// # Panics
    /// If there are not as many as there are labels.
    pub fn sample<const N: usize>(&mut self, labels: [&str; N], value: u64) {
        assert_eq!(N, self.labels.len(), "labels of {}", self.name);
        self.samples.push((labels.map(str::to_owned).into(), value));
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Gauge { name, help, labels, samples } in &self.gauges {
            if samples.is_empty() {
                continue;
            }
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (values, value) in samples {
                let labels: Vec<(&str, &str)> =
                    labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                ConstGauge::new(*value).encode(metric.encode_family(&labels.as_slice())?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_gauges() {
        let mut metrics = Metrics::default();
        metrics.gauge("casemate_a", &["file", "key"], "What it tells").sample(["a \"b\"\\\n", "k"], 3);
        metrics.gauge("casemate_empty", &[], "Nothing");
        metrics.gauge("casemate_b_seconds", &[], "Since when").sample([], 1_764_547_200);
        assert_eq!(
            metrics.text(),
            "# casemate report\n\
             # HELP casemate_a What it tells\n# TYPE casemate_a gauge\ncasemate_a{file=\"a \\\"b\\\"\\\\\\n\",key=\"k\"} 3\n\
             # HELP casemate_b_seconds Since when\n# TYPE casemate_b_seconds gauge\ncasemate_b_seconds 1764547200\n"
        );
        assert_eq!(metrics.described().count(), 3);
    }
}
