package query

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// indexName is the name of the database. It begins like no segment.
const indexName = "index.sqlite"

// schema has one row for each record, in the order of the journal. Texts are
// numbers of rows in word. Ids are 64-bit keys, which several ids may share.
var schema = `
CREATE TABLE segment (
	first INTEGER PRIMARY KEY, -- seq of the first record, as in the file's name
	size  INTEGER NOT NULL,    -- bytes that are indexed
	tail  BLOB NOT NULL        -- the last of these bytes
);
CREATE TABLE word (
	id    INTEGER PRIMARY KEY,
	field INTEGER NOT NULL,
	value BLOB NOT NULL,
	UNIQUE (field, value)
);
CREATE TABLE record (
	id        INTEGER PRIMARY KEY,
	segment   INTEGER NOT NULL,
	start     INTEGER NOT NULL, -- of the line, in bytes
	size      INTEGER NOT NULL, -- with the newline
	time      INTEGER NOT NULL, -- microseconds since 1970
	flags     INTEGER NOT NULL,
	envelope  INTEGER NOT NULL, -- key of the envelope id
	` + strings.Join(columns[:], " INTEGER NOT NULL, ") + ` INTEGER NOT NULL
);
CREATE INDEX record_envelope ON record (envelope);
CREATE INDEX record_context ON record (context);
CREATE INDEX record_session ON record (session);
CREATE INDEX record_time ON record (time);
CREATE INDEX record_rare ON record (flags) WHERE flags & 127 <> 0; -- rareFlags
CREATE TABLE link (
	kind   INTEGER NOT NULL, -- linkCorrelation or linkRPC
	key    INTEGER NOT NULL,
	record INTEGER NOT NULL,
	PRIMARY KEY (kind, key, record)
) WITHOUT ROWID;`

const (
	linkCorrelation = iota // key of an id that the record correlates to
	linkRPC                // key of a JSON-RPC id on either side
)

var columns = [numFields]string{"context", "kind", "session", "principal", "server", "tool", "sender", "receivers"}

// Index answers queries of the journal in a directory. Its methods are safe for concurrent use.
type Index struct {
	dir       string
	path      string // of the database
	temporary bool   // Close removes it

	mu       sync.Mutex // held while the index is extended; guards the fields below
	db       *sql.DB
	replaced []*sql.DB // damaged ones, which queries may still be using
}

// Open opens the index of the journal in dir, and creates it if needed. It lies in dir, else in
// the user's cache directory, else in a temporary directory that Close removes.
func Open(ctx context.Context, dir string) (*Index, error) {
	if _, err := trace.Segments(dir); err != nil {
		return nil, err
	}
	x := &Index{dir: dir}
	var err error
	for _, x.path = range locations(dir) {
		if os.MkdirAll(filepath.Dir(x.path), 0o700) != nil {
			continue
		}
		if x.db, err = sqlitedb.Recreate(ctx, x.path, options); err == nil {
			return x, nil
		}
	}
	tmp, err := os.MkdirTemp("", "foldgate-trace-")
	if err == nil {
		x.path, x.temporary = filepath.Join(tmp, indexName), true
		if x.db, err = sqlitedb.Recreate(ctx, x.path, options); err == nil {
			return x, nil
		}
		os.RemoveAll(tmp)
	}
	return nil, fmt.Errorf("trace index: %w", err)
}

