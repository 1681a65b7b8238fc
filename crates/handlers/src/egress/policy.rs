//! Hosts and addresses that tasks may connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A pattern for hosts: a host, all subdomains of a domain (`*.example.com`), or any host (`*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        Self(normalised(text))
    }

    pub(crate) fn matches(&self, host: &str) -> bool {
        let host = normalised(host);
        match self.0.strip_prefix('*') {
            Some(domain) => host.len() > domain.len() && host.ends_with(domain),
            None => host == self.0,
        }
    }
}

/// Normalises a host: lower case, without a trailing dot or the brackets of an address.
fn normalised(host: &str) -> String {
    host.trim_end_matches('.').trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase()
}

/// IPv4 networks outside the public internet: IANA's special-purpose registry, multicast and reserved ranges.
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
/// Networks within [`ROUTED_V6`] that are not public: protocol assignments, tunnels to any IPv4 address, and
/// documentation.
const SPECIAL_V6: [&str; 4] = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];
/// Globally routed part of IPv6.
const ROUTED_V6: &str = "2000::/3";
/// Prefix of addresses translated to the IPv4 address in their last bytes.
const NAT64: &str = "64:ff9b::/96";

struct Networks {
    v4: Vec<Ipv4Net>,
    v6: Vec<Ipv6Net>,
    routed: Option<Ipv6Net>,
    nat64: Option<Ipv6Net>,
}

static NETWORKS: LazyLock<Networks> = LazyLock::new(|| Networks {
    v4: SPECIAL_V4.iter().filter_map(|net| net.parse().ok()).collect(),
    v6: SPECIAL_V6.iter().filter_map(|net| net.parse().ok()).collect(),
    routed: ROUTED_V6.parse().ok(),
    nat64: NAT64.parse().ok(),
});

/// Returns whether an address is on the public internet.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match embedded_v4(address) {
        IpAddr::V4(address) => !NETWORKS.v4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => {
            NETWORKS.routed.is_some_and(|net| net.contains(&address))
                && !NETWORKS.v6.iter().any(|net| net.contains(&address))
        }
    }
}

/// Returns whether an address is in one of these networks.
pub(crate) fn is_in(address: IpAddr, networks: &[IpNet]) -> bool {
    let address = embedded_v4(address);
    networks.iter().any(|net| net.contains(&address))
}

/// Returns the IPv4 address embedded in an IPv6 address, if there is one.
fn embedded_v4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return IpAddr::V4(v4);
    }
    if NETWORKS.nat64.is_some_and(|net| net.contains(&v6)) {
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
    fn network_constants_parse() {
        let networks = &*NETWORKS;
        assert_eq!((networks.v4.len(), networks.v6.len()), (SPECIAL_V4.len(), SPECIAL_V6.len()));
        assert!(networks.routed.is_some() && networks.nat64.is_some());
    }

    #[test]
    fn public_and_special_addresses_are_distinguished() {
        for public in
            ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
        {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for special in [
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
            assert!(!is_public(special.parse().unwrap()), "{special}");
        }
    }

    #[test]
    fn pattern_matches_host_or_subdomains() {
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
        fn mapped_address_is_treated_as_its_ipv4_address(bytes: [u8; 4]) {
            let v4 = Ipv4Addr::from(bytes);
            prop_assert_eq!(is_public(v4.into()), is_public(v4.to_ipv6_mapped().into()));
            let networks = ["10.0.0.0/8".parse().unwrap()];
            prop_assert_eq!(is_in(v4.into(), &networks), bytes[0] == 10);
            prop_assert_eq!(is_in(v4.to_ipv6_mapped().into(), &networks), bytes[0] == 10);
        }

        #[test]
        fn only_globally_routed_ipv6_is_public(bytes: [u8; 16]) {
            let address = Ipv6Addr::from(bytes);
            let embeds_v4 = address.to_ipv4_mapped().is_some() || address.to_string().starts_with("64:ff9b::");
            prop_assume!(!embeds_v4);
            prop_assert!(!is_public(address.into()) || bytes[0] >> 5 == 1);
        }
    }
}
