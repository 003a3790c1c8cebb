package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxPayloadDepth leaves room for the record around the payload: encoding/json
// reads at most 10,000 levels.
const maxPayloadDepth = 9_900

// envelopes are buffers of records on their way; the journal copies them into
// its own before Append returns. Large ones are not kept.
var envelopes = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

const maxPooled = 64 << 10

// Append adds r to the journal. It sets Protocol, Seq, Prev and Hash, and ID
// and TS where they are empty; r must not be used by others until it returns.
// After nil the record is with the operating system, in mode always on the
// disk. After an error the record is not in the journal and r's place in the
// chain is not set: the caller refuses what the record stands for before it
// has an effect. Concurrent calls share writes and syncs.
//
// A payload that is not JSON, or nested deeper than JSON readers go, is stored as a JSON string of its bytes, and one
// above [Options.MaxPayload] as its size and SHA-256; both set Audit.Truncated.
func (j *Journal) Append(r *Record) error {
	if err := j.prepare(r); err != nil {
		return err
	}
	buf := envelopes.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= maxPooled {
			envelopes.Put(buf)
		}
	}()
	envelope, err := appendEnvelope((*buf)[:0], r)
	if err != nil {
		return err
	}
	*buf = envelope
	if len(envelope) > maxLine-lineTail-128 {
		return fmt.Errorf("trace record of %d bytes: at most %d can be written", len(envelope), maxLine-lineTail-128)
	}
	p := &pending{r: r, envelope: envelope}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	j.queue = append(j.queue, p)
	j.mu.Unlock()

	// Whoever gets the lock first writes for all who wait; the others find
	// their record done.
	j.io.Lock()
	defer j.io.Unlock()
	if !p.done {
		j.drain()
	}
	return p.err
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
	if len(r.Payload) == 0 {
		return nil
	}
	if j.opt.MaxPayload > 0 && len(r.Payload) > j.opt.MaxPayload {
		sum := sha256.Sum256(r.Payload)
		r.Payload = rawjson.Marshal(map[string]any{
			"omitted": "payload exceeds the journal's limit", "bytes": len(r.Payload), "sha256": hex.EncodeToString(sum[:])})
		markTruncated(r)
		return nil
	}
	if !rawjson.Valid(r.Payload, maxPayloadDepth) {
		r.Payload = rawjson.Quote(string(r.Payload))
		markTruncated(r)
	} else if bytes.IndexByte(r.Payload, '\n') >= 0 || bytes.IndexByte(r.Payload, '\r') >= 0 {
		r.Payload = rawjson.Compact(r.Payload)
	}
	return nil
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
