package wire

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// What foldgate writes into a header as a client it reads back as a server, and
// net/http carries it unchanged.
func TestHeaderRoundTrip(t *testing.T) {
	pieces := []string{"", " ", "a", "Z", "~", "\t", "\r\n", "\x00", "\x7f", "é", "\xff", "=", "?", "=?base64?", "?=", "=?BASE64?", "aGk="}
	for range 20_000 {
		var b strings.Builder
		for range rand.IntN(6) {
			b.WriteString(pieces[rand.IntN(len(pieces))])
		}
		checkHeader(t, b.String())
	}
}

// FuzzHeader: every text survives its way through a header.
func FuzzHeader(f *testing.F) {
	f.Add("file:///ä")
	f.Add("=?base64?=")
	f.Fuzz(checkHeader)
}

func checkHeader(t *testing.T, text string) {
	value := EncodeHeader(text)
	if got, ok := DecodeHeader(value); !ok || got != text {
		t.Fatalf("DecodeHeader(EncodeHeader(%q)) = %q, %v", text, got, ok)
	}
	var wire strings.Builder
	if err := (http.Header{HeaderName: {value}}).Write(&wire); err != nil || wire.String() != HeaderName+": "+value+"\r\n" {
		t.Fatalf("the value %q of %q is written as %q, %v", value, text, wire.String(), err)
	}
}
