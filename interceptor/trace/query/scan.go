package query

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Select yields the records of the journal in dir that f selects, in the order of the journal. It
// opens an [Index] for this one query, or with f.NoIndex scans the files.
func Select(ctx context.Context, dir string, f Filter) iter.Seq2[*trace.Record, error] {
	if f.NoIndex && f.Chain == "" && !f.Orphans {
		return Scan(ctx, dir, f)
	}
	return func(yield func(*trace.Record, error) bool) {
		x, err := Open(ctx, dir)
		if err != nil {
			yield(nil, err)
			return
		}
		defer x.Close()
		x.Select(ctx, f)(yield)
	}
}

// Scan reads every line and uses no index. Chain and Orphans have no effect.
func Scan(ctx context.Context, dir string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		return (&scanner{dir: dir, filter: f}).scan(ctx, yield)
	})
}

// Recent is [Scan] for records near the end of a long journal: it skips a segment
// if the next one begins before f.Since. If the clock was set back, it can miss
// records from shortly before that.
func Recent(ctx context.Context, dir string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		return (&scanner{dir: dir, filter: f, since: f.Since}).scan(ctx, yield)
	})
}

// Follow yields the records that f selects in several journals, first those that are there, then
// each new one, until ctx ends. It merges them by time. With f.Since set to now it yields new ones
// only. Chain and Orphans need all records and cannot be followed: that is a [*UsageError].
func Follow(ctx context.Context, dirs []string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		if f.Chain != "" || f.Orphans {
			return Usagef("follow", "--chain and --orphans look at all records and cannot follow")
		}
		var sources []iter.Seq2[*trace.Record, error]
		for _, dir := range dirs {
			sources = append(sources, func(yield func(*trace.Record, error) bool) {
				reader := scanner{dir: dir, filter: f}
				if err := reader.follow(ctx, func(r *trace.Record) bool { return yield(r, nil) }); err != nil {
					yield(nil, err)
				}
			})
		}
		err := merge(ctx, dirs, sources, yield)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
}

// scanner yields the records of one journal that a filter selects.
type scanner struct {
	dir       string
	filter    Filter
	since     time.Time // it passes over the segments that are followed by one that begins before
	at, after place     // it yields records behind both; at is the end of the last whole line that it read
}

// follow yields the records that there are and each new one, and nil each time it has read all.
func (s *scanner) follow(ctx context.Context, yield func(*trace.Record) bool) (err error) {
	more := true
	each := func(r *trace.Record) bool { more = yield(r); return more }
	if !s.filter.NoIndex {
		err = s.indexed(ctx, each)
	}
	for err == nil && more {
		if err = s.scan(ctx, each); err == nil && more {
			each(nil)
		}
	}
	return err
}

// indexed yields the records that the index finds. The scan goes on behind the last indexed line, and behind the
// last record that was found.
func (s *scanner) indexed(ctx context.Context, yield func(*trace.Record) bool) error {
	x, err := Open(ctx, s.dir)
	if err != nil {
		return err
	}
	defer x.Close()
	if err := x.refresh(ctx, false); err != nil {
		return err
	}
	const end = "SELECT coalesce(max(first), 0), coalesce(size, 0) FROM segment" // SQLite takes size from the row with the greatest first
	if err := x.database().QueryRowContext(ctx, end).Scan(&s.at.segment, &s.at.start); err != nil {
		return err
	}
	s.after, err = x.matching(ctx, s.filter, yield)
	return err
}

// scan reads the lines up to the end of the journal.
func (s *scanner) scan(ctx context.Context, yield func(*trace.Record) bool) error {
	names, err := trace.Segments(s.dir)
	if err != nil {
		return err
	}
	for i, name := range names {
		segment := segmentSeq(name)
		if segment < s.at.segment {
			continue
		}
		if !s.since.IsZero() && i+1 < len(names) {
			if next, err := trace.FirstRecord(filepath.Join(s.dir, names[i+1])); err == nil && next.Time().Before(s.since) {
				continue
			}
		}
		if segment > s.at.segment {
			s.at = place{segment: segment}
		}
		err := trace.ReadLines(filepath.Join(s.dir, name), s.at.start, func(line []byte, start int64, whole bool) bool {
			if !whole || ctx.Err() != nil {
				return false
			}
			p := place{segment, start, int64(len(line)) + 1}
			s.at.start = start + p.size
			r, _, err := trace.ParseLine(line)
			return err != nil || p.compare(s.after) <= 0 || !s.filter.Match(r) || yield(r)
		})
		if errors.Is(err, fs.ErrNotExist) { // retention was quicker
			err = nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}