// locations returns the paths at which the index of dir may lie, best first. It
// removes cached indexes that did not grow for a month.
func locations(dir string) []string {
	out := []string{filepath.Join(dir, indexName)}
	cache, err := os.UserCacheDir()
	if err != nil {
		return out
	}
	cache = filepath.Join(cache, "foldgate")
	old, _ := filepath.Glob(filepath.Join(cache, "*", indexName))
	for _, path := range old {
		if fi, err := os.Stat(path); err == nil && time.Since(fi.ModTime()) > 30*24*time.Hour {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	for _, resolve := range []func(string) (string, error){filepath.EvalSymlinks, filepath.Abs} {
		if path, err := resolve(dir); err == nil {
			dir = path
		}
	}
	sum := sha256.Sum256([]byte(dir))
	return append(out, filepath.Join(cache, hex.EncodeToString(sum[:8]), indexName))
}

// RemoveIndex removes what this user has of indexes of the journal in dir. The next query makes a
// new one.
func RemoveIndex(dir string) (err error) {
	for _, path := range locations(dir) {
		err = cmp.Or(err, sqlitedb.Remove(path))
	}
	return err
}

var options = sqlitedb.Options{
	Migrations: []string{schema}, ApplicationID: 0x66677478, BusyTimeout: time.Minute,
	Pragmas: []string{"cache_size(-16384)", "temp_store(MEMORY)"},
}

// Close closes the index. No query may be running.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var errs []error
	for _, db := range append(x.replaced, x.db) {
		errs = append(errs, db.Close())
	}
	if x.temporary {
		errs = append(errs, os.RemoveAll(filepath.Dir(x.path)))
	}
	return errors.Join(errs...)
}

// Select extends the index to the end of the journal and yields the records that f selects, in the
// order of the journal. It may run beside the writer. An error ends it: a [*UsageError] if f is
// malformed. It passes over lines that are not records; Verify names them.
func (x *Index) Select(ctx context.Context, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		if err := x.refresh(ctx, false); err != nil {
			return err
		}
		var failed error
		if f.Orphans {
			contexts, err := x.contexts(ctx)
			if err != nil {
				return err
			}
			all := yield
			yield = func(r *trace.Record) bool {
				var orphan bool
				orphan, failed = x.isOrphan(ctx, r, contexts)
				return failed == nil && (!orphan || all(r))
			}
		}
		if f.Chain == "" {
			_, err := x.matching(ctx, f, yield)
			return errors.Join(err, failed)
		}
		chain, err := x.chain(ctx, f.Chain)
		for _, r := range chain {
			if f.Match(r) && !yield(r) {
				break
			}
		}
		return errors.Join(err, failed)
	})
}

// sequence turns a function that yields records into an iterator that checks f and keeps its
// limit. The function's ctx ends when no more records are wanted.
func sequence(ctx context.Context, f Filter, run func(ctx context.Context, yield func(*trace.Record) bool) error) iter.Seq2[*trace.Record, error] {
	return func(yield func(*trace.Record, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		n, more := 0, true
		err := f.Validate()
		if err == nil {
			err = run(ctx, func(r *trace.Record) bool {
				n++
				if more = yield(r, nil) && n != f.Limit; !more {
					stop()
				}
				return more
			})
		}
		if err != nil && more {
			yield(nil, err)
		}
	}
}

// matching yields the records that f matches, and returns the place of the last
// one. With a new index the query goes on behind that place.
func (x *Index) matching(ctx context.Context, f Filter, yield func(*trace.Record) bool) (last place, err error) {
	err = x.retry(ctx, func() error {
		db := x.database()
		query, args, err := f.sql(ctx, db)
		if err != nil || query == "" {
			return err
		}
		lines := &lineReader{dir: x.dir}
		defer func() { lines.file.Close() }()
		var p place
		for err := range sqlitedb.Rows(ctx, db, []any{&p.segment, &p.start, &p.size}, query, args...) {
			if err != nil {
				return err
			}
			if p.compare(last) <= 0 {
				continue
			}
			r, err := lines.record(p)
			if err != nil {
				return err
			}
			if r != nil && f.Match(r) {
				if last = p; !yield(r) {
					return nil
				}
			}
		}
		return nil
	})
	return last, err
}

// retry calls f, and again with a new index if f fails because of a damaged or stale one.
func (x *Index) retry(ctx context.Context, f func() error) error {
	err := f()
	if isBroken(ctx, err) {
		if err = x.refresh(ctx, true); err == nil {
			err = f()
		}
	}
	return err
}

var errStale = errors.New("the index does not fit the journal")

// isBroken reports whether an error can be the index's own fault.
func isBroken(ctx context.Context, err error) bool {
	_, isFile := errors.AsType[*fs.PathError](err)
	return err != nil && ctx.Err() == nil && !sqlitedb.IsInUse(err) && !isFile
}

// place is where a line is.
type place struct{ segment, start, size int64 }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.segment, q.segment), cmp.Compare(p.start, q.start))
}

func (x *Index) database() *sql.DB {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.db
}

