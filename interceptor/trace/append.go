package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxPayloadDepth leaves room for the record around the payload: encoding/json
// reads at most 10,000 levels.
const maxPayloadDepth = 9_900

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
	envelope, err := appendEnvelope(make([]byte, 0, 1024+len(r.Payload)), r)
	if err != nil {
		return err
	}
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

// drain commits everything queued. The caller holds io.
func (j *Journal) drain() {
	j.mu.Lock()
	q := j.queue
	j.queue = j.spare[:0]
	j.mu.Unlock()
	j.commit(q)
	clear(q)
	j.spare = q
}

// commit stamps and writes q in order, in as few writes as the rotation
// allows. Each record gets its own verdict. The caller holds io.
func (j *Journal) commit(q []*pending) {
	for len(q) > 0 {
		n, err := 0, j.broken
		if err == nil {
			if j.size > 0 && j.size+int64(len(q[0].envelope)+lineTail+128) > j.opt.RotateBytes {
				err = j.rotate()
			}
			if err == nil {
				n, err = j.writeSome(q)
			}
		}
		if err != nil {
			err = fmt.Errorf("trace journal: %w", err)
			for _, p := range q {
				p.done, p.err = true, err
			}
			j.setErr(err)
			return
		}
		q = q[n:]
	}
	j.setErr(nil)
	select {
	case j.dirty <- struct{}{}:
	default:
	}
}

// writeSome writes as many records of q, at least one, as fit in the file and
// returns how many. On error none is written.
func (j *Journal) writeSome(q []*pending) (int, error) {
	buf, seq, hash := j.buf[:0], j.seq, j.hash
	n := 0
	for _, p := range q {
		if n > 0 && j.size+int64(len(buf)+len(p.envelope)+lineTail+128) > j.opt.RotateBytes {
			break
		}
		seq++
		p.r.Seq, p.r.Prev = seq, hash
		buf, hash = appendChain(buf, p.envelope, seq, hash)
		p.r.Hash = hash
		n++
	}
	if cap(buf) <= 1<<20 {
		j.buf = buf
	}
	if err := j.write(buf); err != nil {
		for _, p := range q[:n] {
			p.r.Seq, p.r.Prev, p.r.Hash = 0, "", ""
		}
		return 0, err
	}
	j.seq, j.hash = seq, hash
	for _, p := range q[:n] {
		p.done = true
	}
	return n, nil
}

// write appends whole lines to the file or, on error, nothing.
func (j *Journal) write(lines []byte) error {
	_, err := j.file.Write(lines)
	if err == nil && j.opt.Sync == SyncAlways {
		if err = j.file.Sync(); err != nil {
			// After a failed sync the kernel may have dropped the pages: what
			// is on the disk is unknown, so nothing more is promised.
			j.broken = fmt.Errorf("sync of %s failed, restart foldgate when the disk is sound: %w", j.name, err)
			err = j.broken
		}
	}
	if err == nil {
		j.size += int64(len(lines))
		return nil
	}
	if fi, serr := j.file.Stat(); serr == nil && fi.Size() > j.size {
		if terr := j.file.Truncate(j.size); terr != nil && j.broken == nil {
			j.broken = fmt.Errorf("%s has a partial line that cannot be cut off: %w", j.name, terr)
		}
	}
	return err
}

// rotate ends the file and begins the next. The caller holds io.
func (j *Journal) rotate() error {
	if j.opt.Sync != SyncNever {
		if err := j.file.Sync(); err != nil {
			return err
		}
	}
	old := j.file
	if err := j.begin(&Anchor{File: j.name, Seq: j.seq, Hash: j.hash}); err != nil {
		return err
	}
	old.Close()
	j.retain()
	return j.writeHeadAt(j.headNow())
}

// begin creates the file for the record after seq and writes its first line.
// On error the journal is as before.
func (j *Journal) begin(predecessor *Anchor) error {
	name := segmentName(j.seq + 1)
	path := filepath.Join(j.dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	was := *j.place()
	j.file, j.name, j.size = f, name, 0
	if err = j.note(Event{Event: EventBegin, Predecessor: predecessor}); err == nil && j.opt.Sync != SyncNever {
		err = syncDir(j.dir)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		j.setPlace(was)
		return err
	}
	return nil
}

// place and setPlace save and restore where the journal stands.
type place struct {
	file segmentFile
	name string
	size int64
	seq  uint64
	hash string
}

func (j *Journal) place() *place { return &place{j.file, j.name, j.size, j.seq, j.hash} }

func (j *Journal) setPlace(p place) {
	j.file, j.name, j.size, j.seq, j.hash = p.file, p.name, p.size, p.seq, p.hash
}

// note writes a record about the journal itself. The caller holds io or is Open.
func (j *Journal) note(e Event) error {
	r := &Record{From: "foldgate", Kind: KindJournal, Payload: rawjson.Marshal(e)}
	if err := j.prepare(r); err != nil {
		return err
	}
	envelope, err := appendEnvelope(nil, r)
	if err != nil {
		return err
	}
	_, err = j.writeSome([]*pending{{r: r, envelope: envelope}})
	return err
}

// flusher brings the disk and the head file up to date, Interval after the
// first commit that made them late.
func (j *Journal) flusher() {
	defer close(j.done)
	for {
		select {
		case <-j.stop:
			return
		case <-j.dirty:
		}
		wait := time.NewTimer(j.opt.Interval)
		select {
		case <-j.stop:
			wait.Stop()
			return
		case <-wait.C:
		}
		j.flush()
	}
}

// flush syncs what was committed when it was called and then anchors it,
// without holding up writers. If the file cannot be synced or is no longer
// there, the journal accepts nothing more; if only the head cannot be written,
// such as on a full disk, that is reported and tried again after the next record.
func (j *Journal) flush() {
	j.io.Lock()
	h, file, name := j.headNow(), j.file, j.name
	j.io.Unlock()
	err := inPlace(file, filepath.Join(j.dir, name))
	if err == nil && j.opt.Sync == SyncInterval {
		err = file.Sync()
	}
	if err != nil {
		j.io.Lock()
		if j.name == name { // else rotate has synced and closed it meanwhile
			j.broken = fmt.Errorf("%s: %w; restart foldgate", name, err)
			err = j.broken
		} else {
			err = nil
		}
		j.io.Unlock()
	}
	if err == nil {
		err = j.writeHeadAt(h)
	}
	if err != nil {
		j.setErr(fmt.Errorf("trace journal: %w", err))
	}
}

// inPlace tells whether the open file is still the one at path: another
// program may have moved or removed it, and then records would be lost unseen.
func inPlace(f segmentFile, path string) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	if err == nil && !os.SameFile(open, there) {
		err = fmt.Errorf("another program has replaced it")
	}
	return err
}

// headNow describes the last committed record. The caller holds io.
func (j *Journal) headNow() *head {
	return &head{TS: j.opt.Now().UTC().Format(TimeFormat),
		Anchor: Anchor{File: j.name, Seq: j.seq, Hash: j.hash}, First: j.first}
}

// writeHeadAt replaces the head file unless a later one was written meanwhile.
func (j *Journal) writeHeadAt(h *head) error {
	j.headMu.Lock()
	defer j.headMu.Unlock()
	if h.Seq < j.headSeq {
		return nil
	}
	if err := writeHead(j.dir, h, j.opt.Sync != SyncNever); err != nil {
		return err
	}
	j.headSeq = h.Seq
	return nil
}
