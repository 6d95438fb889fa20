use std::future::poll_fn;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS, with which a client begins.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const SECRET: u8 = 0xa5;

/// As the library reads: into one buffer, from its start again once it is full.
struct Buffer {
    bytes: Vec<u8>,
    at: usize,
    /// All that was read.
    read: Vec<u8>,
}

impl Buffer {
    fn new(len: usize) -> Self {
        Self { bytes: vec![SECRET; len], at: 0, read: Vec::new() }
    }

    /// Reads until there is no more for now.
    async fn read_now(&mut self, stream: &mut Scrubbed<DuplexStream>) {
        self.read_until(QUIET / 4, stream).await;
    }

    /// Reads until there is no more, however long the connection was quiet.
    async fn read_all(&mut self, stream: &mut Scrubbed<DuplexStream>) {
        self.read_until(QUIET * 10, stream).await;
    }

    async fn read_until(&mut self, nothing_for: Duration, stream: &mut Scrubbed<DuplexStream>) {
        while let Ok(read) = timeout(nothing_for, self.read_some(stream)).await {
            assert!(read > 0, "a stream must not seem to end");
        }
    }

    async fn read_some(&mut self, stream: &mut Scrubbed<DuplexStream>) -> usize {
        if self.at == self.bytes.len() {
            self.at = 0;
        }
        let mut buf = ReadBuf::new(&mut self.bytes[self.at..]);
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buf)).await.unwrap();
        let read = buf.filled().to_vec();
        self.at += read.len();
        self.read.extend(&read);
        read.len()
    }

    /// Frames after the preface: type, flags, payload.
    fn frames(&self) -> Vec<(u8, u8, Vec<u8>)> {
        let mut rest = self.read.strip_prefix(PREFACE).unwrap();
        let mut frames = Vec::new();
        while let Some((header, after)) = rest.split_first_chunk::<9>() {
            let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            frames.push((header[3], header[4], after[..len].to_vec()));
            rest = &after[len..];
        }
        assert!(rest.is_empty(), "a frame is not whole");
        frames
    }
}

fn connection(capacity: usize) -> (DuplexStream, Scrubbed<DuplexStream>) {
    let (client, server) = duplex(capacity);
    (client, Scrubbed::new(AnyAuthority::new(server)))
}

fn data(payload: &[u8]) -> Vec<u8> {
    let mut frame = header(payload.len(), 0, 0).to_vec();
    frame.extend(payload);
    frame
}

fn kinds(buffer: &Buffer) -> Vec<u8> {
    buffer.frames().iter().map(|(kind, ..)| *kind).collect()
}