// sql returns a query for the places of the lines that may match f, "" if none can.
func (f *Filter) sql(ctx context.Context, db *sql.DB) (query string, args []any, err error) {
	const selection = "SELECT segment, start, size FROM record "
	const byLink = "WHERE id IN (SELECT record FROM link WHERE kind = ? AND key IN (?, ?)) ORDER BY id"
	switch id, isRPC := strings.CutPrefix(f.Correlates, "rpc:"); {
	case f.ID != "":
		return selection + "WHERE envelope = ? ORDER BY id", []any{key(f.ID)}, nil
	case isRPC: // a message has the id as a JSON value, the index has the content of a string
		return selection + byLink, []any{linkRPC, key(id), key(text([]byte(id)))}, nil
	case f.Correlates != "":
		return selection + byLink, []any{linkCorrelation, key(f.Correlates), key(f.Correlates)}, nil
	}
	terms := []string{"TRUE"}
	from := "record"
	if want := f.wantFlags(); want != 0 {
		terms, args = append(terms, "flags & ? = ?"), append(args, want, want)
		if f.Orphans {
			terms = append(terms, "id IN (SELECT record FROM link WHERE kind = 0 AND NOT EXISTS (SELECT 1 FROM record r WHERE r.envelope = link.key))")
		}
		if want&rareFlags != 0 {
			from, terms = "record INDEXED BY record_rare", append(terms, fmt.Sprintf("flags & %d <> 0", rareFlags))
		}
	}
	for field, c := range f.conditions() {
		if c.match == nil {
			continue
		}
		ids, err := c.words(ctx, db, field)
		if err != nil || len(ids) == 0 {
			return "", nil, err
		}
		column := columns[field]
		if len(ids) > 1000 { // an index on the column would not narrow enough
			column = "+" + column
		} else if field == fieldContext || field == fieldSession {
			from = "record" // with the index on the column
		}
		terms, args = append(terms, column+" IN (SELECT value FROM json_each(?))"), append(args, string(rawjson.Marshal(ids)))
	}
	if !f.Since.IsZero() || !f.Until.IsZero() {
		since, until := f.Since.UnixMicro(), int64(math.MaxInt64)
		if !f.Until.IsZero() {
			until = f.Until.UnixMicro() // Match compares exactly
		}
		const few = 20_000
		var n int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM record WHERE time BETWEEN ? AND ? LIMIT ?)", since, until, few).Scan(&n); err != nil {
			return "", nil, err
		}
		term := "+time BETWEEN ? AND ?" // without the index on time
		if from == "record" && n < few {
			from, term = "record INDEXED BY record_time", term[1:]
		}
		terms, args = append(terms, term), append(args, since, until)
	}
	return strings.Replace(selection, "record", from, 1) + "WHERE " + strings.Join(terms, " AND ") + " ORDER BY id", args, nil
}

