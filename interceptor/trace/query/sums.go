package query

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Sums are figures of records. Tokens are counted on the texts when a call is made.
type Sums struct {
	Records   int64 `json:"records"`
	Calls     int64 `json:"calls"` // tools/call requests
	Errors    int64 `json:"errors"`
	Blocked   int64 `json:"blocked"`  // refused by foldgate
	Scrubbed  int64 `json:"scrubbed"` // with secrets
	In        int64 `json:"tokens_in"`
	Out       int64 `json:"tokens_out"` // of results as servers sent them
	Delivered int64 `json:"tokens_delivered"`
	Folded    int64 `json:"folded"` // stored results
	Stored    int64 `json:"tokens_stored"`
	ReadBack  int64 `json:"tokens_read_back"` // delivered later of stored results: by branch_read, or as the answer of a batch
	Saved     int64 `json:"tokens_saved"`     // of stored results less their previews, less ReadBack
	Answers   int64 `json:"answers"`          // responses with a duration
	US        int64 `json:"us"`               // microseconds of all of them
}

// sumNames are the columns of the fields in the index.
var sumNames = []string{"records", "calls", "errors", "blocked", "scrubbed", "tokens_in", "sent", "delivered", "folded", "stored", "read_back", "saved", "answers", "us"}

func (s *Sums) fields() []any {
	return []any{&s.Records, &s.Calls, &s.Errors, &s.Blocked, &s.Scrubbed, &s.In, &s.Out, &s.Delivered, &s.Folded, &s.Stored, &s.ReadBack, &s.Saved, &s.Answers, &s.US}
}

// Add adds the figures of o.
func (s *Sums) Add(o Sums) {
	s.Records += o.Records
	s.Calls += o.Calls
	s.Errors += o.Errors
	s.Blocked += o.Blocked
	s.Scrubbed += o.Scrubbed
	s.In += o.In
	s.Out += o.Out
	s.Delivered += o.Delivered
	s.Folded += o.Folded
	s.Stored += o.Stored
	s.ReadBack += o.ReadBack
	s.Saved += o.Saved
	s.Answers += o.Answers
	s.US += o.US
}

// ownSums returns the figures of a record, without what it read back.
func ownSums(r *trace.Record) Sums {
	a := r.AuditOrEmpty()
	one := func(is bool) int64 {
		if is {
			return 1
		}
		return 0
	}
	s := Sums{Records: 1, Calls: one(r.Kind == trace.KindRequest+"tools/call"), Errors: one(a.IsError), Blocked: one(r.Blocked()), Scrubbed: one(len(a.Scrub) > 0)}
	if t := a.Tokens; t != nil {
		s.In, s.Out, s.Delivered = int64(t.In), int64(t.Out), int64(t.Delivered)
	}
	if a.Fold != nil {
		s.Folded, s.Stored, s.Saved = 1, s.Out, int64(a.Fold.Saved)
	}
	if strings.HasPrefix(r.Kind, trace.KindResponse) && a.MS > 0 {
		s.Answers, s.US = 1, microseconds(a)
	}
	return s
}

// sumsOf yields the figures of a record and, if it read from a stored result, those that count for the call
// that stored it: with its server, tool and context in place of the record's.
func sumsOf(r *trace.Record) iter.Seq2[*trace.Record, Sums] {
	return func(yield func(*trace.Record, Sums) bool) {
		a := r.AuditOrEmpty()
		if !yield(r, ownSums(r)) || a.Read == nil || a.Tokens == nil {
			return
		}
		of, audit := *r, *a
		of.Context, of.Audit, audit.Server, audit.Tool = a.Read.Context, &audit, a.Read.Server, a.Read.Tool
		n := int64(a.Tokens.Delivered)
		yield(&of, Sums{ReadBack: n, Saved: -n})
	}
}

// Stats are the sums of [Summarize].
type Stats struct {
	From     string                 `json:"from,omitempty"` // times of the first and the last record
	To       string                 `json:"to,omitempty"`
	Counters []string               `json:"counters"` // the encodings that tokens were counted with
	Total    Sums                   `json:"total"`
	Tables   map[string][]*StatsRow `json:"tables"` // by the dimensions, joined by commas; those that saved most first, days in order
	// Freed is the tokens of closed branches less those that their parents read of them. It assumes that a
	// parent would have read all.
	Freed int64 `json:"tokens_freed"`
}

// A StatsRow has the sums of the records with a key.
type StatsRow struct {
	Name string `json:"name"` // of [Keys]
	Sums
}

// Summarize sums up records in all, and in a table for each list of dimensions.
func Summarize(records iter.Seq2[*trace.Record, error], tables ...[]string) (*Stats, error) {
	s := &Stats{Counters: []string{}, Tables: map[string][]*StatsRow{}}
	lines := make([]map[string]*StatsRow, len(tables))
	for i := range lines {
		lines[i] = map[string]*StatsRow{}
	}
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		s.From, s.To = min(cmp.Or(s.From, r.TS), r.TS), max(s.To, r.TS)
		for of, sums := range sumsOf(r) {
			s.Total.Add(sums)
			for i, by := range tables {
				for _, key := range Keys(of, by) {
					if lines[i][key] == nil {
						lines[i][key] = &StatsRow{Name: key}
					}
					lines[i][key].Add(sums)
				}
			}
		}
		t := r.AuditOrEmpty().Tokens
		if t == nil {
			continue
		}
		if t.Counter != "" && !slices.Contains(s.Counters, t.Counter) {
			s.Counters = append(s.Counters, t.Counter)
		}
		if r.Kind == trace.KindPop {
			s.Freed += int64(t.Freed)
		}
	}
	for i, by := range tables {
		rows := slices.SortedFunc(maps.Values(lines[i]), func(a, b *StatsRow) int {
			if !slices.Contains(by, "day") {
				if order := cmp.Or(cmp.Compare(b.Saved, a.Saved), cmp.Compare(b.Delivered, a.Delivered)); order != 0 {
					return order
				}
			}
			return cmp.Compare(a.Name, b.Name)
		})
		s.Tables[strings.Join(by, ",")] = append([]*StatsRow{}, rows...) // in JSON an empty list, not null
	}
	return s, nil
}
