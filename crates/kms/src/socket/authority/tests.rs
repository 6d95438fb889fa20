#![allow(clippy::unwrap_used)]

use http::uri::Authority;
use proptest::prelude::*;

use super::*;
use crate::socket::authority::huffman::accepted;

mod client;
mod server;

use client::{Client, Form};

/// `bytes` through a filter in pieces that end at `cuts`; undecided ones come again with the next piece.
fn filtered(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut filter = AuthorityFilter::default();
    let mut out = bytes.to_vec();
    let mut from = 0;
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    for to in cuts.into_iter().chain([bytes.len()]) {
        let undecided = filter.filter(&mut out[from..to]);
        assert!(undecided <= MAX_UNDECIDED && undecided <= to - from);
        from = to - undecided;
    }
    out
}

fn whole(bytes: &[u8]) -> Vec<u8> {
    filtered(bytes, &[])
}

fn bytewise(bytes: &[u8]) -> Vec<u8> {
    filtered(bytes, &(0..bytes.len()).collect::<Vec<_>>())
}

/// What a connection is after its preface and settings: the header block of stream 1, in one frame.
fn block(fields: &str) -> Vec<u8> {
    let mut client = Client::default();
    client.headers(&hex::decode(fields.replace(' ', "")).unwrap());
    client.sent
}

#[test]
fn the_examples_of_rfc_7541_pass_untouched() {
    for block_of_rfc in [
        // C.3.1 and C.3.3: requests without Huffman coding.
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        // C.4.1 and C.4.3: with.
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        // C.2.2 and C.2.3: without indexing, never indexed.
        "040c 2f73 616d 706c 652f 7061 7468",
        "1008 7061 7373 776f 7264 0673 6563 7265 74",
    ] {
        let sent = block(block_of_rfc);
        assert_eq!(whole(&sent), sent);
        assert_eq!(bytewise(&sent), sent);
    }
}

/// `%2F` becomes `-2F`, in each form that a field can have.
#[test]
fn a_path_is_replaced_in_place() {
    // `%`, or `-`, in 6 bits, `2` in 5, `F` in 7 (appendix B).
    let (before, after) = (0b01_0101_0001_0110_0010_u32, 0b01_0110_0001_0110_0010_u32);
    let coded = |bits: u32| {
        let padded = bits << 6 | 0b11_1111;
        format!("83 86 44 81 63 41 83 {:06x}", padded)
    };
    assert_eq!(whole(&block(&coded(before))), block(&coded(after)));
    assert_eq!(bytewise(&block(&coded(before))), block(&coded(after)));
    for (before, after) in [
        // Incremental, without indexing, never indexed; the name as an entry or spelled out, coded or not.
        ("41 05 2f612f6225", "41 05 2d612d622d"),
        ("01 05 2f612f6225", "01 05 2d612d622d"),
        ("11 05 2f612f6225", "11 05 2d612d622d"),
        ("40 0a 3a617574686f72697479 03 25402f", "40 0a 3a617574686f72697479 03 2d2d2d"),
        ("40 88 b83b5339ec327d7f 03 25402f", "40 88 b83b5339ec327d7f 03 2d2d2d"),
        // After the size of a table, and after an integer of several bytes.
        ("3f e11f 41 01 2f", "3f e11f 41 01 2d"),
        ("ff 80 01 41 01 2f", "ff 80 01 41 01 2d"),
    ] {
        assert_eq!(whole(&block(before)), block(after), "{before}");
        assert_eq!(bytewise(&block(before)), block(after), "{before}");
    }
}

#[test]
fn other_headers_pass_whatever_is_in_them() {
    for fields in [
        // :path, an entry beyond ours, :authorit, :authoritz, x-authority, empty name, empty value.
        "44 05 2f612f6225",
        "7f 00 05 2f612f6225",
        "40 09 3a617574686f726974 02 2f2f",
        "40 0a 3a617574686f7269747a 02 2f2f",
        "40 88 b83b5339ec327d7e 02 2f2f",
        "40 00 02 2f2f",
        "41 00 44 02 2f2f",
        // An integer that is too long is an error of the whole block.
        "ff ffff ffff ffff 41 01 2f",
    ] {
        assert_eq!(whole(&block(fields)), block(fields), "{fields}");
    }
    let not_http2 = b"GET / HTTP/1.1\r\nhost: a%2Fb\r\n\r\n";
    assert_eq!(whole(not_http2), not_http2);
}

#[test]
fn each_coded_character_gives_way_to_one_of_its_length() {
    for byte in 0..=127u8 {
        let Some(bits) = client::code(byte) else { continue };
        let (before, after) = (
            Client::once(&[b'a', byte, b'b'], Form::Coded),
            whole(&Client::once(&[b'a', byte, b'b'], Form::Coded)),
        );
        let value = client::authorities(&after).pop().unwrap();
        let has_no_other = bits.1 == 12;
        assert_eq!(value[1] == byte, accepted(byte) || has_no_other, "{byte}");
        assert_eq!(before.len(), after.len());
        assert!(has_no_other || Authority::try_from(&value[..]).is_ok(), "{byte}");
    }
}

