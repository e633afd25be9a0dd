//! Spellings of places inside, none of which may be kept; and the networks, address by address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;

use super::{BadNetwork, BadTarget, Guard, MAX_URL_BYTES};

/// URLs that lead inside, or might, as clients and parsers spell them.
const INSIDE: &[&str] = &[
    // Loopback: dotted, short, decimal, octal, hexadecimal, mixed.
    "https://127.0.0.1/",
    "https://127.0.0.1",
    "https://127.0.0.1:443/",
    "https://127.0.0.1:8443/",
    "https://127.0.0.1./",
    "https://127.0.0.2/",
    "https://127.255.255.254/",
    "https://127.1/",
    "https://127.1./",
    "https://127.0.1/",
    "https://127.65535/",
    "https://2130706433/",
    "https://2130706433./",
    "https://0x7f000001/",
    "https://0X7F000001/",
    "https://0x0000007f000001/",
    "https://0x7f.1/",
    "https://0x7f.0.0.1/",
    "https://0x7f.0x0.0x0.0x1/",
    "https://0x7F.0.0x0.01/",
    "https://0x7f.0x000001/",
    "https://017700000001/",
    "https://0177.1/",
    "https://0177.0.0.1/",
    "https://0177.00.00.01/",
    "https://00000177.0.0.01/",
    "https://0177.0x0.0.1/",
    "https://127.0x0.00.1/",
    "https://127.00000000000000000001/",
    // Characters that become digits, dots or letters.
    "https://①②⑦.⓪.⓪.①/",
    "https://１２７.０.０.１/",
    "https://127。0。0。1/",
    "https://127．0．0．1/",
    "https://127｡0｡0｡1/",
    "https://%31%32%37.0.0.1/",
    "https://127%2e0%2e0%2e1/",
    "https://127.0.0.%31/",
    "https://0%787f.1/",
    "https://12\u{ad}7.0.0.1/",
    "https://127.0.0\u{200b}.1/",
    // Slashes, capitals, what follows.
    "https:127.0.0.1",
    "https:/127.0.0.1/",
    "https:///127.0.0.1/",
    "https:\\\\127.0.0.1\\",
    "https:/\\127.0.0.1/",
    "HTTPS://127.0.0.1/",
    "hTtPs://127.0.0.1/",
    "https://127.0.0.1\\@example.com/",
    "https://127.0.0.1/@example.com",
    "https://127.0.0.1?@example.com",
    "https://127.0.0.1#@example.com",
    "https://127.0.0.1:443?x=https://example.com",
    "https://127.0.0.1/hook#fragment",
    // Somebody before the host.
    "https://example.com@127.0.0.1/",
    "https://example.com:443@127.0.0.1/",
    "https://user:secret@example.com/",
    "https://user@example.com/",
    "https://:secret@example.com/",
    "https://127.0.0.1@example.com/",
    "https://example.com%40127.0.0.1/",
    // Spaces and control characters, which parsers drop.
    " https://127.0.0.1/",
    "https://127.0.0.1/ ",
    "https://127.0.\t0.1/",
    "https://127.0.\n0.1/",
    "ht\ntps://127.0.0.1/",
    "https://example.com/\r\nhost: 127.0.0.1",
    "https://example.com/\0",
    "https://127.0.0.1\u{a0}/",
    // This host.
    "https://0/",
    "https://0.0.0.0/",
    "https://0x0/",
    "https://00/",
    "https://0.1/",
    // Private networks, links, carriers, benchmarks, what is reserved.
    "https://10.0.0.1/",
    "https://10.1/",
    "https://167772161/",
    "https://0xa000001/",
    "https://012.0.0.1/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://2886729729/",
    "https://192.168.0.1/",
    "https://192.168.1/",
    "https://0xc0a80001/",
    "https://0300.0250.0.1/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://192.0.0.192/",
    "https://198.18.0.1/",
    "https://192.0.2.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://192.88.99.1/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://4294967295/",
    // The metadata of clouds.
    "https://169.254.169.254/latest/meta-data/",
    "https://169.254.170.2/v2/credentials",
    "https://2852039166/",
    "https://0xa9fea9fe/",
    "https://0251.0376.0251.0376/",
    "https://0xa9.254.0251.254/",
    "https://169.254.43518/",
    "https://168.63.129.16/machine",
    "https://0xa83f8110/",
    "https://[fd00:ec2::254]/latest/meta-data/",
    "https://metadata.google.internal/computeMetadata/v1/",
    "https://METADATA.GOOGLE.INTERNAL/",
    "https://metadata.google.internal./",
    // IPv6.
    "https://[::1]/",
    "https://[::1]:8443/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[0000:0000:0000:0000:0000:0000:0000:0001]/",
    "https://[::0.0.0.1]/",
    "https://[::]/",
    "https://[0::0]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::FFFF:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[0:0:0:0:0:ffff:7f00:0001]/",
    "https://[::ffff:0:0]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[::127.0.0.1]/",
    "https://[::7f00:1]/",
    "https://[::10.0.0.1]/",
    "https://[::ffff:0:127.0.0.1]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[64:ff9b:1::10.0.0.1]/",
    "https://[2002:7f00:1::]/",
    "https://[2002:a9fe:a9fe::1]/",
    "https://[2001::1]/",
    "https://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    "https://[100::1]/",
    "https://[5f00::1]/",
    "https://[fc00::1]/",
    "https://[fdff:ffff::1]/",
    "https://[fe80::1]/",
    "https://[febf::1]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[::1%25lo]/",
    "https://[fe80::1%eth0]/",
    "https://[[::1]]/",
    "https://[127.0.0.1]/",
    "https://[localhost]/",
    "https://::1/",
    // Names.
    "https://localhost/",
    "https://localhost:8443/",
    "https://LOCALHOST/",
    "https://LocalHost./",
    "https://localhost../",
    "https://loc%61lhost/",
    "https://ｌｏｃａｌｈｏｓｔ/",
    "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "https://local\u{ad}host/",
    "https://app.localhost/",
    "https://a.b.localhost./",
    "https://printer.local/",
    "https://local/",
    "https://vault.service.internal/",
    "https://host.docker.internal/",
    "https://127.0.0.1../",
    "https://.localhost/",
    "https://example..com/",
    // Schemes and hosts that are none.
    "http://127.0.0.1/",
    "http://localhost/",
    "http://[::1]/",
    "http://example.com/",
    "http://93.184.216.34/",
    "ftp://127.0.0.1/",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "dict://127.0.0.1:11211/",
    "ldap://127.0.0.1/",
    "ws://127.0.0.1/",
    "wss://127.0.0.1/",
    "unix:/run/docker.sock",
    "data:text/plain,x",
    "javascript:alert(1)",
    "jar:https://127.0.0.1!/",
    "//127.0.0.1/",
    "/hook",
    "127.0.0.1",
    "localhost:443",
    "https://",
    "https:///",
    "https://:443/",
    "",
    // Ports.
    "https://example.com:22/",
    "https://example.com:80/",
    "https://example.com:6379/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:-1/",
    "https://93.184.216.34:8080/",
];

