package query

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Verify is [trace.Verify] and also compares the index with the journal, as far
// as there is an index and it was extended. A different index is a fault. An index without
// a schema is not compared: another process is making it.
func Verify(ctx context.Context, dir string, o trace.VerifyOptions) (trace.Report, error) {
	var checks []*indexCheck
	for _, path := range locations(dir) {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		c := &indexCheck{path: path, seed: maphash.MakeSeed(), size: map[int64]int64{}, index: map[int64]uint64{}}
		if c.err = c.readIndex(ctx); !errors.Is(c.err, sqlitedb.ErrOlder) {
			checks = append(checks, c)
		}
	}
	o.Each = func() func(*trace.Record, string, int64, int) {
		for _, c := range checks {
			c.journal, c.tally = map[int64]uint64{}, newTally()
		}
		return func(r *trace.Record, file string, offset int64, size int) {
			for _, c := range checks {
				c.add(r, place{segmentSeq(file), offset, int64(size)})
			}
		}
	}
	report, err := trace.Verify(ctx, dir, o)
	for _, c := range checks {
		c.addTally()
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
	words          map[int64]string // while the index is read
	size           map[int64]int64  // indexed bytes by segment
	index, journal map[int64]uint64 // sums by segment
	tally          tally            // of the journal's segment that is being read
	segment        int64
	err            error
}

// branchSum is a row of branch whose numbers of records are the offsets of their lines and 1.
type branchSum struct {
	context string
	branchRow
}

type totalSum struct {
	totalKey
	Sums
}

// blockWord is a row of posting.
type blockWord struct {
	block int64
	posting
}

// rowReader reads the rows of a query: it fills into, and calls each.
type rowReader func(query string, into []any, each func()) error

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
	rows := func(query string, into []any, each func()) error {
		for err := range sqlitedb.Rows(ctx, tx, into, query) {
			if err != nil {
				return err
			}
			each()
		}
		return nil
	}
	c.words = map[int64]string{}
	defer func() { c.words = nil }()
	for _, read := range []func(rowReader) error{c.readWords, c.readSegments, c.readRecords, c.readLinks, c.readTotals, c.readBranches} {
		if err := read(rows); err != nil {
			return err
		}
	}
	return nil
}

func (c *indexCheck) readWords(rows rowReader) error {
	var id int64
	var value []byte
	return rows("SELECT id, value FROM word", []any{&id, &value}, func() { c.words[id] = string(value) })
}

func (c *indexCheck) readSegments(rows rowReader) error {
	var first, size int64
	return rows("SELECT first, size FROM segment", []any{&first, &size}, func() { c.size[first] = size })
}

var errIndexParts = errors.New("its parts differ from each other")

// readRecords also compares blocks and postings with those that the records give.
func (c *indexCheck) readRecords(rows rowReader) error {
	var parts uint64   // the sum of what the records give, less what the tables have
	var block blockRow // of the records that were read last
	sumBlock := func(b blockRow) {
		if b.id = 0; b.count > 0 {
			parts += maphash.Comparable(c.seed, b)
		}
	}
	var id int64
	var r row
	var last place
	var fields [numFields]int64
	into := []any{&id, &r.segment, &r.start, &r.size, &r.time, &r.flags, &r.envelope, &r.tokens, &r.us}
	for i := range fields {
		into = append(into, &fields[i])
	}
	seen := map[posting]bool{} // of the block
	err := rows("SELECT * FROM record ORDER BY id", into, func() {
		if r.place.compare(last) <= 0 { // queries would pass over it
			c.index[r.segment]++
		}
		last = r.place
		for i, word := range fields {
			r.fields[i] = c.words[word]
		}
		c.index[r.segment] += maphash.Comparable(c.seed, r)
		full := block
		if block.add(id, r) {
			sumBlock(full)
			clear(seen)
		}
		for one := range postings(r.flags, fields) {
			if !seen[one] {
				seen[one] = true
				parts += maphash.Comparable(c.seed, blockWord{block.first, one})
			}
		}
	})
	if err != nil {
		return err
	}
	sumBlock(block)
	var read blockRow
	if err := rows("SELECT * FROM block ORDER BY id", read.columns(), func() {
		read.id = 0
		parts -= maphash.Comparable(c.seed, read)
	}); err != nil {
		return err
	}
	var posted blockWord
	if err := rows("SELECT field, word, first FROM posting JOIN block ON block.id = block", []any{&posted.field, &posted.word, &posted.block}, func() {
		parts -= maphash.Comparable(c.seed, posted)
	}); err != nil {
		return err
	}
	if parts != 0 {
		return errIndexParts
	}
	return nil
}

