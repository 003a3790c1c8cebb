package render

import (
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// A crossing names its limit, its subject and what is used. Without a payload it says nothing.
func TestAboutLimit(t *testing.T) {
	for payload, want := range map[string]string{
		`{"action":"refuse","limit":"developer","subject":"alice","tokens":3000,"tokens_used":2990}`:               "developer of alice: 2990 of 3000 tokens",
		`{"action":"warn","limit":"all","subject":"","calls":5,"calls_used":5}`:                                    "all: 5 of 5 calls",
		`{"action":"refuse","limit":"x","subject":"a\u001bb","tokens":1,"tokens_used":2,"calls":3,"calls_used":4}`: `x of a\u001bb: 2 of 1 tokens, 4 of 3 calls`,
		``: "", `{}`: "", `[`: "", `{"limit":7}`: "",
	} {
		if got := About(&trace.Record{Kind: trace.KindBudget + "near", Payload: []byte(payload)}); got != want {
			t.Errorf("%s: %q, want %q", payload, got, want)
		}
	}
}
