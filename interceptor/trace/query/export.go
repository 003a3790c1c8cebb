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

// Export writes the records that f selects in the journal in dir to w, with their proof. It writes all records
// from the first selected one to the end of the journal, as lines of the journal. Those that are not selected
// have no payload and no salt. The hash of each covers the hash of the one before: with a later head
// ([trace.Anchor]) a reader can check that none was changed. If f selects nothing, Export writes nothing.
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
