package query

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
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
// Blocks and postings say where in the journal a value occurs, so a query reads
// only the rows of these blocks, in either direction. Sums and branches are per
// segment, so that retention can take a segment out.
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
	id        INTEGER PRIMARY KEY, -- the seq, as long as the journal is sound
	segment   INTEGER NOT NULL,
	start     INTEGER NOT NULL, -- of the line, in bytes
	size      INTEGER NOT NULL, -- with the newline
	time      INTEGER NOT NULL, -- microseconds since 1970
	flags     INTEGER NOT NULL,
	envelope  INTEGER NOT NULL, -- key of the envelope id
	tokens    INTEGER NOT NULL, -- delivered
	us        INTEGER NOT NULL, -- duration in microseconds
	` + strings.Join(columns[:], " INTEGER NOT NULL, ") + ` INTEGER NOT NULL
);
CREATE INDEX record_envelope ON record (envelope);
CREATE TABLE link (
	kind   INTEGER NOT NULL, -- linkCorrelation or linkRPC
	key    INTEGER NOT NULL,
	record INTEGER NOT NULL,
	PRIMARY KEY (kind, key, record)
) WITHOUT ROWID;
CREATE TABLE loose ( -- correlations to an id that was no record before, or was removed
	record INTEGER NOT NULL,
	key    INTEGER NOT NULL,
	PRIMARY KEY (record, key)
) WITHOUT ROWID;
CREATE TABLE block ( -- at most blockRecords records of a segment that follow each other
	id      INTEGER PRIMARY KEY,
	segment INTEGER NOT NULL,
	first   INTEGER NOT NULL, -- its records
	last    INTEGER NOT NULL,
	count   INTEGER NOT NULL,
	since   INTEGER NOT NULL, -- their times
	until   INTEGER NOT NULL,
	tokens  INTEGER NOT NULL, -- the most of one of them
	us      INTEGER NOT NULL
);
CREATE TABLE posting ( -- a block has records with a word in a field; if field is numFields, word is the bit of a flag
	field INTEGER NOT NULL,
	word  INTEGER NOT NULL,
	block INTEGER NOT NULL,
	PRIMARY KEY (field, word, block)
) WITHOUT ROWID;
CREATE TABLE total ( -- sums by some words, where the others are 0
	grain     INTEGER NOT NULL, -- of grains: which words
	principal INTEGER NOT NULL,
	team      INTEGER NOT NULL,
	server    INTEGER NOT NULL,
	tool      INTEGER NOT NULL,
	start     INTEGER NOT NULL, -- of the hour or day, in seconds since 1970
	segment   INTEGER NOT NULL,
	` + strings.Join(sumNames, " INTEGER NOT NULL, ") + ` INTEGER NOT NULL,
	PRIMARY KEY (grain, principal, team, server, tool, start, segment)
) WITHOUT ROWID;
CREATE TABLE branch (
	context   INTEGER NOT NULL,
	segment   INTEGER NOT NULL,
	principal INTEGER NOT NULL,
	opened    INTEGER NOT NULL, -- the records of the segment that open and close it, or 0
	closed    INTEGER NOT NULL,
	last      INTEGER NOT NULL,
	` + strings.Join(branchNames, " INTEGER NOT NULL, ") + ` INTEGER NOT NULL,
	PRIMARY KEY (context, segment)
) WITHOUT ROWID;
CREATE INDEX branch_opened ON branch (opened) WHERE opened > 0;
CREATE INDEX branch_open ON branch (opened) WHERE opened > 0 AND closed = 0;
CREATE INDEX branch_used ON branch (used) WHERE used > 0;
CREATE INDEX branch_principal ON branch (principal, opened) WHERE opened > 0;`

const (
	linkCorrelation = iota // key of an id that the record correlates to
	linkRPC                // key of its JSON-RPC id
)

var columns = [numFields]string{"context", "kind", "session", "principal", "server", "tool", "sender", "receivers", "team", "reason", "rules"}

// Index answers queries of the journal in a directory. Its methods are safe for concurrent use.
type Index struct {
	dir       string
	path      string // of the database
	temporary bool   // Close removes it
	instance  string // of its records, if it is one of several in a Set

	mu sync.Mutex // held while the index is extended; guards db
	db *sql.DB
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

// options are those of the database. With another schema it needs another ApplicationID: then it is made again.
var options = sqlitedb.Options{
	Migrations: []string{schema}, ApplicationID: 0x66677479, BusyTimeout: time.Minute,
	Pragmas: []string{"cache_size(-16384)", "temp_store(MEMORY)"},
}

// Close closes the index. No query may be running.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	err := x.db.Close()
	if x.temporary {
		err = errors.Join(err, os.RemoveAll(filepath.Dir(x.path)))
	}
	return err
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
	err = x.read(ctx, func(db *sql.DB, lines *lineReader) error {
		return f.places(ctx, db, func(_ int64, p place) (bool, error) {
			if p.compare(last) <= 0 {
				return true, nil
			}
			r, err := lines.record(p)
			if err != nil || r == nil || !f.Match(r) {
				return true, err
			}
			last = p
			return yield(r), nil
		})
	})
	return last, err
}

// read calls f with the database and a reader of lines, and again with a new index if f fails because of a damaged
// or stale one.
func (x *Index) read(ctx context.Context, f func(*sql.DB, *lineReader) error) error {
	once := func(db *sql.DB) error {
		lines := &lineReader{dir: x.dir}
		defer func() { lines.file.Close() }()
		return f(db, lines)
	}
	used := x.database()
	err := once(used)
	if isBroken(ctx, err) {
		if err = x.refresh(ctx, x.database() == used); err == nil { // else another query has made it again
			err = once(x.database())
		}
	}
	return err
}

var errStale = errors.New("the index does not fit the journal")

// isBroken reports whether an error can be the index's own fault, so that a new one helps. A damaged
// index also lacks tables and has values of other types.
func isBroken(ctx context.Context, err error) bool {
	_, isFile := errors.AsType[*fs.PathError](err)
	_, isUsage := errors.AsType[*UsageError](err)
	return err != nil && ctx.Err() == nil && !sqlitedb.IsUnavailable(err) && !isFile && !isUsage
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

// places calls yield with the id and the place of each record that may match f, in the order of the
// journal, until it returns false.
func (f *Filter) places(ctx context.Context, db *sql.DB, yield func(id int64, p place) (bool, error)) error {
	const selection = "SELECT id, segment, start, size FROM record "
	const byLink = "WHERE id IN (SELECT record FROM link WHERE kind = ? AND key IN (?, ?)) ORDER BY id"
	each := func(query string, args ...any) (more bool, err error) {
		var id int64
		var p place
		for err := range sqlitedb.Rows(ctx, db, []any{&id, &p.segment, &p.start, &p.size}, query, args...) {
			if err != nil {
				return false, err
			}
			if more, err := yield(id, p); !more || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	var err error
	switch id, isRPC := strings.CutPrefix(f.Correlates, "rpc:"); {
	case f.ID != "":
		_, err = each(selection+"WHERE envelope = ? ORDER BY id", key(f.ID))
		return err
	case isRPC: // a message has the id as a JSON value, the index has the content of a string
		_, err = each(selection+byLink, linkRPC, key(id), key(text([]byte(id))))
		return err
	case f.Correlates != "":
		_, err = each(selection+byLink, linkCorrelation, key(f.Correlates), key(f.Correlates))
		return err
	}
	n, err := f.narrow(ctx, db)
	if err != nil || n.none {
		return err
	}
	if f.Orphans {
		_, err = each(selection+"WHERE id IN (SELECT record FROM loose WHERE NOT EXISTS (SELECT 1 FROM record r WHERE r.envelope = loose.key)) AND "+n.terms+" ORDER BY id", n.args...)
		return err
	}
	blocks, err := n.blocks(ctx, db, "id")
	for i := 0; i < len(blocks) && err == nil; i++ {
		var more bool
		if more, err = each(selection+"WHERE id BETWEEN ? AND ? AND "+n.terms+" ORDER BY id", append([]any{blocks[i].first, blocks[i].last}, n.args...)...); !more {
			break
		}
	}
	return err
}

// narrowed is what the index knows of a filter.
type narrowed struct {
	none    bool   // no record can match
	terms   string // conditions on rows of record
	args    []any
	inBlock string // conditions on rows of block
	blockBy []any
}

// narrow looks up the words of f.
func (f *Filter) narrow(ctx context.Context, db *sql.DB) (n narrowed, err error) {
	terms, inBlock := []string{"TRUE"}, []string{"TRUE"}
	add := func(block, term string, args ...any) {
		terms, n.args = append(terms, term), append(n.args, args...)
		inBlock, n.blockBy = append(inBlock, block), append(n.blockBy, args...)
	}
	const posted = "id IN (SELECT block FROM posting WHERE field = "
	if want := f.wantFlags(); want != 0 {
		for bit := range 63 {
			if want&(1<<bit) != 0 {
				add(fmt.Sprintf("%s%d AND word = ?)", posted, numFields), "flags & (1 << ?) <> 0", bit)
			}
		}
	}
	for field, c := range f.conditions() {
		if c.match == nil {
			continue
		}
		ids, err := c.words(ctx, db, field)
		switch {
		case err != nil:
			return n, err
		case len(ids) == 0:
			n.none = true
			return n, nil
		case len(ids) <= 100: // numbers in the statement are faster
			list := strings.Trim(string(rawjson.Marshal(ids)), "[]")
			add(fmt.Sprintf("%s%d AND word IN (%s))", posted, field, list), columns[field]+" IN ("+list+")")
		case len(ids) <= maxWords:
			list := string(rawjson.Marshal(ids))
			add(fmt.Sprintf("%s%d AND word IN (SELECT value FROM json_each(?)))", posted, field), columns[field]+" IN (SELECT value FROM json_each(?))", list)
		}
	}
	if f.Seq[1] > 0 {
		lo, hi := int64(min(f.Seq[0], math.MaxInt64)), int64(min(f.Seq[1], math.MaxInt64)) // #nosec G115: bounded
		add("last >= ? AND first <= ?", "id BETWEEN ? AND ?", lo, hi)
	}
	if !f.Since.IsZero() || !f.Until.IsZero() {
		since, until := f.Since.UnixMicro(), int64(math.MaxInt64)
		if !f.Until.IsZero() {
			until = f.Until.UnixMicro() // Match compares exactly
		}
		add("until >= ? AND since <= ?", "time BETWEEN ? AND ?", since, until)
	}
	n.terms, n.inBlock = strings.Join(terms, " AND "), strings.Join(inBlock, " AND ")
	return n, nil
}

// maxWords bounds the words of a condition that the index looks at. Of more, the lines are read.
const maxWords = 20_000

// blocks returns the blocks that may have matching records, in an order of SQL.
func (n narrowed) blocks(ctx context.Context, db *sql.DB, order string) ([]blockRow, error) {
	var b blockRow
	return sqlitedb.Collect(ctx, db, &b, b.columns(), "SELECT * FROM block WHERE "+n.inBlock+" ORDER BY "+order, n.blockBy...)
}

// words returns the numbers of the words that a condition matches.
func (c condition) words(ctx context.Context, db *sql.DB, field int) (ids []int64, err error) {
	query, args := "SELECT id, value FROM word WHERE field = ? AND value >= ? AND value < ?", []any{field, blob(c.prefix), blob(c.prefix + "\xff")} // UTF-8 has no such byte
	if c.exact {
		query, args = "SELECT id, value FROM word WHERE field = ? AND value = ?", args[:2]
	}
	var id int64
	var value sql.RawBytes
	for err := range sqlitedb.Rows(ctx, db, []any{&id, &value}, query, args...) {
		if err != nil {
			return nil, err
		}
		if c.match(string(value)) {
			ids = append(ids, id)
		}
		if len(ids) > maxWords {
			break
		}
	}
	return ids, nil
}

// blob is a text as a parameter. It is never nil, which would be NULL.
func blob(s string) []byte { return append([]byte{}, s...) }

// A lineReader reads lines of one journal. It keeps the file of the last segment open.
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

// first returns the first record under a condition on rows of record, nil if there is none.
func (l *lineReader) first(ctx context.Context, db *sql.DB, condition string, arg any) (*trace.Record, error) {
	var p place
	at, err := sqlitedb.Collect(ctx, db, &p, []any{&p.segment, &p.start, &p.size}, "SELECT segment, start, size FROM record WHERE "+condition+" LIMIT 1", arg)
	if err != nil || len(at) == 0 {
		return nil, err
	}
	return l.record(p)
}
