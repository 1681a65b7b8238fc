//! Which hosts and addresses may be reached by what tasks ask for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A host, or all below a domain (`*.example.com`), or any (`*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self(plain(text))
    }

    pub fn matches(&self, host: &str) -> bool {
        let host = plain(host);
        match self.0.strip_prefix('*') {
            Some(domain) => host.len() > domain.len() && host.ends_with(domain),
            None => host == self.0,
        }
    }
}

/// Hosts are the same in capitals, with a dot at their end, and an address in brackets.
fn plain(host: &str) -> String {
    host.trim_end_matches('.').trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase()
}

/// What of IPv4 is not the public internet: IANA's registry of special addresses, multicast and what is reserved.
const SPECIAL_V4: [&str; 15] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
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
];
/// What of `2000::/3`, the only part of IPv6 that is routed, is not the public internet: protocols, tunnels that lead to
/// any IPv4 address, and documentation.
const SPECIAL_V6: [&str; 4] = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];
const ROUTED_V6: &str = "2000::/3";
/// Translated to the IPv4 address in its last bytes.
const NAT64: &str = "64:ff9b::/96";

struct Nets {
    v4: Vec<Ipv4Net>,
    v6: Vec<Ipv6Net>,
    routed: Option<Ipv6Net>,
    nat64: Option<Ipv6Net>,
}

static NETS: LazyLock<Nets> = LazyLock::new(|| Nets {
    v4: SPECIAL_V4.iter().filter_map(|net| net.parse().ok()).collect(),
    v6: SPECIAL_V6.iter().filter_map(|net| net.parse().ok()).collect(),
    routed: ROUTED_V6.parse().ok(),
    nat64: NAT64.parse().ok(),
});

/// On the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match unwrapped(address) {
        IpAddr::V4(address) => !NETS.v4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => {
            NETS.routed.is_some_and(|net| net.contains(&address)) && !NETS.v6.iter().any(|net| net.contains(&address))
        }
    }
}

/// In one of these networks.
pub fn is_within(address: IpAddr, nets: &[IpNet]) -> bool {
    let address = unwrapped(address);
    nets.iter().any(|net| net.contains(&address))
}

/// The IPv4 address that an IPv6 address stands for, if it does.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return IpAddr::V4(v4);
    }
    if NETS.nat64.is_some_and(|net| net.contains(&v6)) {
        return IpAddr::V4(last_bytes(v6));
    }
    address
}

fn last_bytes(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_nets_are_read() {
        let nets = &*NETS;
        assert_eq!((nets.v4.len(), nets.v6.len()), (SPECIAL_V4.len(), SPECIAL_V6.len()));
        assert!(nets.routed.is_some() && nets.nat64.is_some());
    }

    #[test]
    fn what_is_inside_is_told_from_what_is_outside() {
        for public in ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for inside in [
            "127.0.0.1",
            "127.8.9.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2001:0:1::1",
            "fd00::1",
            "fe80::1",
            "ff02::1",
            "fec0::1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
    }

    #[test]
    fn patterns_are_hosts_or_all_below_a_domain() {
        for (pattern, host, matches) in [
            ("example.com", "EXAMPLE.com.", true),
            ("example.com", "a.example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "badexample.com", false),
            ("*.example.com", ".example.com", false),
            ("example.com", "example.com.evil.org", false),
            ("*", "anything", true),
            ("::1", "[::1]", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(host), matches, "{pattern} {host}");
        }
    }

    proptest! {
        #[test]
        fn a_mapped_address_is_judged_as_the_one_that_it_stands_for(bytes: [u8; 4]) {
            let v4 = Ipv4Addr::from(bytes);
            prop_assert_eq!(is_public(v4.into()), is_public(v4.to_ipv6_mapped().into()));
            let nets = ["10.0.0.0/8".parse().unwrap()];
            prop_assert_eq!(is_within(v4.into(), &nets), bytes[0] == 10);
            prop_assert_eq!(is_within(v4.to_ipv6_mapped().into(), &nets), bytes[0] == 10);
        }

        #[test]
        fn nothing_outside_what_is_routed_is_public(bytes: [u8; 16]) {
            let address = Ipv6Addr::from(bytes);
            let stands_for_another = address.to_ipv4_mapped().is_some() || address.to_string().starts_with("64:ff9b::");
            prop_assume!(!stands_for_another);
            prop_assert!(!is_public(address.into()) || bytes[0] >> 5 == 1);
        }
    }
}
