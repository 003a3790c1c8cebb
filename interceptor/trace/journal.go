package trace

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Values of [Options.Sync].
const (
	SyncAlways   = "always"   // Append returns when the record is on the disk; concurrent calls share a sync
	SyncInterval = "interval" // the disk is at most Interval behind
	SyncNever    = "never"    // the operating system decides
)

// MaxRotateBytes is the largest size at which a new segment begins.
const MaxRotateBytes int64 = 2 << 30

// Options configure a [Journal]. The zero value is the default.
type Options struct {
	// Sync says when records reach the disk; "" is SyncInterval. In every mode the operating
	// system has a record when Append returns, so only a crash of the machine loses records.
	Sync string
	// Interval is how long SyncInterval waits, and how far the head file may be behind in every
	// mode. 0 is 100 ms.
	Interval time.Duration
	// RotateBytes is the size at which a new segment begins, at most [MaxRotateBytes]. 0 is 256 MiB.
	RotateBytes int64
	RetainFiles int // the segments that are kept, with the one being written; 0 keeps all
	// RetainAge is the age at which a record may go; 0 keeps all. A segment goes once its last record is
	// older. With RetainAge, a segment ends after a day at the latest, or after RetainAge if that is less.
	RetainAge time.Duration
	Now       func() time.Time // the clock; nil is time.Now
	// Steady is a clock for RetainAge that does not jump, as Now may; nil is Now.
	Steady func() time.Time
	Log    *slog.Logger // gets repairs and failures; nil discards them
}

// Errors of the journal that callers tell apart.
var (
	ErrClosed = errors.New("trace journal is closed")
	ErrInUse  = errors.New("trace directory is in use by another process")
	// ErrFinal is in the error of a journal that accepts nothing more, whatever the operator repairs.
	ErrFinal = errors.New("restart foldgate when the state directory is sound")
)

// Journal is the one writer of a trace directory. Its methods are safe for
// concurrent use. One goroutine syncs and writes the head file; Close ends it.
type Journal struct {
	dir        string
	opt        Options
	lock       *os.File
	maxPayload int // tests set a smaller one

	erasing sync.Mutex // held during an erasure, and before writing

	queueMu sync.Mutex // guards queue, closed
	queue   []*pending
	closed  bool

	writing sync.Mutex // held during a write; guards the fields below
	position
	first  FirstRef
	spare  []*pending // the memory of the queue that was written last
	buf    []byte     // the lines of one write
	broken error      // once set, nothing is written any more
	// interrupted says that the process before did not close the journal, and
	// that Settle was not called yet; see Interrupted for to.
	interrupted bool
	to          time.Time

	lastErr atomic.Pointer[error] // see Err

	headMu  sync.Mutex // serialises head writes; guards headSeq
	headSeq uint64

	dirty   chan struct{} // something was committed, or failed to be, since the last flush
	stop    chan struct{}
	stopped chan struct{} // closed when the flusher has ended
}

// position is the end of the journal: the segment being written and the last committed record.
type position struct {
	file segmentFile
	name string
	size int64
	seq  uint64
	hash string
}

// segmentFile is the part of *os.File that the journal uses; tests replace it by a full disk.
type segmentFile interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
	Stat() (os.FileInfo, error)
}

type pending struct {
	r       *Record
	hashed  []byte // the line up to its seq; the hash covers it
	payload []byte // salt and payload, the members behind the hash, "" for none
	done    bool
	err     error
}