/// Buffers of every length, also some that no frame fills, and every place in them where a frame may end.
#[tokio::test(start_paused = true)]
async fn a_quiet_connection_writes_over_all_that_it_read() {
    for len in (20..60).chain([256, 8192, 16 * 1024 + 9, 20_000, 50_000]) {
        for payload in 0..12 {
            let (mut client, mut stream) = connection(1 << 16);
            let mut buffer = Buffer::new(len);
            client.write_all(&[PREFACE, &SETTINGS, &data(&vec![SECRET; payload])].concat()).await.unwrap();
            buffer.read_now(&mut stream).await;
            assert_eq!(kinds(&buffer), [4, 0]);
            buffer.read_all(&mut stream).await;
            let frames = buffer.frames();
            assert!(frames.len() > 2);
            for (kind, _, payload) in &frames[2..] {
                assert_eq!(*kind, NOTHING);
                assert!(payload.iter().all(|byte| *byte == 0) && payload.len() <= MAX_PAYLOAD_LEN);
            }
            assert!(!buffer.bytes.contains(&SECRET), "a buffer of {len}, {payload} bytes of data");
            // It is wiped once, and then the client is heard again.
            let read = buffer.read.len();
            buffer.read_all(&mut stream).await;
            assert_eq!(buffer.read.len(), read);
            client.write_all(&data(b"again")).await.unwrap();
            buffer.read_now(&mut stream).await;
            assert_eq!(buffer.frames().last().unwrap().2, b"again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_is_left_alone() {
    let (mut client, mut stream) = connection(1 << 16);
    let mut buffer = Buffer::new(4096);
    client.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
    for _ in 0..200 {
        client.write_all(&data(b"busy")).await.unwrap();
        buffer.read_now(&mut stream).await;
    }
    assert!(kinds(&buffer)[1..].iter().all(|kind| *kind == 0));
    buffer.read_all(&mut stream).await;
    assert_eq!(kinds(&buffer).last(), Some(&NOTHING));
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_before_a_client_has_begun_or_amid_its_frames() {
    let frame = data(b"whole");
    let said = [PREFACE, &SETTINGS, &frame].concat();
    let begun = PREFACE.len() + SETTINGS.len();
    for end in 1..said.len() {
        let (mut client, mut stream) = connection(1 << 16);
        let mut buffer = Buffer::new(4096);
        client.write_all(&said[..end]).await.unwrap();
        buffer.read_now(&mut stream).await;
        buffer.read_all(&mut stream).await;
        let more = buffer.read.len() > end;
        assert_eq!(more, end == begun, "{end}");
        client.write_all(&said[end..]).await.unwrap();
        buffer.read_all(&mut stream).await;
        let kinds: Vec<_> = kinds(&buffer).into_iter().filter(|kind| *kind != NOTHING).collect();
        assert_eq!(kinds, [4, 0]);
    }
}

/// What the library writes, buffer by buffer, and how much the client takes at once.
async fn written_to_client(buffers: &[Vec<u8>], flushed: &[usize], capacity: usize) -> (Vec<u8>, Vec<usize>) {
    let (client, mut stream) = connection(capacity);
    let (mut from, mut to) = tokio::io::split(client);
    to.write_all(&[PREFACE, &SETTINGS].concat()).await.unwrap();
    let reading = tokio::spawn(async move {
        let mut received = Vec::new();
        from.read_to_end(&mut received).await.unwrap();
        received
    });
    let mut buffer = Buffer::new(1 << 16);
    buffer.read_all(&mut stream).await;
    let mut reaches = Vec::new();
    for (number, bytes) in buffers.iter().enumerate() {
        stream.write_all(bytes).await.unwrap();
        if flushed.contains(&number) {
            stream.flush().await.unwrap();
            let before = buffer.frames().len();
            buffer.read_all(&mut stream).await;
            let pings: Vec<_> =
                buffer.frames()[before..].iter().filter(|(kind, ..)| *kind == PING).cloned().collect();
            assert!(pings.iter().all(|(_, flags, mark)| *flags == 0 && *mark == stream.mark));
            reaches.push(pings.len() * PING_LEN);
            // Something of others comes amid the answers, and the last of all.
            let answer = stream.ping(ACK);
            let (some, rest) = (pings.len() / 2, pings.len() - pings.len() / 2);
            let answers =
                [&answer.repeat(some), &data(b"between")[..], &answer.repeat(rest), &data(b"last")].concat();
            stream.write_all(&answers).await.unwrap();
            assert_eq!(stream.answers, 0);
        }
    }
    drop(stream);
    drop(to);
    (reading.await.unwrap(), reaches)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A client gets what the library wrote for it, and no answer that it did not ask for; pings reach as far as what
    /// was written.
    #[test]
    fn a_client_sees_nothing_of_it(
        buffers in proptest::collection::vec(proptest::collection::vec(1u8..255, 1..300), 1..6),
        capacity in 64usize..400,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let frames: Vec<_> = buffers.iter().map(|payload| data(payload)).collect();
        let all: Vec<_> = (0..frames.len()).collect();
        let (received, reaches) = runtime.block_on(written_to_client(&frames, &all, capacity));
        let expected: Vec<u8> = frames.iter().flat_map(|frame| {
            [&frame[..], &data(b"between"), &data(b"last")].concat()
        }).collect();
        prop_assert_eq!(received, expected);
        for (frame, reach) in frames.iter().zip(reaches) {
            prop_assert!(reach >= frame.len(), "{} of {}", reach, frame.len());
        }
    }
}

#[tokio::test]
async fn an_answer_that_a_client_asked_for_is_its_own() {
    let (mut client, mut stream) = connection(1 << 16);
    stream.answers = 1;
    let theirs = [&header(8, PING, ACK)[..], b"12345678"].concat();
    let bytes =
        [theirs.clone(), stream.ping(ACK).to_vec(), theirs.clone(), stream.ping(ACK).to_vec()].concat();
    stream.write_all(&bytes).await.unwrap();
    let last = stream.ping(ACK).to_vec();
    drop(stream);
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    // One was ours; more than we asked for are not.
    assert_eq!(received, [theirs.clone(), theirs, last].concat());
}
