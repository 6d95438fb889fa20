use proptest::prelude::*;

use super::*;

fn key() -> CkaId {
    "00".repeat(16).parse().unwrap()
}

fn request(number: u64, associated: Vec<u8>) -> Request {
    Request { number, ask: Ask::Wrap { wrapping: Wrapping::AesGcm, key: key(), associated } }
}

/// A frame of this header and these bytes, whatever is wrong with them.
fn framed(header: &str, bytes: &[u8]) -> Vec<u8> {
    let mut frame = (header.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(header.as_bytes());
    frame.extend_from_slice(bytes);
    [&(frame.len() as u32).to_be_bytes()[..], &frame].concat()
}

#[test]
fn a_frame_is_read_as_it_was_written() {
    let mut written = Vec::new();
    write(&mut written, &request(7, vec![1]), b"bytes").unwrap();
    let mut from = &written[..];
    let frame = read(&mut from).unwrap().unwrap();
    let (header, bytes): (Request, _) = decode(&frame).unwrap();
    assert_eq!((header.number, &bytes[..]), (7, &b"bytes"[..]));
    assert!(read(&mut from).unwrap().is_none());
}

#[test]
fn what_is_no_frame_is_refused() {
    for bad in [&[0, 0, 0, 3][..], &[0xff; 4], &[0, 0, 0, 8, 0, 0], &[0, 0, 0x40, 1]] {
        assert!(read(&mut &bad[..]).is_err(), "{bad:?}");
    }
    for bad in [&[][..], &[0, 0, 0], &[0, 0, 0, 9, b'{', b'}'], &[0, 0, 0, 2, b'{', b'}'], &[0xff; 8]] {
        assert!(decode::<Request>(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_frame_has_its_longest_length_and_no_more() {
    let header = serde_json::to_vec(&request(7, vec![])).unwrap().len();
    let longest = encode(&request(7, vec![]), &vec![0; MAX - 4 - header]).unwrap();
    assert_eq!(heard(&longest), [longest.to_vec()]);
    assert!(encode(&request(7, vec![]), &vec![0; MAX - 4 - header + 1]).is_err());
}

#[test]
fn headers_that_make_no_sense_are_refused() {
    let id = key().to_string();
    let good = format!(r#"{{"number":1,"ask":{{"Sign":{{"key":"{id}","signing":"EcdsaP256"}}}}}}"#);
    assert_eq!(heard(&framed(&good, b"")).len(), 1);
    for (from, to) in [
        ("EcdsaP256", "EcdsaP512"),
        ("Sign", "Login"),
        (r#""number":1"#, r#""number":-1"#),
        (r#""number":1"#, r#""number":18446744073709551616"#),
        (r#""number":1"#, r#""number":1,"number":2"#),
        (&id, "00"),
        (&id, &id.replace("00", "AB")),
        (&id, &"00".repeat(65)),
        ("}}}", "}}"),
        ("}}}", "}}}}"),
        ("}}}", "}}},"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        assert_eq!(heard(&framed(&bad, b"")), Vec::<Vec<u8>>::new(), "{bad}");
    }
    // What nests without end.
    assert_eq!(heard(&framed(&"[".repeat(MAX - 100), b"")), Vec::<Vec<u8>>::new());
}

proptest! {
    #[test]
    fn any_request_comes_back_and_a_torn_one_does_not(
        number: u64,
        associated in proptest::collection::vec(any::<u8>(), 0..100),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        cut: prop::sample::Index,
    ) {
        let frame = encode(&request(number, associated), &bytes).unwrap().to_vec();
        let two = [&frame[..], &frame].concat();
        prop_assert_eq!(heard(&two), vec![frame.clone(), frame.clone()]);
        let torn = cut.index(frame.len());
        prop_assert!(heard(&frame[..torn]).is_empty());
        prop_assert_eq!(read(&mut &frame[..torn]).is_err(), torn >= 4, "the end is between frames only");
        prop_assert_eq!(heard(&two[..frame.len() + torn]), vec![frame.clone()]);
    }

    #[test]
    fn any_bytes_are_heard_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(heard(&bytes).is_empty());
    }

    #[test]
    fn a_byte_that_is_another_one_is_refused_or_means_something_that_can_be_said(
        bytes in proptest::collection::vec(any::<u8>(), 0..50),
        place: prop::sample::Index,
        other: u8,
    ) {
        let mut frame = encode(&request(5, vec![1, 2, 3]), &bytes).unwrap().to_vec();
        let place = place.index(frame.len());
        frame[place] = other;
        let frames = heard(&frame);
        prop_assert_eq!(heard(&frames.concat()), frames);
    }
}
