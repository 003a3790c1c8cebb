package limits

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestWindowText(t *testing.T) {
	for _, good := range []string{"1m", "15m", "1440m", "1h", "24h", "1d", "1w", "1mo", "rolling 90m", "rolling 24h", "rolling 30d", "rolling 4w", "rolling 366d"} {
		window(t, good)
	}
	for _, bad := range []string{"", "1", "h", "0h", "-1h", "25h", "1441m", "2d", "2w", "2mo", "rolling 1mo", "rolling 367d", "rolling", "1s", "1 h", "99999999999999999999h", "rolling 9999999w", "rolling 16000w", "rolling 110000d"} {
		var w Window
		if err := w.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %v", bad, w)
		}
	}
}

func TestWindowEdges(t *testing.T) {
	for _, c := range []struct{ zone, window, at, from, until string }{
		{"UTC", "1d", "2026-11-22T23:59:59Z", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"UTC", "1d", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z"},
		{"UTC", "1w", "2026-11-22T12:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"}, // a Sunday
		{"UTC", "1w", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}, // a Monday
		{"UTC", "1w", "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"UTC", "1mo", "2028-02-29T23:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"UTC", "1mo", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"UTC", "15m", "2026-11-22T10:59:59Z", "2026-11-22T10:45:00Z", "2026-11-22T11:00:00Z"},
		{"UTC", "7h", "2026-11-22T23:00:00Z", "2026-11-22T21:00:00Z", "2026-11-23T00:00:00Z"},           // the last of a day is shorter
		{"Europe/Berlin", "1d", "2026-03-29T10:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"}, // 23 hours
		{"Europe/Berlin", "1d", "2026-10-25T10:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}, // 25 hours
		{"Europe/Berlin", "1h", "2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"}, // 02:30 the first time
		{"Europe/Berlin", "1h", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}, // and the second
		{"Europe/Berlin", "1mo", "2026-03-15T00:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"},
		{"Europe/Berlin", "1w", "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"Asia/Kolkata", "1h", "2026-11-22T10:00:00Z", "2026-11-22T09:30:00Z", "2026-11-22T10:30:00Z"},
		{"Asia/Beirut", "1d", "2026-03-29T12:00:00Z", "2026-03-28T22:00:00Z", "2026-03-29T21:00:00Z"},    // begins at 01:00
		{"America/Havana", "1d", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"}, // has 00:00 twice
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := time.Parse(time.RFC3339, c.at)
		s := window(t, c.window).at(at, zone)
		from, until := time.Unix(s.from, 0).UTC().Format(time.RFC3339), time.Unix(s.until, 0).UTC().Format(time.RFC3339)
		if from != c.from || until != c.until || s.key != s.from || s.expires < s.until {
			t.Errorf("%s in %s at %s: %s to %s, want %s to %s", c.window, c.zone, c.at, from, until, c.from, c.until)
		}
	}
}

// Windows cover all times in all zones, each once.
func TestWindowsFollowEachOther(t *testing.T) {
	zones := []string{"UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Asia/Beirut", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo", "Atlantic/Azores", "America/St_Johns", "Asia/Amman"}
	for _, text := range []string{"1m", "7m", "1h", "5h", "24h", "1d", "1w", "1mo", "rolling 1m", "rolling 100m", "rolling 24h", "rolling 30d"} {
		w := window(t, text)
		for _, name := range zones {
			zone, err := time.LoadLocation(name)
			if err != nil {
				t.Fatal(err)
			}
			for range 500 {
				at := time.Unix(rand.Int64N(3_000_000_000), 0)
				s := w.at(at, zone)
				if now := at.Unix(); now < s.from || now >= s.until {
					t.Fatalf("%s in %s: %v is not in its window %v to %v", text, name, at.UTC(), s.from, s.until)
				}
				if next := w.at(time.Unix(s.until, 0), zone); next.from != s.until {
					t.Fatalf("%s in %s: a window ends at %d, the next begins at %d", text, name, s.until, next.from)
				}
				if last := w.at(time.Unix(s.until-1, 0), zone); last.from != s.from || last.until != s.until {
					t.Fatalf("%s in %s: the window of %v is not that of its last second", text, name, at.UTC())
				}
				if !w.rolling {
					continue
				}
				// What was used up to its length ago counts, in each part of the window.
				length := int64(w.n) * int64(time.Duration(w.unit)/time.Second)
				if then := w.at(time.Unix(at.Unix()-length+1, 0), zone); then.bucket < s.oldest {
					t.Fatalf("%s: a use %d s ago doesn't count", text, length-1)
				}
				if n := (s.bucket-s.oldest)/(s.until-s.from) + 1; n > parts+1 {
					t.Fatalf("%s: %d parts", text, n)
				}
			}
		}
	}
}

// The count of a session is kept for keepSession after its last use at least, and goes before any
// other that is live.
func TestCountersAreKept(t *testing.T) {
	session := Use{Session: "s"}
	for _, text := range []string{"1m", "6h", "1d", "1mo", "rolling 1m", "rolling 5m", "rolling 24h", "rolling 366d"} {
		c := &clock{t: time.Unix(rand.Int64N(3_000_000_000), 0)}
		l := newLimits(t, Options{Now: c.now}, Limit{Name: "session", Per: PerSession, Tokens: 1}, Limit{Name: "other", Per: PerAll, Tokens: 1, Window: window(t, text)})
		for range 500 {
			c.set(c.now().Add(time.Duration(rand.Int64N(int64(8 * time.Hour)))))
			now := c.now().Unix()
			l.mu.Lock()
			a := l.account(session)
			l.mu.Unlock()
			own, other := a.counters[0].Expires, a.counters[1].Expires
			if own < now+keepSession || own > now+keepSession*3/2 {
				t.Fatalf("a session is kept for %d s", own-now)
			}
			if other < now+keep {
				t.Fatalf("%s is kept for %d s after a use, the session for %d s", text, other-now, own-now)
			}
		}
	}
}
