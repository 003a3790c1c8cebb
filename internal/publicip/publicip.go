// Package publicip tells addresses of public servers from those inside a network. foldgate fetches URLs
// that others name, which must not lead into the operator's network:
//
//	if !publicip.Is(addr) { return errInside }
package publicip

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// special are the ranges beside the ones that netip knows in which no public server is.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/32"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("::/96"),
}

// Is reports whether a public server can have an address.
func Is(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// HostName returns the name or the address in the host of a URL, a Host header or a network address: without the
// port, and without the brackets of IPv6.
func HostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// Loopback reports whether host, a name or an address, is this machine.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// Confidential reports whether nobody on a network can read the requests to a URL: it is https, or http on a
// loopback address.
func Confidential(u *url.URL) bool {
	return u.Scheme == "https" || u.Scheme == "http" && Loopback(u.Hostname())
}