// words returns the numbers of the words that a condition matches.
func (c condition) words(ctx context.Context, db *sql.DB, field int) (ids []int64, err error) {
	const query = "SELECT id, value FROM word WHERE field = ? AND value >= ? AND value < ?"
	var id int64
	var value sql.RawBytes
	for err := range sqlitedb.Rows(ctx, db, []any{&id, &value}, query, field, blob(c.prefix), blob(c.prefix+"\xff")) { // UTF-8 has no such byte
		if err != nil {
			return nil, err
		}
		if c.match(string(value)) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// blob is a text as a parameter. It is never nil, which would be NULL.
func blob(s string) []byte { return append([]byte{}, s...) }

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

// replace opens an empty database. Queries that run keep the one before. The caller holds mu.
func (x *Index) replace(ctx context.Context) error {
	if err := sqlitedb.Remove(x.path); err != nil {
		return err
	}
	db, err := sqlitedb.Recreate(ctx, x.path, options)
	if err != nil {
		return err
	}
	x.replaced, x.db = append(x.replaced, x.db), db
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
	used := "SELECT " + strings.Join(columns[:], " FROM record UNION SELECT ") + " FROM record"
	for _, statement := range []string{
		"DELETE FROM record WHERE segment <= ?1",
		"DELETE FROM segment WHERE first <= ?1",
		"DELETE FROM link WHERE record < (SELECT coalesce(min(id), 9223372036854775807) FROM record) AND ?1",
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
	lines                       int
	words                       map[word]int64
	addRecord, addLink, addWord *sql.Stmt
}

type word struct {
	field int
	value string
}

func newFiller(ctx context.Context, tx *sql.Tx) (*filler, error) {
	f := &filler{words: map[word]int64{}}
	var errs [3]error
	f.addRecord, errs[0] = tx.PrepareContext(ctx, "INSERT INTO record VALUES (NULL"+strings.Repeat(", ?", 6+numFields)+")")
	f.addLink, errs[1] = tx.PrepareContext(ctx, "INSERT INTO link VALUES (?, ?, ?)")
	f.addWord, errs[2] = tx.PrepareContext(ctx, "INSERT INTO word VALUES (NULL, ?, ?) ON CONFLICT DO UPDATE SET value = value RETURNING id")
	return f, errors.Join(errs[:]...)
}

// fill adds the lines of a segment behind its indexed part.
func (f *filler) fill(ctx context.Context, tx *sql.Tx, dir string, c covered) error {
	path := filepath.Join(dir, trace.SegmentName(uint64(c.first))) // #nosec G115: from a file name
	var failed error
	err := trace.ReadLines(path, c.size, func(line []byte, at int64, whole bool) bool {
		if !whole || f.lines == linesAtOnce {
			return false
		}
		f.lines++
		c.size = at + int64(len(line)) + 1
		c.tail = append(append(c.tail[:0], line[max(0, len(line)+1-tailBytes):]...), '\n')
		if r, _, err := trace.ParseLine(line); err == nil { // else Verify names it
			failed = f.add(r, place{c.first, at, int64(len(line)) + 1})
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	const statement = "INSERT OR REPLACE INTO segment VALUES (?, ?, ?)"
	_, err = tx.ExecContext(ctx, statement, c.first, c.size, blob(string(c.tail)))
	return err
}

func (f *filler) add(r *trace.Record, p place) error {
	row := rowOf(r, p)
	args := make([]any, 0, 6+numFields)
	args = append(args, p.segment, p.start, p.size, row.time, row.flags, row.envelope)
	for field, value := range row.fields {
		id, err := f.number(word{field, value})
		if err != nil {
			return err
		}
		args = append(args, id)
	}
	result, err := f.addRecord.Exec(args...)
	if err != nil {
		return err
	}
	id, err := result.LastInsertId()
	if err != nil {
		return err
	}
	for kind, keys := range links(r) {
		for _, k := range keys {
			if _, err := f.addLink.Exec(kind, k, id); err != nil {
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

type row struct {
	place
	time, flags, envelope int64
	fields                [numFields]string
}

func rowOf(r *trace.Record, p place) row {
	return row{p, r.Time().UnixMicro(), flagsOf(r), key(r.ID), fieldsOf(r)}
}

// links returns the keys of the ids in a record, by the kind of link.
func links(r *trace.Record) (out [2][]int64) {
	for _, id := range r.CorrelationID {
		out[linkCorrelation] = append(out[linkCorrelation], key(id))
	}
	for _, id := range rpcIDs(r) {
		out[linkRPC] = append(out[linkRPC], key(text(id)))
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

type lineReader struct {
	dir     string
	segment int64
	file    *os.File // nil if the segment is gone
	line    []byte
}

// record returns the record at p, nil if its segment is gone.
func (l *lineReader) record(p place) (r *trace.Record, err error) {
	if p.segment != l.segment {
		l.file.Close() // nil is no panic, but an error
		l.segment = p.segment
		l.file, err = os.Open(filepath.Join(l.dir, trace.SegmentName(uint64(p.segment)))) // #nosec G115: the kernel checks it
		if err != nil && !errors.Is(err, fs.ErrNotExist) {                                // retention was quicker
			return nil, err
		}
	}
	if l.file == nil {
		return nil, nil
	}
	if p.size <= 0 || p.size > 256<<20 { // no line of a journal is longer
		return nil, errStale
	}
	l.line = slices.Grow(l.line[:0], int(p.size))[:p.size]
	if _, err := l.file.ReadAt(l.line, p.start); err != nil || l.line[p.size-1] != '\n' {
		return nil, errStale
	}
	if r, _, err = trace.ParseLine(l.line[:p.size-1]); err != nil {
		return nil, errStale
	}
	return r, nil
}