/// Names that only their addresses betray: kept, and refused by whoever connects.
const NAMES: &[&str] = &[
    "https://127.0.0.1.nip.io/",
    "https://10-0-0-1.sslip.io/",
    "https://localtest.me/",
    "https://lvh.me/",
    "https://metadata/",
    "https://intranet/",
    "https://localhost.localdomain/",
    "https://ip6-localhost/",
    "https://127.0.0.1.example/",
    "https://1.0.0.127.in-addr.arpa/",
    "https://spoofed.burpcollaborator.net/",
];

/// The networks that webhooks do not reach, as they were asked for.
const BLOCKED: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "::1/128",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2001::/32",
    "2001:db8::/32",
    "2002::/16",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// Public addresses; most are next to a network that is not.
const PUBLIC: &[&str] = &[
    "1.0.0.0",
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "168.63.129.15",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.0.3.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "::8.8.8.8",
    "2001:200::",
    "2001:4860:4860::8888",
    "2003::1",
    "2606:4700:4700::1111",
    "3ffe:ffff::1",
];

#[test]
fn no_spelling_of_a_place_inside_is_kept() {
    assert!(INSIDE.len() + NAMES.len() >= 120);
    let guard = Guard::default();
    let kept: Vec<_> = INSIDE.iter().filter_map(|text| guard.check_url(text).ok().map(|url| (text, url))).collect();
    assert!(kept.is_empty(), "{kept:#?}");
    for text in NAMES {
        let url = guard.check_url(text).unwrap();
        assert!(url.domain().is_some(), "{text} needs the look at its addresses, {url} gets none");
    }
}

