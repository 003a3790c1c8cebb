package replicas

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A replica that comes takes its share of the principals, and the others keep theirs.
func TestPrincipalsMoveOnlyToANewReplica(t *testing.T) {
	names := []string{"aaaaa", "bbbbb", "ccccc"}
	owner := func(principal string, of []string) (best string) {
		for _, n := range of {
			if best == "" || score(principal, n) > score(principal, best) {
				best = n
			}
		}
		return best
	}
	const principals = 3000
	count := map[string]int{}
	for i := range principals {
		p := fmt.Sprintf("user-%d", i)
		before, after := owner(p, names[:2]), owner(p, names)
		if after != before && after != names[2] {
			t.Errorf("%s moves from %s to %s", p, before, after)
		}
		count[after]++
	}
	for _, n := range names {
		if count[n] < principals/4 || count[n] > principals/2 {
			t.Errorf("replica %s has %d of %d principals", n, count[n], principals)
		}
	}
}

func TestReadMember(t *testing.T) {
	const now = 1_700_000_000_000
	text := func(ago time.Duration, state string) string {
		return fmt.Sprintf("%d RUN %s 10.0.0.7:8788 0123456789ab v1", now-ago.Milliseconds(), state)
	}
	for _, tt := range []struct {
		text, want string
	}{
		{text(0, Up), Up}, {text(ttl, Up), Up}, {text(ttl+time.Second, Up), Down}, {text(time.Hour, Draining), Down},
		{text(time.Hour, Stopped), Stopped}, {text(-time.Hour, Up), Up},
		{text(0, "odd"), ""}, {"", ""}, {"x RUN up a b c", ""}, {"1 RUN up", ""},
	} {
		m, ok := readMember("abcde", tt.text, now)
		if ok != (tt.want != "") || ok && m.State != tt.want {
			t.Errorf("readMember(%q) = %+v, %v, want state %q", tt.text, m, ok, tt.want)
		}
	}
	if _, ok := readMember("not a name", text(0, Up), now); ok {
		t.Error("readMember takes a wrong name")
	}
}

// Whatever is in the registry: what is read has a valid name, a known state and an address without spaces.
func FuzzReadMember(f *testing.F) {
	f.Add("abcde", "1700000000000 RUN up 10.0.0.7:8788 0123456789ab v1", int64(1_700_000_000_000))
	f.Add("abcde", "0 R stopped a b c", int64(9_223_372_036_854_775_807))
	f.Add("abcde", "-9223372036854775808 R stopped a b c", int64(9_223_372_036_854_775_807))
	f.Fuzz(func(t *testing.T, name, text string, now int64) {
		m, ok := readMember(name, text, now)
		if !ok {
			return
		}
		if len(m.Name) != 5 || strings.Contains(m.Address, " ") || !strings.Contains("up draining stopped down", m.State) || m.Seen < 0 {
			t.Errorf("readMember(%q, %q) = %+v", name, text, m)
		}
	})
}

// After the registry has lost its data, replicas that were known stay known until they are back, or are
// absent for long.
func TestLostRegistry(t *testing.T) {
	s := newSet(t, "first", "key", nil)
	now := int64(1_700_000_000_000)
	learn := func(names ...string) {
		all := []string{strconv.FormatInt(now, 10)}
		for _, name := range names {
			all = append(all, name, fmt.Sprintf("%d RUN up 10.0.0.7:8788 0123456789ab v1", now))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.learn(all)
		now += beatEvery.Milliseconds()
	}
	state := func(name string) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m := s.members[name]; m != nil {
			return m.State
		}
		return ""
	}
	learn("aaaaa", "bbbbb")
	learn() // emptied
	if a, b := state("aaaaa"), state("bbbbb"); a != Up || b != Up {
		t.Errorf("after the loss the replicas are %q and %q, want up", a, b)
	}
	for range 2 * ttl / beatEvery {
		learn("aaaaa")
	}
	if a, b := state("aaaaa"), state("bbbbb"); a != Up || b != Down {
		t.Errorf("the replica that is back is %q, the other %q; want up and down", a, b)
	}
	for range absent / beatEvery {
		learn("aaaaa")
	}
	if b := state("bbbbb"); b != "" {
		t.Errorf("the one that did not come back is %q, want forgotten", b)
	}
}
