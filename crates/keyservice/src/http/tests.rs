use super::*;

#[test]
fn an_address_is_protected_or_of_this_machine() {
    for (text, shown, protected) in [
        ("https://bao.example:8200", "https://bao.example:8200", true),
        ("https://bao.example/", "https://bao.example", true),
        ("https://proxy.example/bao/", "https://proxy.example/bao", true),
        ("https://[2001:db8::1]:8200", "https://[2001:db8::1]:8200", true),
        ("http://127.0.0.1:8200", "http://127.0.0.1:8200", false),
        ("http://127.9.0.1:8200", "http://127.9.0.1:8200", false),
        ("http://[::1]:8200", "http://[::1]:8200", false),
        ("http://localhost:8200", "http://localhost:8200", false),
    ] {
        let address: Address = text.parse().unwrap();
        assert_eq!((address.to_string().as_str(), address.is_protected()), (shown, protected));
    }
    for bad in [
        "",
        "bao.example:8200",
        "http://bao.example",
        "http://10.0.0.1",
        "http://localhost.example",
        "http://127.0.0.1.example",
        "http://[::ffff:10.0.0.1]",
        "unix:///run/bao",
        "https://",
        "https://bao.example/?a=b",
        "https://bao.example/#a",
        "https://user@bao.example",
        "https://user:hunter7@bao.example",
    ] {
        let error = bad.parse::<Address>().unwrap_err();
        assert!(!error.to_string().contains("hunter7"), "{error}");
    }
}

#[test]
fn a_path_is_below_the_address_and_can_not_leave_it() {
    let address: Address = "https://proxy.example:8200/bao/".parse().unwrap();
    let url = |name, path: &[&str]| address.join(name, path).to_string();
    assert_eq!(
        url(None, &["v1", "a b", "c/d", "e?f#g%"]),
        "https://proxy.example:8200/bao/v1/a%20b/c%2Fd/e%3Ff%23g%25"
    );
    assert_eq!(url(Some("bao.internal"), &["v1"]), "https://bao.internal:8200/bao/v1");
    assert_eq!(url(None, &["v1", "..", "x"]), "https://proxy.example:8200/bao/v1/x");
    let here: Address = "http://127.0.0.1:1".parse().unwrap();
    assert_eq!(here.join(Some("bao.internal"), &["v1"]).to_string(), "http://127.0.0.1:1/v1");
}

#[test]
fn only_the_same_scheme_host_and_port_is_covered() {
    let address: Address = "https://bao.example:8200".parse().unwrap();
    assert!(address.covers("https://bao.example:8200/v1/x"));
    for other in [
        "http://bao.example:8200/",
        "https://bao.example/",
        "https://bao.example.:8200",
        "https://x@y:8200",
        "/v1",
        "",
    ] {
        assert!(!address.covers(other), "{other}");
    }
}

#[test]
fn retry_after_is_seconds_or_a_date_by_the_servers_clock() {
    let seconds = |value, date| wait(value, date).map(|wait| wait.as_secs());
    let date = "Wed, 21 Oct 2015 07:28:00 GMT";
    for (value, now, expected) in [
        ("0", None, Some(0)),
        (" 7 ", None, Some(7)),
        ("999999999", None, Some(3600)),
        ("Wed, 21 Oct 2015 07:28:09 GMT", Some(date), Some(9)),
        ("Wed, 21 Oct 2015 07:27:00 GMT", Some(date), Some(0)),
        (date, None, Some(0)),
        ("-1", None, None),
        ("soon", None, None),
        ("", None, None),
    ] {
        assert_eq!(seconds(value, now), expected, "{value}");
    }
}

/// What the client takes if the process has installed no provider: in FIPS builds one in FIPS mode.
#[test]
fn tls_is_as_the_build_says() {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    assert_eq!(provider.fips(), cfg!(feature = "fips"));
}

/// Plain HTTP behind an `https` address is told by the first byte that comes back, whatever is said.
#[tokio::test]
async fn what_speaks_no_tls_is_told_by_what_it_answers_to_a_handshake() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    for (said, no_tls) in
        [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], true), (b"SSH-2.0\r\n", true), (b"", false)]
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(said).await;
        });
        let http = Http::new(vec![address.parse().unwrap()], Tls::default());
        let call = Call { method: Method::GET, path: &["v1"], headers: HeaderMap::new(), body: None };
        let trouble = http.send(0, &call, Duration::from_secs(60)).await.err().unwrap();
        assert_eq!(trouble == Trouble::NoTls, no_tls, "{trouble:?}");
        assert!(!trouble.may_be_done() || !no_tls);
        answering.await.unwrap();
    }
}