#[test]
fn public_addresses_are_kept_normalised_and_without_a_fragment() {
    let kept = [
        ("https://example.com/hook?a=b#c", "https://example.com/hook?a=b"),
        ("https://EXAMPLE.com.:443", "https://example.com./"),
        ("https://example.com:8443/x", "https://example.com:8443/x"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://93.184.216.34/", "https://93.184.216.34/"),
        ("https://[2606:4700:4700::1111]:8443/", "https://[2606:4700:4700::1111]:8443/"),
        ("https://0x08080808/", "https://8.8.8.8/"),
        ("https://localhost.example.com/", "https://localhost.example.com/"),
        ("https://internal.example.com/", "https://internal.example.com/"),
    ];
    for (text, expected) in kept {
        assert_eq!(Guard::default().check_url(text).as_ref().map(url::Url::as_str), Ok(expected), "{text}");
    }
}

#[test]
fn an_allowed_network_opens_itself_and_nothing_else() {
    let guard = Guard::allowing(&["10.1.0.0/16", "fd00::/8", "192.168.7.9"]).unwrap();
    for text in [
        "https://10.1.2.3/",
        "http://10.1.2.3/",
        "http://10.1.2.3:9000/hook",
        "http://0xa010203:9000/hook",
        "http://[::ffff:10.1.2.3]:9000/",
        "http://[fd12::1]:80/",
        "http://192.168.7.9/",
        "https://hooks.example.com:9000/",
    ] {
        assert!(guard.check_url(text).is_ok(), "{text}: {:?}", guard.check_url(text));
    }
    for (text, expected) in [
        ("https://10.2.0.1/", BadTarget::InternalAddress([10, 2, 0, 1].into())),
        ("http://192.168.7.8/", BadTarget::InternalAddress([192, 168, 7, 8].into())),
        ("http://127.0.0.1/", BadTarget::InternalAddress(Ipv4Addr::LOCALHOST.into())),
        ("http://[::1]/", BadTarget::InternalAddress(Ipv6Addr::LOCALHOST.into())),
        ("http://localhost/", BadTarget::InternalName("localhost".to_owned())),
        ("http://hooks.example.com/", BadTarget::NotHttps),
        ("http://8.8.8.8/", BadTarget::NotHttps),
        ("https://8.8.8.8:9000/", BadTarget::Port),
        ("http://10.1.2.3:0/", BadTarget::Port),
        ("https://hooks.example.com:0/", BadTarget::Port),
        ("https://user@10.1.2.3/", BadTarget::UserInfo),
    ] {
        assert_eq!(guard.check_url(text), Err(expected), "{text}");
    }
}

#[test]
fn localhost_is_allowed_with_its_address() {
    let guard = Guard::allowing(&["127.0.0.0/8"]).unwrap();
    for text in ["http://localhost:8080/", "https://localhost/", "http://LOCALHOST.:1/", "http://127.0.0.1:8080/"] {
        assert!(guard.check_url(text).is_ok(), "{text}");
    }
    for text in ["http://app.localhost/", "https://app.localhost/", "https://a.internal/", "http://[::1]/"] {
        assert!(guard.check_url(text).is_err(), "{text}");
    }
}

#[test]
fn addresses_end_at_2048_bytes_as_written_and_as_kept() {
    let with = |path: String| format!("https://example.com/{path}");
    let room = MAX_URL_BYTES - with(String::new()).len();
    let guard = Guard::default();
    assert!(guard.check_url(&with("a".repeat(room))).is_ok());
    assert_eq!(guard.check_url(&with("a".repeat(room + 1))), Err(BadTarget::TooLong));
    assert_eq!(guard.check_url(&with("é".repeat(room / 2))), Err(BadTarget::TooLong));
}

#[test]
fn networks_are_read_or_refused_with_a_reason() {
    assert_eq!(Guard::allowing::<&str>(&[]), Ok(Guard::default()));
    for text in ["", "ten", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/8/8", "example.com", "*"] {
        let error = Guard::allowing(&["10.0.0.0/8", text]).unwrap_err();
        assert_eq!(error, BadNetwork::Unreadable(text.to_owned()));
    }
    let error = Guard::allowing(&["10.1.2.3/8"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`10.1.2.3/8` has bits set beyond its prefix; write `10.0.0.0/8` if all of it is meant"
    );
}

#[test]
fn public_addresses_pass() {
    for text in PUBLIC {
        let address: IpAddr = text.parse().unwrap();
        assert_eq!(Guard::default().check_address(address), Ok(()), "{text}");
    }
}

#[test]
fn refusals_name_the_setting() {
    let guard = Guard::default();
    for text in ["https://10.0.0.1/", "https://localhost/", "http://example.com/", "https://example.com:22/"] {
        let error = guard.check_url(text).unwrap_err().to_string();
        assert!(error.contains("`webhooks.allowed_networks`"), "{error}");
    }
}

/// The address of `network` whose other bits are those of `bits`.
fn address_in(network: IpNet, bits: u128) -> IpAddr {
    match network {
        IpNet::V4(v4) => {
            let low = u32::try_from(bits & u128::from(u32::MAX)).expect("32 bits");
            Ipv4Addr::from(u32::from(v4.network()) | (low & u32::from(v4.hostmask()))).into()
        }
        IpNet::V6(v6) => Ipv6Addr::from(u128::from(v6.network()) | (bits & u128::from(v6.hostmask()))).into(),
    }
}

proptest! {
    #[test]
    fn every_address_of_a_blocked_network_is_refused_unless_allowed(nth in 0..BLOCKED.len(), bits in any::<u128>()) {
        let address = address_in(BLOCKED[nth].parse().unwrap(), bits);
        let allowing = Guard::allowing(&[BLOCKED[nth]]).unwrap();
        let url = match address {
            IpAddr::V4(v4) => format!("https://{v4}/"),
            IpAddr::V6(v6) => format!("https://[{v6}]/"),
        };
        prop_assert_eq!(Guard::default().check_address(address), Err(BadTarget::InternalAddress(address)));
        prop_assert_eq!(Guard::default().check_url(&url), Err(BadTarget::InternalAddress(address)));
        prop_assert_eq!(allowing.check_address(address), Ok(()));
        prop_assert!(allowing.check_url(&url).is_ok());
        if let IpAddr::V4(v4) = address {
            let mapped = IpAddr::V6(v4.to_ipv6_mapped());
            prop_assert_eq!(Guard::default().check_address(mapped), Err(BadTarget::InternalAddress(mapped)));
            prop_assert_eq!(allowing.check_address(mapped), Ok(()));
        }
    }

    #[test]
    fn four_addresses_in_one_spelling_are_judged_alike(bits in any::<u32>()) {
        let v4 = Ipv4Addr::from(bits);
        let guard = Guard::default();
        let expected = guard.check_address(v4.into()).is_ok();
        prop_assert_eq!(guard.check_address(v4.to_ipv6_mapped().into()).is_ok(), expected);
        let [a, b, c, d] = v4.octets();
        for host in [
            format!("{bits}"),
            format!("{bits:#x}"),
            format!("0{bits:o}"),
            format!("{a}.{:#x}", bits & 0xff_ffff),
            format!("0{a:o}.{b:#x}.{c}.0{d:o}"),
            format!("{a}.{b}.{c}.{d}."),
            format!("[::ffff:{a}.{b}.{c}.{d}]"),
        ] {
            prop_assert_eq!(guard.check_url(&format!("https://{host}/")).is_ok(), expected, "{}", host);
        }
    }

    #[test]
    fn no_text_panics_and_what_is_kept_is_kept_again(text in "(https?://)?\\PC{0,40}") {
        let guard = Guard::allowing(&["10.0.0.0/8"]).unwrap();
        if let Ok(url) = guard.check_url(&text) {
            prop_assert_eq!(guard.check_url(url.as_str()), Ok(url));
        }
    }
}
