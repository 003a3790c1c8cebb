package query

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"math"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Export writes the records that f selects in the journal in dir to w, with their proof: from the first of
// them on all records up to the end of the journal, those that are not selected without payload and salt.
// Each is a line as in the journal. The hash of each covers the hash of the one before, so who has a
// later head can check that none was changed: see [trace.Anchor]. It writes nothing if f selects nothing.
func Export(ctx context.Context, w io.Writer, dir string, f Filter) error {
	next, stop := iter.Pull2(Select(ctx, dir, f))
	defer stop()
	selected, err, more := next()
	if err != nil || !more {
		return err
	}
	names, err := trace.Segments(dir)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	var failed error
	all := scanner{
		dir: dir, filter: Filter{Journal: true, Seq: trace.Range{selected.Seq, math.MaxUint64}},
		at: place{segment: segmentSeq(trace.SegmentOf(names, selected.Seq))},
	}
	err = all.scan(ctx, func(r *trace.Record) bool {
		if more && r.ID == selected.ID && r.Hash == selected.Hash {
			selected, failed, more = next()
		} else if r.Kind != trace.KindJournal {
			r.Payload, r.Salt = nil, ""
		}
		var line []byte
		if failed == nil {
			line, failed = r.AppendLine(nil)
		}
		if failed == nil {
			_, failed = out.Write(line)
		}
		return failed == nil
	})
	if err == nil && failed == nil && more {
		failed = errors.New("the index does not fit the journal: a selected record is not there")
	}
	return errors.Join(err, failed, out.Flush())
}
