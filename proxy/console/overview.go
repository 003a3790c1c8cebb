package console

import (
	"net/http"
	"net/url"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// span is the time that a page is about.
type span struct {
	Name         string // of a preset, "" for another
	Since, Until time.Time
	Unit         string // hour or day: of the bars
	Presets      []preset
}

type preset struct{ Name, Link string }

const (
	day     = 24 * time.Hour
	longest = 400 * day // of what a page shows
)

// spanOf reads the time from an address: since and until, or a number of days before the last record.
func (c *Console) spanOf(r *request) (s span, err error) {
	_, first, last, err := c.trace.Extent(r.Context())
	if err != nil {
		return s, err
	}
	f, err := query.FromAddress(url.Values{"since": r.query["since"], "until": r.query["until"]})
	if err != nil {
		return s, err
	}
	s.Until = last.Truncate(time.Hour).Add(time.Hour)
	if s.Since = f.Since; !f.Until.IsZero() {
		s.Until = f.Until
	}
	lengths := map[string]time.Duration{"day": day, "week": 7 * day, "month": 31 * day, "year": 366 * day}
	name, err := r.oneOf("span", "week", "day", "month", "year")
	if err != nil {
		return s, err
	}
	if s.Since.IsZero() {
		s.Name, s.Since = name, s.Until.Add(-lengths[name])
	}
	if s.Since.Before(first) {
		s.Since = first.Truncate(time.Hour)
	}
	if s.Until.Sub(s.Since) > longest {
		s.Since = s.Until.Add(-longest)
	}
	if s.Unit = "hour"; s.Until.Sub(s.Since) > 8*day {
		s.Unit = "day"
		s.wholeDays()
	}
	for _, name := range []string{"day", "week", "month", "year"} {
		s.Presets = append(s.Presets, preset{name, address(r.URL.Path, r.query, "span", name, "since", "", "until", "")})
	}
	return s, nil
}

// wholeDays makes the time begin and end with a day.
func (s *span) wholeDays() {
	s.Since, s.Until = s.Since.Truncate(day), s.Until.Add(day-time.Nanosecond).Truncate(day)
}

// bar is a row of a table over time, and a place on its charts.
type bar struct {
	query.SumRow
	Since, Until string // the filters for its records
}

// barsOf returns the bars of sums by hour or day.
func barsOf(rows []query.SumRow, unit string) (bars []bar) {
	length := time.Hour
	if unit == "day" {
		length = day
	}
	for _, row := range rows {
		bars = append(bars, bar{row, row.Start.Format(time.RFC3339), row.Start.Add(length).Format(time.RFC3339)})
	}
	return bars
}

// overview is the first page.
func (c *Console) overview(r *request) error {
	s, err := c.spanOf(r)
	if err != nil {
		return err
	}
	f := query.SumFilter{Since: s.Since, Until: s.Until, Server: r.query.Get("server")}
	rows, err := c.trace.Sums(r.Context(), f, s.Unit)
	if err != nil {
		return err
	}
	servers, err := c.trace.Sums(r.Context(), f, "server")
	if err != nil {
		return err
	}
	records, first, last, err := c.trace.Extent(r.Context())
	if err != nil {
		return err
	}
	var total query.Sums
	for _, row := range rows {
		total.Add(row.Sums)
	}
	return c.show(r, http.StatusOK, "overview", "Overview", map[string]any{
		"Span": s, "Total": total, "Bars": barsOf(rows, s.Unit), "Servers": servers, "Records": records, "First": first, "Last": last,
		"Since": s.Since.UTC().Format(time.RFC3339), "Until": s.Until.UTC().Format(time.RFC3339), "Server": f.Server,
	})
}
