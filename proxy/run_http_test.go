package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

func TestTokenOwner(t *testing.T) {
	digest := sha256.Sum256([]byte("token-of-ci-0123"))
	c := config.Config{Principals: map[string]*config.Principal{
		"alice": {Token: "token-of-alice-01"}, "ci": {TokenSHA256: strings.ToUpper(hex.EncodeToString(digest[:]))},
	}}
	owner := func(token string) string {
		c, _ := newSettings(c, nil, nil).access.Auth.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + token}}, "/mcp")
		return c.Principal
	}
	for token, want := range map[string]string{"token-of-alice-01": "alice", "token-of-ci-0123": "ci", "token-of-alice-0": "", "": "", "TOKEN-OF-ALICE-01": "", hex.EncodeToString(digest[:]): ""} {
		if got := owner(token); got != want {
			t.Errorf("owner(%q) = %q, want %q", token, got, want)
		}
	}
}