// Open opens the journal in dir, which it creates if needed, and takes its lock. [ErrInUse] means
// that another process has it. A last line torn by a crash is cut off, and missing records are
// noted in the chain: both as records of kind [KindJournal] and in the log.
func Open(dir string, o Options) (*Journal, error) {
	o.Sync = cmp.Or(o.Sync, SyncInterval)
	o.Interval = cmp.Or(max(o.Interval, 0), 100*time.Millisecond)
	o.RotateBytes = cmp.Or(max(o.RotateBytes, 0), 256<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Steady == nil {
		o.Steady = o.Now
	}
	if !slices.Contains([]string{SyncAlways, SyncInterval, SyncNever}, o.Sync) {
		return nil, fmt.Errorf("trace sync %q: use always, interval or never", o.Sync)
	}
	if o.RotateBytes > MaxRotateBytes {
		return nil, fmt.Errorf("trace rotation at %d bytes: use at most %d", o.RotateBytes, MaxRotateBytes)
	}
	j := &Journal{dir: dir, opt: o, maxPayload: maxPayload,
		dirty: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{})}
	if err := cmp.Or(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil { // #nosec G302: it is a directory
		return nil, fmt.Errorf("trace directory: %w", err)
	}
	if err := j.takeLock(); err != nil {
		return nil, err
	}
	if err := j.recover(); err != nil {
		j.lock.Close()
		if j.file != nil {
			j.file.Close()
		}
		return nil, err
	}
	j.flush()                              // from the first record on there is a head
	if o.RetainAge > 0 && !j.interrupted { // else Settle reads the last segments
		j.rotateIfOld()
	}
	go j.flusher()
	return j, nil
}

// Bounds of a payload as it is stored.
const (
	maxPayload      = 1 << 20 // bytes
	maxPayloadDepth = 9_900   // encoding/json reads 10,000 levels, with the record around the payload
)

// lineRoom is at least the length of the chain fields of a line and its end.
const lineRoom = 2*hashLen + 64

// pool reuses the memory of records on their way, except buffers above
// maxPooled. It saves an allocation of some 2 KB for each record.
var pool = sync.Pool{New: func() any { return &pending{hashed: make([]byte, 0, 2048)} }}

const maxPooled = 2 << 20

// Append adds r to the journal. It sets Protocol, Seq, Prev and Hash, and ID and TS if they are
// empty. Nothing else may use r until Append returns. After an error the record is not in the
// journal and its chain fields are empty, so the caller can refuse the call before it has an
// effect. Concurrent calls share writes and syncs.
//
// If payload is given, its concatenation is the record's payload instead of r.Payload, so the
// caller needs no memory to join the pieces of a message. A payload that is not JSON, or nested
// deeper than JSON readers go, is stored as a JSON string of its bytes. One above 1 MiB is stored
// as its size and SHA-256. Both set Audit.Truncated.
func (j *Journal) Append(r *Record, payload ...[]byte) error {
	p := pool.Get().(*pending)
	defer func() {
		if max(cap(p.hashed), cap(p.payload)) <= maxPooled {
			*p = pending{hashed: p.hashed[:0], payload: p.payload[:0]}
			pool.Put(p)
		}
	}()
	if err := j.encode(p, r, payload); err != nil {
		return err
	}
	if n := p.size(); n > maxLine {
		return fmt.Errorf("trace record of %d bytes: at most %d can be written", n, maxLine)
	}
	j.queueMu.Lock()
	if j.closed {
		j.queueMu.Unlock()
		return ErrClosed
	}
	j.queue = append(j.queue, p)
	j.queueMu.Unlock()
	// The first to get the lock writes the whole queue; the others then find their record done.
	// Gosched lets them queue before. With 16 callers a call takes 10 % less processor time, with
	// one caller about 1 % more.
	runtime.Gosched()
	j.writing.Lock()
	defer j.writing.Unlock()
	if !p.done {
		j.writeQueue()
	}
	return p.err
}

// encode checks and completes r, and makes p of it.
func (j *Journal) encode(p *pending, r *Record, payload [][]byte) (err error) {
	if r.Kind == "" {
		return errors.New("trace record has no kind")
	}
	if err := contextpath.ValidateCall(r.Context); err != nil {
		return fmt.Errorf("trace record %s: %w", r.Kind, err)
	}
	r.Protocol, r.Digest = Protocol, ""
	if r.ID == "" {
		r.ID = NewID()
	}
	if r.TS == "" {
		r.TS = j.opt.Now().UTC().Format(TimeFormat)
	}
	if len(r.CorrelationID) > 1 {
		r.CorrelationID = IDs(nil).Union(r.CorrelationID)
	}
	if payload == nil {
		payload = [][]byte{r.Payload}
	}
	p.r = r
	p.hashed = appendEnvelope(p.hashed, r)
	j.encodePayload(p, payload)
	p.hashed, err = appendAuditMember(p.hashed, r)
	return err
}

// encodePayload makes p.payload, and appends its digest to p.hashed. If it stores something
// else than the payload, it notes that in the record.
func (j *Journal) encodePayload(p *pending, pieces [][]byte) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if size == 0 {
		return
	}
	var salt [saltBytes]byte
	_, _ = rand.Read(salt[:]) // never fails
	p.payload = slices.Grow(p.payload, size+1024)
	line, digest := appendPayload(p.payload, salt, pieces...)
	payload, stored, truncated := line[len(line)-size:], []byte(nil), true
	switch {
	case size > j.maxPayload:
		sum := sha256.Sum256(payload)
		stored = rawjson.Marshal(map[string]any{
			"omitted": "payload exceeds the journal's limit", "bytes": size, "sha256": hex.EncodeToString(sum[:])})
	case !rawjson.Valid(payload, maxPayloadDepth):
		stored = rawjson.Quote(string(payload))
	case bytes.IndexByte(payload, '\n') >= 0 || bytes.IndexByte(payload, '\r') >= 0:
		stored, truncated = rawjson.Compact(payload), false
	}
	if stored != nil {
		line, digest = appendPayload(p.payload, salt, stored)
		if truncated {
			a := *p.r.AuditOrEmpty() // a copy: the caller may share one Audit between records
			a.Truncated = true
			p.r.Audit = &a
		}
	}
	p.payload = line
	p.hashed = append(append(p.hashed, `,"digest":"`...), hashPrefix...)
	p.hashed = append(hex.AppendEncode(p.hashed, digest[:]), '"')
}

