//! One metric of a plugin, by its admin socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The sum of all series of `name` whose labels contain `labels`.
pub(super) fn metric(socket: &Path, name: &str, labels: &str) -> anyhow::Result<f64> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let value = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (of, labelled) = series.split_once('{').unwrap_or((series, ""));
        (of == name && labelled.contains(labels)).then(|| value.parse::<f64>().ok())?
    };
    Ok(text.lines().filter_map(value).sum())
}
