package publicip

import (
	"net/netip"
	"net/url"
	"testing"
)

func TestIs(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "2606:4700::1111": true, "::ffff:1.1.1.1": true,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "127.0.0.1": false, "0.0.0.0": false, "0.1.2.3": false, "100.64.0.1": false,
		"192.0.0.8": false, "198.18.0.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false, "::1": false, "::": false, "fe80::1": false, "fe80::1%eth0": false,
		"fc00::1": false, "fd12::1": false, "ff02::1": false, "::ffff:10.0.0.1": false, "::ffff:127.0.0.1": false, "64:ff9b::a00:1": false, "2002:a00:1::": false, "2001::1": false,
		"fec0::1": false, "feff::1": false, "::a00:1": false, "::101:101": false,
	} {
		if got := Is(netip.MustParseAddr(text)); got != want {
			t.Errorf("Is(%s) = %v", text, got)
		}
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "localhost.": false, "localhost.example": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "127.0.0.1:80": false, "[::1]": false,
	} {
		if got := Loopback(host); got != want {
			t.Errorf("Loopback(%q) = %v", host, got)
		}
	}
}

func TestConfidential(t *testing.T) {
	for text, want := range map[string]bool{
		"https://example.com": true, "http://127.0.0.1:8080/x": true, "http://[::1]/": true, "HTTPS://example.com": true,
		"http://example.com": false, "http://localhost.example": false, "ftp://127.0.0.1": false, "//127.0.0.1": false, "": false,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := Confidential(u); got != want {
			t.Errorf("Confidential(%q) = %v", text, got)
		}
	}
}
