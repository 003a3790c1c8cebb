package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxPayloadDepth leaves room for the record around the payload: encoding/json
// reads at most 10,000 levels.
const maxPayloadDepth = 9_900

// pool keeps what records need on their way; buffers above maxPooled are not
// kept.
var pool = sync.Pool{New: func() any { return &pending{envelope: make([]byte, 0, 2048)} }}

const maxPooled = 2 << 20

// release gives p back; nothing may hold it any more.
func (p *pending) release() {
	if cap(p.envelope) <= maxPooled {
		*p = pending{envelope: p.envelope[:0]}
		pool.Put(p)
	}
}

// Append adds r to the journal. It sets Protocol, Seq, Prev and Hash, and ID
// and TS where they are empty; r must not be used by others until it returns.
// After nil the record is with the operating system, in mode always on the
// disk. After an error the record is not in the journal and r's place in the
// chain is not set: the caller refuses what the record stands for before it
// has an effect. Concurrent calls share writes and syncs.
//
// Where payload is given, its pieces together are the record's payload, and not
// r.Payload: so a message needs no memory of its own to be put together in.
//
// A payload that is not JSON, or nested deeper than JSON readers go, is stored as a JSON string of its bytes, and one
// above [Options.MaxPayload] as its size and SHA-256; both set Audit.Truncated.
func (j *Journal) Append(r *Record, payload ...[]byte) error {
	if err := j.prepare(r); err != nil {
		return err
	}
	p := pool.Get().(*pending)
	defer p.release()
	envelope, err := j.envelope(p.envelope, r, payload)
	if err != nil {
		return err
	}
	p.r, p.envelope = r, envelope
	if len(envelope) > maxLine-lineTail-128 {
		return fmt.Errorf("trace record of %d bytes: at most %d can be written", len(envelope), maxLine-lineTail-128)
	}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	j.queue = append(j.queue, p)
	j.mu.Unlock()

	// Whoever gets the lock first writes for all who wait; the others find
	// their record done.
	waited := j.giveWay()
	j.io.Lock()
	defer j.io.Unlock()
	if !p.done {
		j.weigh(waited, j.drain())
	}
	return p.err
}

// A write costs more than a wait for those about to append. But where the
// processors are busy with something else, such as large results, the wait is
// as long as the turns of all of that; and where nobody else appends, it still
// costs waking a thread to look for them.
const (
	worthWaiting = 250 * time.Microsecond // for each record that shares the write
	lonely       = 16                     // waits in a row that brought nobody
	hurried      = 1024                   // records that don't wait after waits that were not worth it
)

// giveWay lets those about to append have their turn, and returns how long
// that took; -1 without a wait.
func (j *Journal) giveWay() time.Duration {
	if j.hurry.Load() > 0 {
		j.hurry.Add(-1)
		return -1
	}
	start := j.opt.Now()
	j.yield()
	return j.opt.Now().Sub(start)
}

// weigh judges a wait by how many records were written after it. The caller
// holds io.
func (j *Journal) weigh(waited time.Duration, records int) {
	switch {
	case waited < 0:
		return
	case records > 1:
		j.alone = 0
	default:
		j.alone++
	}
	if waited > time.Duration(records)*worthWaiting || j.alone >= lonely {
		j.alone = 0
		j.hurry.Store(hurried)
	}
}

// prepare fills in and checks what does not depend on the place in the chain.
func (j *Journal) prepare(r *Record) error {
	if r.Kind == "" {
		return fmt.Errorf("trace record has no kind")
	}
	if err := contextpath.Validate(r.Context); err != nil {
		return fmt.Errorf("trace record %s: %w", r.Kind, err)
	}
	r.Protocol = Protocol
	if r.ID == "" {
		r.ID = NewID()
	}
	if r.TS == "" {
		r.TS = j.opt.Now().UTC().Format(TimeFormat)
	}
	if len(r.CorrelationID) > 1 {
		r.CorrelationID = IDs(nil).Union(r.CorrelationID)
	}
	return nil
}

// envelope appends the line of r up to the chain fields, with a payload that
// readers can take.
func (j *Journal) envelope(b []byte, r *Record, payload [][]byte) ([]byte, error) {
	if payload == nil {
		payload = [][]byte{r.Payload}
	}
	return appendTail(j.appendPayload(appendHead(b, r), r, payload), r)
}

// appendPayload appends the payload's member; what it replaces it notes in r.
func (j *Journal) appendPayload(b []byte, r *Record, pieces [][]byte) []byte {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if size == 0 {
		return b
	}
	b = append(slices.Grow(b, size+1024), payloadKey...)
	start := len(b)
	for _, p := range pieces {
		b = append(b, p...)
	}
	payload := b[start:]
	switch {
	case j.opt.MaxPayload > 0 && size > j.opt.MaxPayload:
		markTruncated(r)
		sum := sha256.Sum256(payload)
		return append(b[:start], rawjson.Marshal(map[string]any{
			"omitted": "payload exceeds the journal's limit", "bytes": size, "sha256": hex.EncodeToString(sum[:])})...)
	case !rawjson.Valid(payload, maxPayloadDepth):
		markTruncated(r)
		return append(b[:start], rawjson.Quote(string(payload))...)
	case bytes.IndexByte(payload, '\n') >= 0 || bytes.IndexByte(payload, '\r') >= 0:
		return append(b[:start], rawjson.Compact(payload)...)
	}
	return b
}

// markTruncated sets the flag on a copy: the caller may share one Audit between records.
func markTruncated(r *Record) {
	a := Audit{}
	if r.Audit != nil {
		a = *r.Audit
	}
	a.Truncated = true
	r.Audit = &a
}
