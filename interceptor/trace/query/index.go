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

// dropTables removes the tables of earlier schemas.
const dropTables = `DROP TABLE IF EXISTS segment; DROP TABLE IF EXISTS word; DROP TABLE IF EXISTS record; DROP TABLE IF EXISTS link;
DROP TABLE IF EXISTS block; DROP TABLE IF EXISTS posting; DROP TABLE IF EXISTS total; DROP TABLE IF EXISTS branch;
DROP TABLE IF EXISTS loose;`

const (
	linkCorrelation = iota // key of an id that the record correlates to
	linkRPC                // key of its JSON-RPC id
)

var columns = [numFields]string{"context", "kind", "session", "principal", "server", "tool", "sender", "receivers", "team", "reason"}

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

var options = sqlitedb.Options{
	Migrations: []string{"", "", "", "", dropTables + schema}, ApplicationID: 0x66677478, BusyTimeout: time.Minute,
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
func (n narrowed) blocks(ctx context.Context, db *sql.DB, order string) (all []blockRow, err error) {
	var b blockRow
	for err := range sqlitedb.Rows(ctx, db, b.columns(), "SELECT * FROM block WHERE "+n.inBlock+" ORDER BY "+order, n.blockBy...) {
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
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
	errs[5] = tx.QueryRowContext(ctx, "SELECT * FROM block ORDER BY id DESC LIMIT 1").Scan(f.block.columns()...)
	if errors.Is(errs[5], sql.ErrNoRows) {
		errs[5] = nil
	}
	f.addLoose, errs[6] = tx.PrepareContext(ctx, "INSERT INTO loose SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM record WHERE envelope = ?2)")
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
			failed = f.add(ctx, tx, r, place{c.first, at, int64(len(line)) + 1})
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
	err := db.QueryRowContext(ctx, "SELECT segment, start, size FROM record WHERE "+condition+" LIMIT 1", arg).Scan(&p.segment, &p.start, &p.size)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return l.record(p)
}
