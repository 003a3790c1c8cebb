package preview

import "time"

// layouts are the forms of times and dates that can be compared. A fraction of the seconds may follow them. The
// first withYear of them name a moment. The others recur: 23:59 may be before 00:01.
var layouts = [...]string{
	"2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00", "2006-01-02T15:04",
	"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 Z07:00", "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05 UTC",
	"2006-01-02 15:04:05 -0700 MST", "2006-01-02 15:04", "2006-01-02", "2006/01/02 15:04:05", "2006/01/02-15:04:05",
	"02/Jan/2006:15:04:05 -0700", "Mon Jan _2 15:04:05 2006 -0700", "Mon Jan _2 15:04:05 2006", "Mon, 02 Jan 2006 15:04:05 -0700", "Mon, 02 Jan 2006 15:04:05 GMT",
	"15:04:05", "Jan _2 15:04:05", "0102 15:04:05",
}

const withYear = 20

// timeSpan has the times of a column.
type timeSpan struct {
	times        int // values that are times
	layout       int // of all of them, its place in layouts and one more; -1 if they can't be compared
	rises, falls bool
	early, late  moment
	last         time.Time
}

type moment struct {
	time  time.Time
	value string // as written
}

func (s *timeSpan) add(value string) {
	if s.times++; s.layout < 0 {
		return
	}
	from, to := s.layout-1, s.layout
	if s.layout == 0 {
		from, to = 0, len(layouts)
	}
	for s.layout = -1; from < to; from++ {
		if t, err := time.Parse(layouts[from], value); err == nil {
			s.layout = from + 1
			if s.times == 1 || t.Before(s.early.time) {
				s.early = moment{t, value}
			}
			if s.times == 1 || t.After(s.late.time) {
				s.late = moment{t, value}
			}
			if s.times > 1 {
				s.rises, s.falls = s.rises || t.After(s.last), s.falls || t.Before(s.last)
			}
			s.last = t
			return
		}
	}
}

// known reports whether all times are between early and late: they name their year, or rise.
func (s *timeSpan) known() bool { return s.layout > 0 && (s.layout <= withYear || !s.falls) }

// tellTimes tells the times of a column, in the totals or as a fact, and reports whether it tells anything. Of the
// times of a log that can't be compared, and of commits out of order, it tells the first and the last one.
func (e *entries) tellTimes(f *findings, c *column, head string, scale float64, total bool) bool {
	var text string
	switch t := &c.when; {
	case total && (f.kind == Log && !t.known() || f.kind == GitLog && t.rises && t.falls): // such as commits that were rebased
		text = "first " + clip(c.from, 40) + ", last " + clip(c.to, 40)
	case !t.known():
		return false
	case t.times == c.tally.count(c.from):
		text = "all at " + clip(t.early.value, 40)
	default:
		text = clip(t.early.value, 40) + " to " + clip(t.late.value, 40)
	}
	switch {
	case !total:
		f.fact(3*scale, head+": ", []string{text}, nil)
	case head == "time" || head == "date":
		f.totals = append(f.totals, text)
	default:
		f.totals = append(f.totals, head+" "+text)
	}
	return true
}