#[test]
fn a_character_over_two_frames_is_replaced_and_one_too_far_apart_is_let_go() {
    let mut split = Client::default();
    // "%" lies across the bytes 1 and 2 of the value.
    split.header_frames(&Client::field(b"aaa%2Fa", Form::Coded), &[4, 5], None);
    let values = client::authorities(&bytewise(&split.sent));
    assert_eq!(values, [b"aaa-2Fa".to_vec()]);

    // Empty CONTINUATION frames hold it up for ever: it passes, the next one does not.
    let mut far = Client::default();
    far.header_frames(&Client::field(b"aaa%2F%a", Form::Coded), &[4, 4, 4, 4, 4, 5], None);
    assert_eq!(client::authorities(&bytewise(&far.sent)), [b"aaa%2F-a".to_vec()]);
    assert_eq!(whole(&far.sent), bytewise(&far.sent));
}

#[test]
fn a_block_that_is_broken_off_or_malformed_leaves_the_next_one_well() {
    for broken in [
        "000001 0100 0000 0001 41",     // HEADERS without END_HEADERS, then HEADERS
        "000001 010c 0000 0001 ff",     // padding longer than the frame
        "000000 010c 0000 0001",        // no room for a pad length
        "000003 0124 0000 0001 000000", // no room for a priority
        "000002 0904 0000 0001 4101",   // CONTINUATION of nothing
        "000008 0600 0000 0000 4102 2f2f 4102 2f2f", // PING
    ] {
        let broken = hex::decode(broken.replace(' ', "")).unwrap();
        let mut client = Client::default();
        client.sent.extend(&broken);
        // A block that is not complete swallows the frame after it.
        client.frame(6, 0, 0, &[0; 8]);
        let untouched = client.sent.len();
        client.headers(&Client::field(b"%2F", Form::Plain));
        let out = whole(&client.sent);
        assert_eq!(out[..untouched], client.sent[..untouched]);
        assert_eq!(client::authorities(&out).pop().unwrap(), b"-2F", "{broken:x?}");
    }
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Plain), Just(Form::Coded)]
}

/// A connection with some requests and other frames, and the authorities that it sends literally. No frame is so
/// small and no padding so long that a character is let go.
fn connection() -> impl Strategy<Value = (Vec<u8>, Vec<Vec<u8>>)> {
    let path = "[ -~]{1,60}"
        .prop_map(|path| path.replace(['#', '>', '<', '\\', '^', '`', '{', '}'], "%").into_bytes());
    let request = (path, form(), prop::collection::vec(0usize..80, 0..3), prop::option::of(0u8..7));
    prop::collection::vec(request, 1..6).prop_map(|requests| {
        let mut client = Client::default();
        let mut paths = Vec::new();
        for (path, form, splits, padding) in requests {
            let mut fields = vec![0x83, 0x86];
            fields.extend(Client::field(&path, form));
            fields.extend(Client::other_field(form));
            client.header_frames(&fields, &splits, padding);
            client.frame(0, 1, 1, &path);
            paths.push(path);
        }
        (client.sent, paths)
    })
}

proptest! {
    #[test]
    fn no_cut_changes_what_comes_out((sent, _) in connection(), cuts in prop::collection::vec(any::<usize>(), 0..40)) {
        prop_assert_eq!(filtered(&sent, &cuts), whole(&sent));
        prop_assert_eq!(bytewise(&sent), whole(&sent));
    }

    #[test]
    fn each_authority_becomes_acceptable_and_keeps_its_length((sent, paths) in connection()) {
        let out = whole(&sent);
        prop_assert_eq!(out.len(), sent.len());
        let values = client::authorities(&out);
        prop_assert_eq!(values.len(), paths.len());
        for (value, path) in values.iter().zip(&paths) {
            prop_assert_eq!(value.len(), path.len());
            prop_assert!(Authority::try_from(&value[..]).is_ok(), "{:?}", String::from_utf8_lossy(value));
            for (now, before) in value.iter().zip(path) {
                prop_assert!(now == before || !accepted(*before));
            }
        }
        // Once is enough, and nothing but authorities was touched.
        prop_assert_eq!(whole(&out), out);
    }

    #[test]
    fn what_is_accepted_passes_byte_for_byte(name in "[a-zA-Z0-9._~!$&'()*+,;=-]{1,60}", form in form()) {
        let sent = Client::once(name.as_bytes(), form);
        prop_assert_eq!(whole(&sent), sent);
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(any::<usize>(), 0..9)) {
        let after_preface = [PREFACE, &bytes[..]].concat();
        let out = whole(&after_preface);
        prop_assert_eq!(out.len(), after_preface.len());
        prop_assert_eq!(filtered(&after_preface, &cuts), out);
    }
}
