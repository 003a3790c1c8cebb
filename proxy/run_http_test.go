package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

func TestTokenOwner(t *testing.T) {
	digest := sha256.Sum256([]byte("token-of-ci-0123"))
	c := config.Config{Principals: map[string]*config.Principal{
		"alice": {Token: "token-of-alice-01"}, "ci": {TokenSHA256: strings.ToUpper(hex.EncodeToString(digest[:]))},
	}}
	for token, want := range map[string]string{"token-of-alice-01": "alice", "token-of-ci-0123": "ci", "token-of-alice-0": "", "": "", "TOKEN-OF-ALICE-01": "", hex.EncodeToString(digest[:]): ""} {
		if got, ok := newSettings(c).access.Tokens.Owner(token); got != want || ok != (want != "") {
			t.Errorf("owner(%q) = %q, %t, want %q", token, got, ok, want)
		}
	}
}
