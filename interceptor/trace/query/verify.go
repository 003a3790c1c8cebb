package query

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"os"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Verify is [trace.Verify] and also compares the index with the journal, as far
// as there is an index and it was extended. A different index is a fault.
func Verify(ctx context.Context, dir string, o trace.VerifyOptions) (trace.Report, error) {
	var checks []*indexCheck
	for _, path := range locations(dir) {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		c := &indexCheck{path: path, seed: maphash.MakeSeed(), size: map[int64]int64{}, index: map[int64]uint64{}}
		c.err = c.readIndex(ctx)
		checks = append(checks, c)
	}
	o.Each = func() func(*trace.Record, string, int64, int) {
		for _, c := range checks {
			c.journal = map[int64]uint64{}
		}
		return func(r *trace.Record, file string, at int64, size int) {
			for _, c := range checks {
				c.add(r, place{segmentSeq(file), at, int64(size)})
			}
		}
	}
	report, err := trace.Verify(ctx, dir, o)
	for _, c := range checks {
		for segment, sum := range c.journal { // retention may have removed others
			if c.err == nil && c.index[segment] != sum {
				c.err = errors.New("it differs from what the files give")
			}
		}
		if err == nil && c.err != nil {
			report.Add(trace.Fault{Code: trace.FaultIndex, Text: fmt.Sprintf("the index %s: %v; delete it, it is rebuilt", c.path, c.err)})
		}
	}
	return report, err
}

// indexCheck compares the rows of an index with those that the journal gives, by
// a sum of hashes for each segment. The sum does not depend on the order.
type indexCheck struct {
	path           string
	seed           maphash.Seed
	size           map[int64]int64  // indexed bytes by segment
	index, journal map[int64]uint64 // sums by segment
	err            error
}

// readIndex sums up the rows of the index as of one moment.
func (c *indexCheck) readIndex(ctx context.Context) error {
	db, err := sqlitedb.OpenReadOnly(ctx, c.path, options)
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	var first, size, id, n int64
	var value []byte
	words := map[int64]string{}
	var r row
	var last place
	var fields [numFields]int64
	into := []any{&id, &r.segment, &r.start, &r.size, &r.time, &r.flags, &r.envelope}
	for i := range fields {
		into = append(into, &fields[i])
	}
	var link [3]int64 // its kind and key, and the offset of the record's line
	for _, t := range []struct {
		query string
		into  []any
		each  func()
	}{
		{"SELECT first, size FROM segment", []any{&first, &size}, func() { c.size[first] = size }},
		{"SELECT * FROM word", []any{&id, &n, &value}, func() { words[id] = string(value) }},
		{"SELECT * FROM record ORDER BY id", into, func() {
			if r.place.compare(last) <= 0 { // queries would pass over it
				c.index[r.segment]++
			}
			last = r.place
			for i, word := range fields {
				r.fields[i] = words[word]
			}
			c.index[r.segment] += maphash.Comparable(c.seed, r)
		}},
		{"SELECT segment, link.kind, key, start FROM link JOIN record ON id = record",
			[]any{&first, &link[0], &link[1], &link[2]}, func() { c.index[first] += maphash.Comparable(c.seed, link) }},
	} {
		for err := range sqlitedb.Rows(ctx, tx, t.into, t.query) {
			if err != nil {
				return err
			}
			t.each()
		}
	}
	return nil
}

// add adds the rows of a record to the journal's sum, if it is indexed.
func (c *indexCheck) add(r *trace.Record, p place) {
	if c.err != nil || p.start+p.size > c.size[p.segment] {
		return
	}
	c.journal[p.segment] += maphash.Comparable(c.seed, rowOf(r, p))
	for kind, keys := range links(r) {
		for _, k := range keys {
			c.journal[p.segment] += maphash.Comparable(c.seed, [3]int64{int64(kind), k, p.start})
		}
	}
}
