// Package export sends the records of a journal to a log store, as OpenTelemetry log records, and
// checks what a log store has of them. See [Start] and [Checker].
package export

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/atomicfile"
)

// Names of a log record: its event, and attributes that [Checker] and queries of a log store need.
const (
	eventName  = "foldgate.trace.record"
	journalKey = "foldgate.trace.journal" // the id of the journal
	seqKey     = "foldgate.trace.seq"
	hashKey    = "foldgate.trace.hash"
)

// Bounds of the export.
const (
	batchRecords = 512
	batchBytes   = 1 << 20
	pollInterval = time.Second
	maxWait      = time.Minute // between attempts at a log store that fails
)

// stateName is the file beside the journal that says how far it was sent.
const stateName = "export.json"

// state is the content of that file.
type state struct {
	Journal string `json:"journal"` // a random id: an empty or another journal gets another one
	Seq     uint64 `json:"seq"`     // of the last record that the log store has confirmed
	Hash    string `json:"hash"`
}

// exporter sends the records of one journal. Only its goroutine uses it.
type exporter struct {
	dir    string
	to     sdklog.Exporter
	logger otellog.Logger
	batch  []sdklog.Record // filled by OnEmit
	log    *slog.Logger
	state  state
	file   string // of the next record, "" if it is to be found
	offset int64  // in file: of the line of the record state.Seq, or 0
	// damaged is the number of the record that the last damaged line seems to be, which is logged once.
	damaged uint64
}

// Start sends the records of the journal in dir, the oldest first and then each new one within about
// a second, and returns a function that ends this. A log record has the line of a record as its body,
// without payload and salt: so its hash can be checked, and payloads to be erased are in the journal
// only. Records about the journal itself keep their payload.
//
// Nothing is lost while the log store or the gateway is down, unless retention removes it: the file
// export.json beside the journal says what the log store has confirmed. A record may arrive twice.
// Only records that the head of the journal anchors are sent.
//
// end sends what there is until ctx is done. No record may be appended meanwhile.
func Start(dir string, to sdklog.Exporter, about *resource.Resource, log *slog.Logger) (end func(context.Context)) {
	e := &exporter{dir: dir, to: to, log: log}
	provider := sdklog.NewLoggerProvider(sdklog.WithProcessor(e), sdklog.WithResource(about), sdklog.WithAttributeCountLimit(-1))
	e.logger = provider.Logger("github.com/foldgate/foldgate")
	ctx, cancel := context.WithCancel(context.Background())
	closing, done := make(chan context.Context, 1), make(chan struct{})
	go func() {
		defer close(done)
		e.run(ctx, closing)
	}()
	return func(end context.Context) {
		defer cancel()
		defer context.AfterFunc(end, cancel)()
		closing <- end
		<-done
		if err := to.Shutdown(end); err != nil {
			log.Warn("the last trace records were not exported; the next start sends them", "err", err)
		}
	}
}

