package interceptor

import (
	"testing"

	"github.com/foldgate/foldgate/interceptor/scrub"
)

// A name that a record repeats is checked again by the rules that the boundary has learned.
func TestNamesAreCheckedAfterRelearn(t *testing.T) {
	const token = "blue-harbour-of-eleven-ships"
	old, err := scrub.New(scrub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &Recorder{Boundary: &Boundary{Scrubber: old, Policy: testPolicy{}.of}}
	if got := r.withoutSecrets("no_" + token); got != "no_"+token {
		t.Fatalf("before: %q", got)
	}
	next, err := scrub.New(scrub.Options{Known: []string{token}})
	if err != nil {
		t.Fatal(err)
	}
	r.Boundary.Relearn(next)
	for range 2 { // the second time it is remembered
		if got := r.withoutSecrets("no_" + token); got != "no_[SECRET:foldgate-token]" {
			t.Errorf("after: %q", got)
		}
	}
}
