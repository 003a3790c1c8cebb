package limits

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // time zones where the system has none
)

// unit is a unit of a window; those up to hour have a fixed length.
type unit time.Duration

const (
	minute = unit(time.Minute)
	hour   = unit(time.Hour)
	day    = 24 * hour
	week   = 7 * day
	month  = 30 * day
)

var units = []struct {
	suffix string
	unit   unit
}{{"mo", month}, {"m", minute}, {"h", hour}, {"d", day}, {"w", week}}

// Window is the time over which a limit counts. The zero value is the life of a session.
//
// Windows of minutes and hours, such as "15m" or "6h", begin at midnight; the last of a day ends
// with the day. "1d", "1w" and "1mo" are calendar days, weeks from Monday, and months. All are in
// the limit's time zone. "rolling 24h", also with m, d or w, is the time up to now. It has up to 24
// parts; the oldest one counts whole.
type Window struct {
	n       int
	unit    unit
	rolling bool
}

// parts is the number of parts of a rolling window.
const parts = 24

// UnmarshalText reads a window.
func (w *Window) UnmarshalText(text []byte) error {
	s, rolling := strings.CutPrefix(string(text), "rolling ")
	for _, u := range units {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(digits)
		const year = 366 * 24 * time.Hour
		within := func(most time.Duration) bool { return time.Duration(n) <= most/time.Duration(u.unit) } // a product could overflow
		switch {
		case err != nil || n < 1:
		case rolling && u.unit != month && within(year), !rolling && (n == 1 || u.unit <= hour && within(time.Duration(day))):
			*w = Window{n, u.unit, rolling}
			return nil
		}
		break
	}
	return fmt.Errorf("%q is not a window: use minutes or hours up to a day such as 15m or 6h, or 1d, 1w, 1mo, or a rolling window of at most 366 days such as rolling 24h", text)
}

// MarshalText returns the window's text.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

func (w Window) String() string {
	for _, u := range units {
		if u.unit == w.unit {
			s := strconv.Itoa(w.n) + u.suffix
			if w.rolling {
				return "rolling " + s
			}
			return s
		}
	}
	return "session"
}

// span is a window at a time, in seconds since 1970.
type span struct {
	key            int64 // part of the counter's key: from, -1 of a rolling window, 0 of a session's
	from, until    int64 // a counter may be changed from from on, before until
	bucket, oldest int64 // of a rolling window: the part to add to, the first that counts
	expires        int64 // the counter can be deleted
}

const (
	// keep is how long a counter is kept after its window: a clock that jumps forward and back
	// finds it again.
	keep = 24 * 60 * 60
	// keepSession is how long the counter of a session is kept after its last use, at least; at most
	// it is half as long again. That is less than keep: if there are too many counters, those of
	// sessions go first.
	keepSession = 12 * 60 * 60
)

// at returns the window that holds a time.
func (w Window) at(at time.Time, zone *time.Location) span {
	if w == (Window{}) {
		return span{until: math.MaxInt64, expires: at.Unix() + keepSession*3/2}
	}
	if w.rolling {
		length := int64(w.n) * int64(time.Duration(w.unit)/time.Second)
		width := (length + parts - 1) / parts
		bucket := at.Unix() / width * width
		return span{
			key: -1, from: bucket, until: bucket + width,
			bucket: bucket, oldest: bucket - (length+width-1)/width*width,
			expires: bucket + width + length + keep,
		}
	}
	now := at.In(zone)
	y, m, d := now.Date()
	if !now.Before(midnight(y, m, d+1, zone)) { // a clock that was put back over midnight: the new day has begun
		now = time.Date(y, m, d+1, 12, 0, 0, 0, zone)
		y, m, d = now.Date()
	}
	var from, until time.Time
	switch w.unit {
	case day:
		from, until = midnight(y, m, d, zone), midnight(y, m, d+1, zone)
	case week:
		d -= (int(now.Weekday()) + 6) % 7
		from, until = midnight(y, m, d, zone), midnight(y, m, d+7, zone)
	case month:
		from, until = midnight(y, m, 1, zone), midnight(y, m+1, 1, zone)
	default:
		length := time.Duration(w.n) * time.Duration(w.unit)
		first, end := midnight(y, m, d, zone), midnight(y, m, d+1, zone)
		from = first.Add(at.Sub(first) / length * length)
		until = from.Add(length)
		if until.After(end) {
			until = end
		}
	}
	return span{key: from.Unix(), from: from.Unix(), until: until.Unix(), expires: until.Unix() + keep}
}

// midnight returns the first moment of a day. A clock that is put forward at midnight skips
// 00:00; one that is put back after midnight has it twice.
func midnight(y int, m time.Month, d int, zone *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, zone)
	wall := func(t time.Time) int64 { _, offset := t.Zone(); return t.Unix() + int64(offset) }
	if wall(t) < time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() { // before a gap, on the day before
		_, end := t.ZoneBounds()
		return end.In(zone)
	}
	change, _ := t.ZoneBounds()
	if change.IsZero() {
		return t
	}
	_, before := change.Add(-time.Second).Zone()
	_, after := t.Zone()
	if twin := t.Add(time.Duration(after-before) * time.Second); twin.Before(change) && twin.Before(t) {
		return twin
	}
	return t
}