// run sends batches until ctx is done, or closing has a value and nothing is left or a batch fails.
func (e *exporter) run(ctx context.Context, closing <-chan context.Context) {
	ending := false
	var failing time.Duration // the wait after the last failure, 0 after a success
	for ctx.Err() == nil {
		more, err := e.step(ctx)
		wait := pollInterval
		if more {
			wait = 0
		}
		if err == nil {
			failing = 0
		} else {
			if failing == 0 || failing == maxWait { // the first failure, and each that comes after the longest wait
				e.log.Error("trace records are not exported; foldgate tries again", "after seq", e.state.Seq, "err", err)
			}
			failing = min(max(2*failing, pollInterval), maxWait)
			wait = failing
		}
		if ending && (err != nil || !more) {
			return
		}
		select {
		case <-closing:
			ending = true
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// step sends one batch, and reports whether there was one.
func (e *exporter) step(ctx context.Context) (more bool, err error) {
	last, err := trace.Last(e.dir)
	if err != nil {
		return false, err
	}
	if e.state.Journal == "" {
		if err := e.resume(last); err != nil {
			return false, err
		}
	}
	if e.state.Seq >= last {
		return false, nil
	}
	if e.file == "" {
		if err := e.locate(); err != nil {
			return false, err
		}
	}
	next, file, offset, err := e.read(ctx, last)
	if err != nil {
		return false, err
	}
	if len(e.batch) > 0 {
		err = e.to.Export(ctx, e.batch)
		clear(e.batch)
		e.batch = e.batch[:0]
	}
	if err != nil && strings.Contains(err.Error(), "partial success") { // the rest would be refused again, and what it took sent twice
		e.log.Error("the log store took some trace records only; foldgate trace verify --export shows which", "until seq", next.Seq, "err", err)
		err = nil
	}
	if err == nil && next.Seq > e.state.Seq {
		err = writeState(e.dir, next)
	}
	if err != nil {
		return false, err
	}
	more = next.Seq > e.state.Seq || file != e.file
	e.state, e.file, e.offset = next, file, offset
	return more, nil
}

// OnEmit takes a record that step's logger has completed.
func (e *exporter) OnEmit(_ context.Context, r *sdklog.Record) error {
	e.batch = append(e.batch, r.Clone())
	return nil
}

// Enabled, ForceFlush and Shutdown complete [sdklog.Processor].
func (e *exporter) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }

func (e *exporter) ForceFlush(context.Context) error { return nil }

func (e *exporter) Shutdown(context.Context) error { return nil }

// resume reads how far the journal was sent. If it is not the journal that was sent, such as after
// its directory was emptied, it gets a new id and is sent as a whole.
func (e *exporter) resume(last uint64) error {
	s, err := readState(e.dir)
	if err != nil {
		return err
	}
	if s.Seq > 0 {
		same := s.Seq <= last
		names, err := trace.Segments(e.dir)
		if err != nil {
			return err
		}
		if file := trace.SegmentOf(names, s.Seq); same && file != "" {
			err = trace.ReadLines(filepath.Join(e.dir, file), 0, func(line []byte, _ int64, _ bool) bool {
				r, _, err := trace.ParseLine(line)
				if err == nil && r.Seq == s.Seq {
					same = r.Hash == s.Hash
				}
				return err != nil || r.Seq < s.Seq
			})
			if err != nil {
				return err
			}
		}
		if !same {
			e.log.Warn("this is not the journal that was exported; all of it is sent, as another one", "dir", e.dir, "was", s.Journal, "seq", s.Seq)
			s = state{}
		}
	}
	if s.Journal == "" {
		s.Journal = uuid.NewString()
		if err := writeState(e.dir, s); err != nil {
			return err
		}
	}
	e.state = s
	return nil
}

// locate finds the segment of the next record, or the oldest if retention has removed it.
func (e *exporter) locate() error {
	e.offset = 0
	names, err := trace.Segments(e.dir)
	if err != nil || len(names) == 0 {
		return cmp.Or(err, errors.New("the journal has no file"))
	}
	if e.file = trace.SegmentOf(names, e.state.Seq+1); e.file != "" {
		return nil
	}
	e.file = names[0]
	first, _ := trace.SegmentSeq(e.file)
	e.log.Error("retention removed trace records before they were exported", "from seq", e.state.Seq+1, "to seq", first-1)
	return nil
}

// read fills the batch with what follows in the segment, up to the record last. It returns the state
// for when the log store has confirmed them, and the place of the last of them.
func (e *exporter) read(ctx context.Context, last uint64) (next state, file string, offset int64, err error) {
	e.batch = e.batch[:0] // not empty after an error
	next, file, offset = e.state, e.file, e.offset
	size, ended, found := 0, true, offset == 0
	err = trace.ReadLines(filepath.Join(e.dir, file), offset, func(line []byte, at int64, whole bool) bool {
		r, _, err := trace.ParseLine(line)
		if !found { // the first line must be that of the record before
			found = err == nil && r.Seq == next.Seq && r.Hash == next.Hash
			return found
		}
		if ended = whole; !whole {
			return false
		}
		if len(e.batch) == batchRecords || size >= batchBytes {
			ended = false
			return false
		}
		switch {
		case err != nil: // verify reports it, and the record after it
			if e.damaged != next.Seq+1 {
				e.log.Error("a damaged line of the trace is not exported", "file", file, "offset", at, "err", err)
				e.damaged = next.Seq + 1
			}
		case r.Seq > last:
			ended = false
			return false
		case r.Seq > next.Seq:
			if r.Kind != trace.KindJournal {
				line = trace.WithoutPayload(line)
			}
			size += len(line)
			e.emit(ctx, r, string(line))
			next.Seq, next.Hash, offset = r.Seq, r.Hash, at
		}
		return true
	})
	if errors.Is(err, fs.ErrNotExist) { // retention was quicker
		return e.state, "", 0, nil
	}
	if err == nil && !found { // an erasure has made lines shorter
		e.offset = 0
		return e.read(ctx, last)
	}
	if err == nil && ended && next.Seq < last { // it goes on in the next segment
		names, err := trace.Segments(e.dir)
		if i := slices.Index(names, file) + 1; err == nil && i > 0 && i < len(names) {
			return next, names[i], 0, nil
		}
	}
	return next, file, offset, err
}

func (e *exporter) emit(ctx context.Context, r *trace.Record, line string) {
	a := r.AuditOrEmpty()
	var out otellog.Record
	out.SetEventName(eventName)
	out.SetTimestamp(r.Time())
	out.SetObservedTimestamp(time.Now())
	out.SetBody(attribute.StringValue(line))
	out.SetSeverity(otellog.SeverityInfo)
	if a.IsError || a.Decision != nil && a.Decision.Result == trace.Blocked {
		out.SetSeverity(otellog.SeverityWarn)
	}
	out.AddAttributes(attribute.String(journalKey, e.state.Journal), attribute.Int64(seqKey, int64(r.Seq)), attribute.String(hashKey, r.Hash),
		attribute.String("foldgate.envelope.id", r.ID), attribute.String("foldgate.kind", r.Kind))
	for _, t := range [][2]string{
		{"foldgate.principal", a.Principal}, {"foldgate.team", a.Team}, {"foldgate.context", r.Context}, {"foldgate.server", a.Server},
		{"gen_ai.tool.name", a.Tool}, {"mcp.method.name", a.Method}, {"mcp.session.id", a.Session},
	} {
		if t[1] != "" {
			out.AddAttributes(attribute.String(t[0], t[1]))
		}
	}
	if r.Blocked() {
		out.AddAttributes(attribute.String("foldgate.blocked", a.Decision.Reason))
	}
	e.logger.Emit(ctx, out)
}

func readState(dir string) (s state, err error) {
	data, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Journal == "" {
		err = errors.New("no journal is named")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w; remove it, and all records are sent again", stateName, err)
	}
	return s, err
}

// writeState replaces the file.
func writeState(dir string, s state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, stateName), append(data, '\n'), 0o600)
}
