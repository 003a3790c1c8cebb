package render

import (
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// An access says who asked for what. A login says what it always did.
func TestAboutAccess(t *testing.T) {
	for payload, want := range map[string]string{
		`{"method":"DELETE","path":"/v1/budgets/day","query":"subject=bob","user":"1000"}`: "user 1000: DELETE /v1/budgets/day?subject=bob",
		`{"method":"POST","path":"/v1/read","query":"record=env_1","user":"0","by":"eve"}`: "eve: POST /v1/read?record=env_1",
		`{"path":"/v1/read","query":"record=env_1","user":"0","by":"ann (local link)"}`:    "ann (local link): /v1/read?record=env_1",
		`{"method":"GET","path":"/v1/branches","query":""}`:                                "GET /v1/branches",
		`{"method":"GET","path":"/v1/trace","query":"tool=a\u001bb"}`:                      `GET /v1/trace?tool=a\u001bb`,
		`{"action":"login","scopes":["read"],"user":"0"}`:                                  "login",
		``: "",
	} {
		if got := About(&trace.Record{Kind: trace.KindAccess, Payload: []byte(payload)}); got != want {
			t.Errorf("%s: %q, want %q", payload, got, want)
		}
	}
}

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
