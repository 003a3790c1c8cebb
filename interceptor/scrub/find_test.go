package scrub

import "testing"

// Many searches in a line have an index, which has the same answers.
func TestSecretsOfLine(t *testing.T) {
	for _, searched := range []int{0, 1 << 30} {
		l := secretsOfLine{searched: searched}
		l.add("first-secret")
		l.add("2nd")
		for secret, want := range map[string]bool{"first": true, "secret": true, "2nd": true, "secret2nd": false, "third": false} {
			if got := l.hold([]byte(secret)); got != want {
				t.Errorf("after %d bytes, hold(%q) = %v, want %v", searched, secret, got, want)
			}
		}
		if (l.index != nil) != (searched > 0) {
			t.Errorf("after %d bytes: index %v", searched, l.index)
		}
	}
}