// readLinks also compares the table loose with the links to nothing.
func (c *indexCheck) readLinks(rows rowReader) error {
	var segment int64
	var link [3]int64 // its kind and key, and the offset of the record's line
	if err := rows("SELECT segment, link.kind, key, start FROM link JOIN record ON id = record", []any{&segment, &link[0], &link[1], &link[2]}, func() {
		c.index[segment] += maphash.Comparable(c.seed, link)
	}); err != nil {
		return err
	}
	var hidden int64 // links to nothing that loose lacks
	err := rows("SELECT count(*) FROM link WHERE kind = 0 AND NOT EXISTS (SELECT 1 FROM record WHERE envelope = link.key) AND NOT EXISTS (SELECT 1 FROM loose WHERE loose.record = link.record AND loose.key = link.key)",
		[]any{&hidden}, func() {})
	if err == nil && hidden != 0 {
		err = errIndexParts
	}
	return err
}

func (c *indexCheck) readTotals(rows rowReader) error {
	var segment int64
	var total totalSum
	var key [len(totalFields)]int64 // the words of a total
	into := append([]any{&total.grain, &key[0], &key[1], &key[2], &key[3], &total.start, &segment}, total.fields()...)
	return rows("SELECT * FROM total", into, func() {
		for i, id := range key {
			total.words[i] = c.words[id]
		}
		c.index[segment] += maphash.Comparable(c.seed, total)
	})
}

func (c *indexCheck) readBranches(rows rowReader) error {
	var path, segment, principal int64
	var branch branchSum
	into := append([]any{&path, &segment, &principal, &branch.opened, &branch.closed, &branch.last}, branch.branchSums.fields()...)
	lineOf := func(column string) string {
		return fmt.Sprintf("coalesce((SELECT start + 1 FROM record WHERE record.id = branch.%s AND record.segment = branch.segment), branch.%[1]s <> 0)", column)
	}
	query := "SELECT context, segment, principal, " + lineOf("opened") + ", " + lineOf("closed") + ", " + lineOf("last") + ", " + strings.Join(branchNames, ", ") + " FROM branch"
	return rows(query, into, func() {
		branch.context, branch.principal = c.words[path], c.words[principal]
		c.index[segment] += maphash.Comparable(c.seed, branch)
	})
}

// add adds the rows of a record to the journal's sum, if it is indexed.
func (c *indexCheck) add(r *trace.Record, p place) {
	if c.err != nil || p.start+p.size > c.size[p.segment] {
		return
	}
	if c.segment != p.segment {
		c.addTally()
		c.segment = p.segment
	}
	c.tally.add(r, p.start+1)
	c.journal[p.segment] += maphash.Comparable(c.seed, rowOf(r, p))
	for kind, keys := range links(r) {
		for _, k := range keys {
			c.journal[p.segment] += maphash.Comparable(c.seed, [3]int64{int64(kind), k, p.start})
		}
	}
}

// addTally adds the rows of a segment's tally to the journal's sum.
func (c *indexCheck) addTally() {
	for k, s := range c.tally.totals {
		c.journal[c.segment] += maphash.Comparable(c.seed, totalSum{k, *s})
	}
	for name, b := range c.tally.branches {
		c.journal[c.segment] += maphash.Comparable(c.seed, branchSum{name, *b})
	}
	c.tally = newTally()
}