// size is at least the length of the line.
func (p *pending) size() int { return len(p.hashed) + len(p.payload) + lineRoom }

// writeQueue commits the queue. The caller holds writing.
func (j *Journal) writeQueue() {
	j.queueMu.Lock()
	q := j.queue
	j.queue = j.spare[:0]
	j.queueMu.Unlock()
	j.commit(q)
	clear(q)
	j.spare = q
}

// commit stamps and writes q in order, in as few writes as rotation allows, and
// sets each record's done and err. The caller holds writing.
func (j *Journal) commit(q []*pending) {
	var failed error
	for len(q) > 0 && failed == nil {
		n := 0
		if failed = j.broken; failed == nil && j.size > 0 && !j.fits(0, q[0]) {
			failed = j.rotate()
		}
		if failed == nil {
			n, failed = j.writeSome(q)
		}
		q = q[n:]
	}
	failed = j.setErr(failed)
	for _, p := range q {
		p.done, p.err = true, failed
	}
	select {
	case j.dirty <- struct{}{}:
	default:
	}
}

// fits reports whether p has room in the segment after so many bytes more.
func (j *Journal) fits(more int, p *pending) bool {
	return j.size+int64(more+p.size()) <= j.opt.RotateBytes
}

// writeSome writes as many records of q as fit in the segment, at least one,
// and returns how many. On error none is written.
func (j *Journal) writeSome(q []*pending) (n int, err error) {
	buf, seq, hash := j.buf[:0], j.seq, j.hash
	for _, p := range q {
		if n > 0 && !j.fits(len(buf), p) {
			break
		}
		start := len(buf)
		buf = append(buf, p.hashed...)
		seq++
		p.r.Seq, p.r.Prev = seq, hash
		buf, hash = appendChain(buf, start, seq, hash)
		p.r.Hash = hash
		buf = append(append(buf, p.payload...), lineEnd...)
		n++
	}
	if cap(buf) <= maxPooled {
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

// write appends whole lines to the segment or, on error, nothing.
func (j *Journal) write(lines []byte) error {
	_, err := j.file.Write(lines)
	if err == nil && j.opt.Sync == SyncAlways {
		err = j.sync()
	}
	if err == nil {
		j.size += int64(len(lines))
		return nil
	}
	if fi, serr := j.file.Stat(); serr == nil && fi.Size() > j.size {
		if terr := j.file.Truncate(j.size); terr != nil && j.broken == nil {
			j.broken = fmt.Errorf("%s has a partial line that cannot be cut off: %w; %w", j.name, terr, ErrFinal)
		}
	}
	return err
}

// sync waits for the disk. After a failed sync the kernel may have dropped the pages, so the
// content of the disk is unknown and the journal accepts nothing more.
func (j *Journal) sync() error {
	if err := j.file.Sync(); err != nil {
		j.broken = fmt.Errorf("sync of %s failed: %w; %w", j.name, err, ErrFinal)
	}
	return j.broken
}

// rotate closes the segment and begins the next. The caller holds writing.
func (j *Journal) rotate() error {
	if j.opt.Sync != SyncNever {
		if err := j.sync(); err != nil {
			return err
		}
	}
	old := j.file
	if err := j.newSegment(&Anchor{File: j.name, Seq: j.seq, Hash: j.hash}); err != nil {
		return err
	}
	old.Close()
	j.removeExpired()
	return j.writeHeadAt(j.headNow())
}

// newSegment creates the segment for the record after seq and writes its first
// line. On error the journal is as before.
func (j *Journal) newSegment(predecessor *Anchor) error {
	name := SegmentName(j.seq + 1)
	path := filepath.Join(j.dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	before := j.position
	j.file, j.name, j.size = f, name, 0
	e := Event{Event: EventBegin, Predecessor: predecessor}
	if now := j.latest(); now.Sub(j.opt.Now()) > maxClockStep {
		e.Steady = now.UTC()
	}
	if err = j.note(e); err == nil && j.opt.Sync != SyncNever {
		err = syncDir(j.dir)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		j.position = before
	}
	return err
}

// removeExpired removes the oldest segments beyond [Options.RetainFiles], and those that are older than
// [Options.RetainAge]. A failure is logged: too many segments are no reason to refuse a call. The
// caller holds writing or is Open.
func (j *Journal) removeExpired() {
	if j.opt.RetainFiles <= 0 && j.opt.RetainAge <= 0 {
		return
	}
	names, err := Segments(j.dir)
	gone := 0
	if j.opt.RetainFiles > 0 {
		gone = max(len(names)-j.opt.RetainFiles, 0)
	}
	for now := j.opt.Steady(); err == nil && j.opt.RetainAge > 0 && gone < len(names)-1; {
		var ended time.Time
		if ended, err = j.ended(names[gone:], now); err == nil {
			if now.Sub(ended) < j.opt.RetainAge {
				break
			}
			gone++
		}
	}
	if gone > 0 {
		err = cmp.Or(j.removeOldest(names[:gone], names[gone]), err)
	}
	if err != nil {
		j.opt.Log.Error("trace retention", "dir", j.dir, "error", err)
	}
}

// ended returns when the first of these segments got its last record. What that says is of the clock of the machine:
// if it is not between the begins of this segment and of a later one, the begin of the later one is the answer.
func (j *Journal) ended(names []string, now time.Time) (time.Time, error) {
	last, err := lastRecord(filepath.Join(j.dir, names[0]))
	if err != nil {
		return time.Time{}, err
	}
	begun, err := j.begun(names[0])
	later := now
	for _, name := range names[1:] {
		if err != nil {
			return time.Time{}, err
		}
		if later, err = j.begun(name); !later.After(now) {
			break
		}
	}
	// A record gets its time before the segment that it begins.
	if at := last.Time(); at.After(begun.Add(-maxClockStep)) && at.Before(later.Add(maxClockStep)) {
		return at, err
	}
	return later, err
}

// begun returns when a segment was begun, by Options.Steady if that was the later time.
func (j *Journal) begun(name string) (time.Time, error) {
	first, err := FirstRecord(filepath.Join(j.dir, name))
	if err != nil {
		return time.Time{}, err
	}
	var e Event
	if json.Unmarshal(first.Payload, &e) == nil && !e.Steady.IsZero() {
		return e.Steady, nil
	}
	return first.Time(), nil
}

// latest returns the later of the two clocks, for what begins now.
func (j *Journal) latest() time.Time {
	now, steady := j.opt.Now(), j.opt.Steady()
	if steady.After(now) {
		return steady
	}
	return now
}

// rotateIfOld begins a new segment if the open one is as old as [Options.RetainAge] allows. In either
// case it removes expired segments.
func (j *Journal) rotateIfOld() {
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.broken != nil {
		return
	}
	begun, err := j.begun(j.name)
	first, _ := SegmentSeq(j.name)
	switch {
	case err != nil:
		j.opt.Log.Error("trace retention", "file", j.name, "error", err)
	case first < j.seq && j.latest().Sub(begun).Abs() >= min(j.opt.RetainAge, maxSegmentAge): // it begins later than now if the clock was wrong
		if err := j.rotate(); err != nil { // rotate also removes expired segments
			j.setErr(err)
		}
		return
	}
	j.removeExpired()
}

// Bounds of [Options.RetainAge]: when a segment ends, and how often that is looked at.
const (
	maxSegmentAge     = 24 * time.Hour
	retentionInterval = time.Minute
	maxClockStep      = time.Minute // between the clock and the steady one, of which a segment says nothing
)

// removeOldest notes in the chain which segments go, moves the head's anchor to the oldest that
// stays, and only then removes them, so that a crash in between leaves a provable journal.
func (j *Journal) removeOldest(names []string, oldest string) error {
	first, err := j.firstRef(oldest)
	if err != nil {
		return err
	}
	var removed []Anchor
	for _, name := range names {
		a := Anchor{File: name}
		if last, err := lastRecord(filepath.Join(j.dir, name)); err == nil {
			a.Seq, a.Hash = last.Seq, last.Hash
		}
		removed = append(removed, a)
	}
	was := j.first
	j.first = first
	err = j.note(Event{Event: EventRetention, Removed: removed, First: &j.first})
	if err == nil {
		err = j.writeHeadAt(j.headNow())
	}
	if err != nil {
		j.first = was
		return err
	}
	for _, name := range names {
		j.removeSegment(name)
	}
	return nil
}

// lastRecord reads the last record of a segment.
func lastRecord(path string) (*Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := readTail(f)
	if err == nil && t.last == nil {
		err = fmt.Errorf("%s: its last line is not a right record", filepath.Base(path))
	}
	return t.last, err
}

func (j *Journal) removeSegment(name string) {
	path := filepath.Join(j.dir, name)
	if err := os.Remove(path); err != nil {
		j.opt.Log.Error("trace retention", "file", name, "error", err)
		return
	}
	j.opt.Log.Info("trace file removed by retention", "file", name)
}

// note writes a record about the journal itself. The caller holds writing or is Open.
func (j *Journal) note(e Event) error {
	_, err := j.writeSome(j.pendingNote(e))
	return err
}

func (j *Journal) pendingNote(e Event) []*pending {
	r := &Record{From: "foldgate", Kind: KindJournal, Payload: rawjson.Marshal(e)}
	p := new(pending)
	_ = j.encode(p, r, nil) // its kind is set, and it has no context and no audit
	return []*pending{p}
}

// flusher brings the disk and the head file up to date, Interval after the first commit that made
// them late. It tries a journal that does not accept records every second, and removes old segments.
// Close ends it.
func (j *Journal) flusher() {
	defer close(j.stopped)
	var expires <-chan time.Time
	if j.opt.RetainAge > 0 {
		ticker := time.NewTicker(retentionInterval)
		defer ticker.Stop()
		expires = ticker.C
	}
	for {
		var failing <-chan time.Time
		if j.Err() != nil {
			failing = time.After(time.Second)
		}
		select {
		case <-j.stop:
			return
		case <-failing:
			j.resume()
			continue
		case <-expires:
			j.rotateIfOld()
			continue
		case <-j.dirty:
		}
		select {
		case <-j.stop:
			return
		case <-time.After(j.opt.Interval):
		}
		j.flush()
	}
}

// flush syncs the records committed before the call and then anchors them,
// without holding up writers. If the segment cannot be synced or another program
// took it away, the journal accepts nothing more. If only the head cannot be
// written, such as on a full disk, flush reports that; the next flush tries again.
func (j *Journal) flush() {
	j.writing.Lock()
	h, file, name := j.headNow(), j.file, j.name
	j.writing.Unlock()
	err := inPlace(file, filepath.Join(j.dir, name))
	if err == nil && j.opt.Sync == SyncInterval {
		err = file.Sync()
	}
	if err != nil {
		j.writing.Lock()
		if j.name == name { // else rotate has synced and closed it meanwhile
			j.broken = fmt.Errorf("%s: %w; %w", name, err, ErrFinal)
		}
		err = j.broken
		j.writing.Unlock()
	}
	if err == nil {
		err = j.writeHeadAt(h)
	}
	if err != nil {
		j.setErr(err)
	}
}

// inPlace returns an error unless the open file is still the one at path: if
// another program moved or removed it, records would be lost unseen.
func inPlace(f segmentFile, path string) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	if err == nil && !os.SameFile(open, there) {
		err = errors.New("another program has replaced it")
	}
	return err
}

// resume tries to write again after a failure. A caller that watches Err may
// send no call before it succeeds.
func (j *Journal) resume() {
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.broken != nil || j.Err() == nil {
		return
	}
	if err := j.writeHeadAt(j.headNow()); err != nil { // first: a failure of it leaves no record
		j.setErr(err)
		return
	}
	j.commit(j.pendingNote(Event{Event: EventResumed}))
}

// headNow describes the last committed record. The caller holds writing.
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

// Dir returns the directory of the journal.
func (j *Journal) Dir() string { return j.dir }

// Err returns nil while the journal accepts records, else the error of the last write. After a
// full disk it becomes nil with the next successful Append, or by itself soon after there is
// room. A failed sync and a file that was taken away are final.
func (j *Journal) Err() error {
	if err := j.lastErr.Load(); err != nil {
		return *err
	}
	return nil
}

// setErr sets the error that Err returns, nil for none, and returns it: err after "trace journal: ".
func (j *Journal) setErr(err error) error {
	if err == nil {
		j.lastErr.Store(nil)
		return nil
	}
	failed := fmt.Errorf("trace journal: %w", err)
	if j.lastErr.Swap(&failed) == nil {
		j.opt.Log.Error("trace journal does not accept records", "dir", j.dir, "error", failed)
	}
	return failed
}

// Close writes the head, syncs and releases the directory. It finishes Appends
// that have begun; later ones return [ErrClosed].
func (j *Journal) Close() error {
	j.queueMu.Lock()
	if j.closed {
		j.queueMu.Unlock()
		return ErrClosed
	}
	j.closed = true
	j.queueMu.Unlock()
	close(j.stop)
	<-j.stopped
	j.erasing.Lock() // the next process must not find this one replacing files
	defer j.erasing.Unlock()
	j.writing.Lock()
	defer j.writing.Unlock()
	j.writeQueue() // Appends that queued before closed was set and wait for the lock
	err := j.broken
	if err == nil && j.opt.Sync != SyncNever {
		err = j.file.Sync()
	}
	if err == nil {
		err = j.writeHeadAt(j.headNow())
	}
	if err == nil && !j.interrupted {
		err = j.lock.Truncate(0) // an empty lock file: nothing was interrupted
	}
	j.broken = ErrClosed
	return cmp.Or(err, j.file.Close(), j.lock.Close())
}
