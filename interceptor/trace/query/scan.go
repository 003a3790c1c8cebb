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
		return new(place).scan(ctx, dir, f, time.Time{}, place{}, yield)
	})
}

// Recent is [Scan] for records near the end of a long journal: it passes over
// the segments that are followed by one that begins before f.Since. If the clock
// was set back, it misses records that were written shortly before.
func Recent(ctx context.Context, dir string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		return new(place).scan(ctx, dir, f, f.Since, place{}, yield)
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
				if err := follow(ctx, dir, f, func(r *trace.Record) bool { return yield(r, nil) }); err != nil {
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

// follow yields the records of one journal, and nil each time it has read all that there are.
func follow(ctx context.Context, dir string, f Filter, yield func(*trace.Record) bool) (err error) {
	var at, last place
	more := true
	each := func(r *trace.Record) bool { more = yield(r); return more }
	if f.NoIndex {
		err = at.scan(ctx, dir, f, time.Time{}, last, each)
	} else {
		at, last, err = indexed(ctx, dir, f, each)
	}
	for err == nil && more && each(nil) {
		err = at.scan(ctx, dir, f, time.Time{}, last, each)
	}
	return err
}

// indexed yields the records that the index of a journal finds. It returns the places behind the last indexed line
// and of the last record that it looked at.
func indexed(ctx context.Context, dir string, f Filter, yield func(*trace.Record) bool) (at, last place, err error) {
	x, err := Open(ctx, dir)
	if err != nil {
		return at, last, err
	}
	defer x.Close()
	if err := x.refresh(ctx, false); err != nil {
		return at, last, err
	}
	const end = "SELECT coalesce(max(first), 0), coalesce(size, 0) FROM segment" // SQLite takes size from the row with the greatest first
	if err := x.database().QueryRowContext(ctx, end).Scan(&at.segment, &at.start); err != nil {
		return at, last, err
	}
	last, err = x.matching(ctx, f, yield)
	return at, last, err
}

// scan yields the records that lie behind at and after, and moves at to the end of the last whole
// line. It passes over the segments that are followed by one that begins before since.
func (at *place) scan(ctx context.Context, dir string, f Filter, since time.Time, after place, yield func(*trace.Record) bool) error {
	names, err := trace.Segments(dir)
	if err != nil {
		return err
	}
	for i, name := range names {
		segment := segmentSeq(name)
		if segment < at.segment {
			continue
		}
		if !since.IsZero() && i+1 < len(names) {
			if next, err := trace.FirstRecord(filepath.Join(dir, names[i+1])); err == nil && next.Time().Before(since) {
				continue
			}
		}
		if segment > at.segment {
			*at = place{segment: segment}
		}
		err := trace.ReadLines(filepath.Join(dir, name), at.start, func(line []byte, start int64, whole bool) bool {
			if !whole || ctx.Err() != nil {
				return false
			}
			p := place{segment, start, int64(len(line)) + 1}
			at.start = start + p.size
			r, _, err := trace.ParseLine(line)
			return err != nil || p.compare(after) <= 0 || !f.Match(r) || yield(r)
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
