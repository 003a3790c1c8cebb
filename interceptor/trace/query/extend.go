package query

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// refresh extends the index to the end of the journal. It replaces the index
// before if it is broken, or if rebuild is set.
func (x *Index) refresh(ctx context.Context, rebuild bool) (err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if rebuild {
		err = x.replace(ctx)
	}
	for more := true; more && err == nil; {
		if more, err = x.extend(ctx); more {
			var done int64
			_ = x.db.QueryRowContext(ctx, "SELECT sum(size) FROM segment").Scan(&done)
			trace.Progress(ctx, x.dir, done)
		}
		if isBroken(ctx, err) && !rebuild {
			rebuild, more = true, true
			err = x.replace(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("trace index %s: %w", x.path, err)
	}
	return nil
}

// replace opens an empty database, and closes the one before. A statement that runs there goes on; the
// next one of its query fails, and read repeats the query. The caller holds mu.
func (x *Index) replace(ctx context.Context) error {
	if err := sqlitedb.Remove(x.path); err != nil {
		return err
	}
	db, err := sqlitedb.Recreate(ctx, x.path, options)
	if err != nil {
		return err
	}
	old := x.db
	x.db = db
	_ = old.Close() // nobody needs it
	return nil
}

// linesAtOnce is how many lines one transaction adds: other processes wait for it.
const linesAtOnce = 20_000

// extend adds lines to the index, and reports whether there may be more. The caller holds mu.
func (x *Index) extend(ctx context.Context) (more bool, err error) {
	if b, err := x.backlog(ctx, x.db); err != nil || b.removed == 0 && !b.grown {
		return false, err
	}
	err = sqlitedb.Update(ctx, x.db, func(tx *sql.Tx) error {
		b, err := x.backlog(ctx, tx) // again: another process may have done it
		if err != nil {
			return err
		}
		if err := b.forget(ctx, tx); err != nil {
			return err
		}
		f, err := newFiller(ctx, tx)
		for i := 0; i < len(b.segments) && !more && err == nil; i++ {
			if err = f.fill(ctx, tx, x.dir, b.segments[i]); errors.Is(err, fs.ErrNotExist) { // retention was quicker
				err = nil
			}
			more = f.lines == linesAtOnce
		}
		return err
	})
	return more, err
}

// backlog lists the changes of the journal that the index lacks.
type backlog struct {
	removed  int64     // the last indexed segment that retention has removed, 0 for none
	segments []covered // from the first that may have unindexed lines on
	grown    bool      // one of segments is longer than its indexed part
}

type covered struct {
	first, size int64
	tail        []byte
}

// backlog compares the index with the journal. Its error is errStale if the
// indexed lines are not those of the journal.
func (x *Index) backlog(ctx context.Context, q sqlitedb.Querier) (b backlog, err error) {
	names, err := trace.Segments(x.dir)
	if err != nil {
		return b, err
	}
	var c covered
	for err := range sqlitedb.Rows(ctx, q, []any{&c.first, &c.size, &c.tail}, "SELECT first, size, tail FROM segment ORDER BY first") {
		switch {
		case err != nil:
			return b, err
		case b.segments == nil && (len(names) == 0 || c.first < segmentSeq(names[0])):
			b.removed = c.first // retention removes the oldest only
		case len(names) == 0 || c.first != segmentSeq(names[0]) || !c.stands(filepath.Join(x.dir, names[0])):
			return b, errStale
		default:
			b.segments, names = []covered{c}, names[1:] // only the last one may have grown
		}
	}
	for _, name := range names {
		b.segments = append(b.segments, covered{first: segmentSeq(name)})
	}
	for i, c := range b.segments {
		fi, err := os.Stat(filepath.Join(x.dir, trace.SegmentName(uint64(c.first)))) // #nosec G115: from a file name
		b.grown = b.grown || i > 0 || err == nil && fi.Size() > c.size
	}
	return b, nil
}

func segmentSeq(name string) int64 {
	seq, _ := trace.SegmentSeq(name)
	return int64(seq) // #nosec G115: 15 digits
}

const tailBytes = 100

// stands reports whether the indexed part is still in the file at path.
func (c covered) stands(path string) bool {
	tail := make([]byte, len(c.tail))
	f, err := os.Open(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) // retention was quicker
	}
	defer f.Close()
	_, err = f.ReadAt(tail, c.size-int64(len(tail)))
	return err == nil && bytes.Equal(tail, c.tail)
}

// forget takes the rows of removed segments out of the index.
func (b backlog) forget(ctx context.Context, tx *sql.Tx) error {
	if b.removed == 0 {
		return nil
	}
	used := "SELECT " + strings.Join(columns[:], " FROM record UNION SELECT ") + " FROM record UNION SELECT context FROM branch"
	for _, statement := range []string{
		"INSERT OR IGNORE INTO loose SELECT link.record, key FROM record CROSS JOIN link ON kind = 0 AND key = envelope WHERE segment <= ?1",
		"DELETE FROM record WHERE segment <= ?1",
		"DELETE FROM segment WHERE first <= ?1",
		"DELETE FROM block WHERE segment <= ?1",
		"DELETE FROM posting WHERE block < (SELECT coalesce(min(id), 9223372036854775807) FROM block) AND ?1",
		"DELETE FROM total WHERE segment <= ?1",
		"DELETE FROM branch WHERE segment <= ?1",
		"DELETE FROM link WHERE record < (SELECT coalesce(min(id), 9223372036854775807) FROM record) AND ?1",
		"DELETE FROM loose WHERE record < (SELECT coalesce(min(id), 9223372036854775807) FROM record) AND ?1",
		"DELETE FROM word WHERE ?1 AND id NOT IN (" + used + ")",
	} {
		if _, err := tx.ExecContext(ctx, statement, b.removed); err != nil {
			return err
		}
	}
	return nil
}

// filler adds lines to the index in one transaction, which closes the statements when it ends.
type filler struct {
	lines  int
	last   int64 // the id of the last record
	words  map[word]int64
	block  blockRow
	posted map[posting]bool // of block
	tally  tally            // of the segment

	addRecord, addLink, addLoose, addWord, addPosting *sql.Stmt
}

type word struct {
	field int
	value string
}

// posting is a word or a flag in a block.
type posting struct{ field, word int64 }

// blockRecords is the most records of a block.
const blockRecords = 4096

// blockRow is a row of block.
type blockRow struct{ id, segment, first, last, count, since, until, tokens, us int64 }

func (b *blockRow) columns() []any {
	return []any{&b.id, &b.segment, &b.first, &b.last, &b.count, &b.since, &b.until, &b.tokens, &b.us}
}

// add adds a record. It reports whether the block is another one now.
func (b *blockRow) add(id int64, r row) (begun bool) {
	if begun = b.segment != r.segment || b.count == blockRecords; begun {
		*b = blockRow{id: b.id + 1, segment: r.segment, first: id, since: r.time, until: r.time}
	}
	b.last, b.count = id, b.count+1
	b.since, b.until = min(b.since, r.time), max(b.until, r.time)
	b.tokens, b.us = max(b.tokens, r.tokens), max(b.us, r.us)
	return begun
}

func newFiller(ctx context.Context, tx *sql.Tx) (*filler, error) {
	f := &filler{words: map[word]int64{}, posted: map[posting]bool{}, tally: newTally()}
	var errs [7]error
	f.addRecord, errs[0] = tx.PrepareContext(ctx, "INSERT INTO record VALUES (?"+strings.Repeat(", ?", 8+numFields)+")")
	f.addLink, errs[1] = tx.PrepareContext(ctx, "INSERT INTO link VALUES (?, ?, ?)")
	f.addWord, errs[2] = tx.PrepareContext(ctx, "INSERT INTO word VALUES (NULL, ?, ?) ON CONFLICT DO UPDATE SET value = value RETURNING id")
	f.addPosting, errs[3] = tx.PrepareContext(ctx, "INSERT OR IGNORE INTO posting VALUES (?, ?, ?)")
	errs[4] = tx.QueryRowContext(ctx, "SELECT coalesce(max(id), 0) FROM record").Scan(&f.last)
	_, errs[5] = sqlitedb.Collect(ctx, tx, &f.block, f.block.columns(), "SELECT * FROM block ORDER BY id DESC LIMIT 1")
	f.addLoose, errs[6] = tx.PrepareContext(ctx, "INSERT INTO loose SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM record WHERE envelope = ?2)")
	return f, errors.Join(errs[:]...)
}

// fill adds the lines of a segment behind its indexed part.
func (f *filler) fill(ctx context.Context, tx *sql.Tx, dir string, c covered) error {
	path := filepath.Join(dir, trace.SegmentName(uint64(c.first))) // #nosec G115: from a file name
	var failed error
	err := trace.ReadLines(path, c.size, func(line []byte, offset int64, whole bool) bool {
		if !whole || f.lines == linesAtOnce {
			return false
		}
		f.lines++
		c.size = offset + int64(len(line)) + 1
		c.tail = append(append(c.tail[:0], line[max(0, len(line)+1-tailBytes):]...), '\n')
		if r, _, err := trace.ParseLine(line); err == nil { // else Verify names it
			failed = f.add(ctx, tx, r, place{c.first, offset, int64(len(line)) + 1})
		}
		return failed == nil
	})
	if err = errors.Join(err, failed, f.saveBlock(ctx, tx), f.tally.save(ctx, tx, c.first, f.number)); err != nil {
		return err
	}
	f.tally = newTally()
	const statement = "INSERT OR REPLACE INTO segment VALUES (?, ?, ?)"
	_, err = tx.ExecContext(ctx, statement, c.first, c.size, blob(string(c.tail)))
	return err
}

func (f *filler) add(ctx context.Context, tx *sql.Tx, r *trace.Record, p place) error {
	const far = 1 << 40 // a seq beyond it is forged
	id := f.last + 1
	if seq := r.Seq; seq < far && int64(seq) > id {
		id = int64(seq)
	}
	f.last = id
	row := rowOf(r, p)
	args := make([]any, 0, 9+numFields)
	args = append(args, id, p.segment, p.start, p.size, row.time, row.flags, row.envelope, row.tokens, row.us)
	var words [numFields]int64
	for field, value := range row.fields {
		n, err := f.number(word{field, value})
		if err != nil {
			return err
		}
		words[field] = n
		args = append(args, n)
	}
	if _, err := f.addRecord.Exec(args...); err != nil {
		return err
	}
	if f.block.count == blockRecords || f.block.segment != p.segment {
		if err := f.saveBlock(ctx, tx); err != nil {
			return err
		}
	}
	if f.block.add(id, row) {
		clear(f.posted)
	}
	for one := range postings(row.flags, words) {
		if f.posted[one] {
			continue
		}
		f.posted[one] = true
		if _, err := f.addPosting.Exec(one.field, one.word, f.block.id); err != nil {
			return err
		}
	}
	f.tally.add(r, id)
	for kind, keys := range links(r) {
		for _, k := range keys {
			_, err := f.addLink.Exec(kind, k, id)
			if err == nil && kind == linkCorrelation {
				_, err = f.addLoose.Exec(id, k)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// number returns the number of a word, which it adds if needed.
func (f *filler) number(w word) (id int64, err error) {
	if id, ok := f.words[w]; ok {
		return id, nil
	}
	err = f.addWord.QueryRow(w.field, blob(w.value)).Scan(&id)
	f.words[w] = id
	return id, err
}

// saveBlock writes the block that records are added to, if there is one.
func (f *filler) saveBlock(ctx context.Context, tx *sql.Tx) error {
	if f.block.count == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO block VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", f.block.columns()...)
	return err
}

// postings yields what the posting table has of a record.
func postings(flags int64, words [numFields]int64) iter.Seq[posting] {
	return func(yield func(posting) bool) {
		for field, w := range words {
			if !yield(posting{int64(field), w}) {
				return
			}
		}
		for bit := int64(0); flags>>bit != 0; bit++ {
			if flags>>bit&1 != 0 && !yield(posting{numFields, bit}) {
				return
			}
		}
	}
}

type row struct {
	place
	time, flags, envelope, tokens, us int64
	fields                            [numFields]string
}

func rowOf(r *trace.Record, p place) row {
	a := r.AuditOrEmpty()
	out := row{p, r.Time().UnixMicro(), flagsOf(r), key(r.ID), 0, microseconds(a), fieldsOf(r)}
	if a.Tokens != nil {
		out.tokens = int64(a.Tokens.Delivered)
	}
	return out
}

// links returns the keys of the ids in a record, by the kind of link.
func links(r *trace.Record) (out [2][]int64) {
	for _, id := range r.CorrelationID {
		out[linkCorrelation] = append(out[linkCorrelation], key(id))
	}
	if id, ok := rawjson.Get(r.Payload, "id"); ok {
		out[linkRPC] = []int64{key(text(id))}
	}
	for kind, keys := range out {
		slices.Sort(keys)
		out[kind] = slices.Compact(keys)
	}
	return out
}

// text returns the content of a JSON string, and any other JSON value unchanged.
func text(value []byte) string {
	if rawjson.KindOf(value) == rawjson.String {
		return rawjson.Unquote(value)
	}
	return string(value)
}

// key returns 64 bits of an id. Several ids may have the same key: then a query
// reads more lines. The key of an envelope id is the beginning of its UUIDv7,
// which grows with time, so that rows are added at the end of the tables.
func key(id string) int64 {
	if rest, ok := strings.CutPrefix(id, "env_"); ok && len(rest) == 36 {
		if b, err := hex.DecodeString(rest[:8] + rest[9:13] + rest[14:18]); err == nil {
			return int64(binary.BigEndian.Uint64(b)) // #nosec G115: bits are kept
		}
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	return int64(h.Sum64()) // #nosec G115: bits are kept
}
