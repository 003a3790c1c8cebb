package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// VerifyOptions add checks to [Verify].
type VerifyOptions struct {
	// Anchors are records that must be there with their hash, such as heads that were copied elsewhere.
	Anchors []Anchor
	// Several means that each of Anchors is in one of several journals: it is no fault if it is not in this one.
	Several bool
	Detect  func(line []byte) []string // returns the rules that find a secret in a line; may be nil
	// Each, if set, is called when the reading begins, and again if it begins anew because segments
	// were removed or begun. The function that it returns gets every record, with its segment, and the
	// offset and length of its line.
	Each func() func(r *Record, file string, offset int64, size int)
}

// Verify reads the whole journal in dir and checks the chain, the anchor, the invariants of the
// records and the options. It may run beside the writer. Faults are in the report. An error means
// that Verify could not read, or that ctx ended.
func Verify(ctx context.Context, dir string, o VerifyOptions) (Report, error) {
	var unannouncedBefore uint64 // in the pass before
	for {
		h, headErr := readHead(dir) // before the files, so that the anchored record must be in them
		if headErr != nil && errors.Is(headErr, fs.ErrPermission) {
			return Report{}, headErr
		}
		v := &verifier{dir: dir, opt: o, head: h, headErr: headErr, invariants: newInvariants(), copied: map[Anchor]bool{}}
		if o.Each != nil {
			v.each = o.Each()
		}
		err := v.run(ctx)
		if h == nil || err == nil && v.report.OK() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return v.report, err
		}
		// Retention may have removed files before or while they were read. Or an erasure changed one
		// before it was read, and is announced in a segment that began later. The next pass reads that,
		// so a record that it misses, too, was erased by somebody else. Look again.
		now, headErr := readHead(dir)
		retained := headErr == nil && now != nil && now.First != h.First
		names, _ := Segments(dir)
		begun := v.unannounced > 0 && v.unannounced != unannouncedBefore && !slices.Equal(names, v.names)
		if !retained && !begun {
			return v.report, err
		}
		unannouncedBefore = v.unannounced
	}
}

type progressKey struct{}

// WithProgress returns a context with which [Verify], and the building of an index, report now and
// then how many bytes of a journal of all they have read.
func WithProgress(ctx context.Context, report func(done, all int64)) context.Context {
	return context.WithValue(ctx, progressKey{}, report)
}

// Progress reports to the function of [WithProgress]. done are the bytes read of the journal in dir.
func Progress(ctx context.Context, dir string, done int64) {
	report, ok := ctx.Value(progressKey{}).(func(done, all int64))
	if !ok {
		return
	}
	names, _ := Segments(dir)
	var all int64
	for _, name := range names {
		if fi, err := os.Stat(filepath.Join(dir, name)); err == nil {
			all += fi.Size()
		}
	}
	report(done, all)
}

type verifier struct {
	dir     string
	opt     VerifyOptions
	head    *head
	headErr error
	names   []string // of the segments when the pass began
	report  Report
	invariants
	each func(r *Record, file string, offset int64, size int)

	file        string
	line        int
	seq         uint64 // of the line being checked, 0 if unknown
	before      lineBefore
	erased      []Range         // the records without their payloads
	announced   []Range         // those that records about erasures name
	unannounced uint64          // the first of erased that is not announced, 0 for none
	anchored    bool            // the head's record was passed
	copied      map[Anchor]bool // anchors of the auditor whose records were passed
}

// lineBefore is the line before the one that is being checked.
type lineBefore struct {
	seq             uint64
	claimed, actual string // hashes, as in proof; "" if it was not a record
}

func (v *verifier) fault(code, format string, args ...any) {
	v.report.Add(Fault{v.file, v.line, v.seq, code, fmt.Sprintf(format, args...)})
}

func (v *verifier) note(code, format string, args ...any) {
	if len(v.report.Notes) < maxFaults {
		v.report.Notes = append(v.report.Notes, Fault{v.file, v.line, v.seq, code, fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) run(ctx context.Context) error {
	names, err := Segments(v.dir)
	if err != nil {
		return err
	}
	v.names, v.file = names, headName
	switch {
	case v.headErr != nil:
		v.fault(FaultHeadUnreadable, "%v; nothing anchors the end", v.headErr)
	case v.head == nil && len(names) > 0:
		v.fault(FaultHeadMissing, "there is no head file; nothing anchors the beginning and the end")
	}
	if v.head != nil {
		names = v.checkFirst(names)
	} else if len(names) > 0 {
		first, _ := SegmentSeq(names[0])
		v.before.seq = first - 1
	}
	for i, name := range names {
		if err := v.checkFile(ctx, name, i == len(names)-1); err != nil {
			return err
		}
	}
	v.checkEnd()
	v.noteOpen()
	return nil
}

// checkFirst leaves out segments that retention has given up, and sets the seq
// and hash that the first record must continue.
func (v *verifier) checkFirst(names []string) []string {
	first := v.head.First
	for len(names) > 0 {
		if seq, _ := SegmentSeq(names[0]); seq >= first.Seq {
			break
		}
		v.note(NoteEvent, "%s is no longer part of the journal", names[0])
		names = names[1:]
	}
	if len(names) == 0 || names[0] != first.File {
		v.file = first.File
		v.fault(FaultFileMissing, "the oldest file of the journal is missing")
	}
	v.before = lineBefore{first.Seq - 1, first.Prev, first.Prev}
	v.partial = first.Seq > 1
	return names
}

func (v *verifier) checkFile(ctx context.Context, name string, last bool) error {
	v.file, v.line = name, 0
	v.report.Files++
	err := ReadLines(filepath.Join(v.dir, name), 0, func(line []byte, offset int64, whole bool) bool {
		v.line++
		if !whole {
			if last {
				v.note(NoteWriting, "the last line is incomplete: it is being written, or a crash has torn it and the next start repairs it")
			} else {
				v.fault(FaultTorn, "the file ends in the middle of a line")
			}
			return false
		}
		v.report.Bytes += int64(len(line)) + 1
		v.checkLine(line, offset)
		if v.line%4096 == 0 {
			Progress(ctx, v.dir, v.report.Bytes)
		}
		return v.line%4096 != 0 || ctx.Err() == nil
	})
	if file, ok := errors.AsType[*fs.PathError](err); ok && file.Op == "open" {
		return fmt.Errorf("trace file: %w", err)
	}
	if err != nil {
		v.fault(FaultUnreadable, "%v", err)
	}
	v.line, v.seq = 0, 0
	return ctx.Err()
}

func (v *verifier) checkLine(line []byte, offset int64) {
	v.seq = 0
	r, p, err := parseLine(line)
	if err == nil && p.end == 0 {
		err = errors.New("it does not have its hash at its place")
	}
	if err != nil {
		v.fault(FaultFormat, "not a record: %v", err)
		// The next line shows how many records are missing.
		v.before = lineBefore{seq: v.before.seq + 1}
		return
	}
	v.report.Records++
	v.seq = r.Seq
	switch {
	case p.claimed != p.actual:
		v.fault(FaultHash, "record %d was changed: its hash is %s, its bytes have %s", r.Seq, p.claimed, p.actual)
	case !p.intact(r):
		v.fault(FaultHash, "the payload of record %d was changed: its digest is %s, its bytes have %s", r.Seq, r.Digest, p.digest)
	}
	v.checkPlace(r)
	v.before = lineBefore{r.Seq, p.claimed, p.actual}
	place := Anchor{File: v.file, Seq: r.Seq, Hash: r.Hash}
	if v.report.First.Seq == 0 {
		v.report.First = place
	}
	v.report.Last = place
	v.checkAnchors(r, p.actual)
	if r.Kind == KindJournal {
		v.checkEvent(r)
	} else if r.Erased() {
		v.report.Erased++
		v.erased = addSeq(v.erased, r.Seq)
	}
	if v.opt.Detect != nil {
		for _, rule := range v.opt.Detect(line) {
			v.fault(FaultSecret, "record %d: rule %s finds a secret in it", r.Seq, rule)
		}
	}
	v.checkInvariants(r)
	if v.each != nil {
		v.each(r, v.file, offset, len(line)+1)
	}
}

// checkPlace compares a record's seq and prev with the line before, and a file's first record with
// the file's name. After a changed line, prev may match either of its hashes.
func (v *verifier) checkPlace(r *Record) {
	want := v.before.seq + 1
	named, _ := SegmentSeq(v.file)
	switch {
	case r.Seq > want+1:
		v.fault(FaultSeq, "records %d to %d are missing before this line, which is record %d", want, r.Seq-1, r.Seq)
	case r.Seq == want+1:
		v.fault(FaultSeq, "record %d is missing before this line, which is record %d", want, r.Seq)
	case r.Seq < want:
		v.fault(FaultSeq, "record %d is repeated or out of order: record %d belongs here", r.Seq, want)
	case v.before.claimed != "" && r.Prev != v.before.claimed && r.Prev != v.before.actual:
		v.fault(FaultPrev, "record %d does not continue the one before: its prev is %s, the hash before is %s", r.Seq, r.Prev, v.before.claimed)
	case v.line == 1 && r.Seq != named:
		v.fault(FaultFileName, "the file was renamed: it begins with record %d, its name says %d", r.Seq, named)
	}
}

func (v *verifier) checkAnchors(r *Record, actual string) {
	if v.head != nil && r.Seq == v.head.Seq {
		v.anchored = true
		if actual != v.head.Hash {
			v.fault(FaultHead, "record %d is not the one that %s anchors: it has %s, the anchor %s", r.Seq, headName, actual, v.head.Hash)
		}
	}
	for _, a := range v.opt.Anchors {
		if r.Seq != a.Seq || v.opt.Several && r.Hash != a.Hash {
			continue
		}
		v.copied[a] = true
		if actual != a.Hash {
			v.fault(FaultAnchor, "record %d is not the one you hold: it has %s, yours %s", r.Seq, actual, a.Hash)
		}
	}
}

func (v *verifier) checkEvent(r *Record) {
	var e Event
	switch err := json.Unmarshal(r.Payload, &e); {
	case err != nil:
		v.fault(FaultFormat, "record %d: journal event: %v", r.Seq, err)
	case e.Event == EventRepaired && e.SHA256 != "":
		v.note(NoteEvent, "record %d: after a crash %d bytes of an unfinished line were cut off %s", r.Seq, e.Bytes, e.File)
	case e.Event == EventGap && e.Expected != nil && e.Found != nil:
		v.note(NoteEvent, "record %d: at start, records %d to %d were not there", r.Seq, e.Found.Seq+1, e.Expected.Seq)
	case e.Event == EventRewritten && e.Expected != nil:
		v.fault(FaultHead, "record %d: at start, record %d was not the one that %s anchored with %s", r.Seq, e.Expected.Seq, headName, e.Expected.Hash)
	case e.Event == EventNoHead && e.Found != nil:
		v.fault(FaultHeadMissing, "record %d: at start there was no right %s; what followed record %d may be cut off", r.Seq, headName, e.Found.Seq)
	case e.Event == EventRetention && e.First != nil:
		v.note(NoteEvent, "record %d: retention removed %d files, what is before record %d", r.Seq, len(e.Removed), e.First.Seq)
	case e.Event == EventErased && len(e.Erased) > 0:
		v.announced = append(v.announced, e.Erased...)
		v.note(NoteEvent, "record %d: %s erased payloads of %d records from %d on", r.Seq, e.By, count(e.Erased), e.Erased[0][0])
	case e.Event != EventBegin:
		v.note(NoteEvent, "record %d: %s", r.Seq, e.Event)
	}
}

func (v *verifier) checkEnd() {
	v.line = 0
	if v.report.Last.File != "" {
		v.file = v.report.Last.File
	}
	if v.head != nil && !v.anchored {
		if v.before.seq < v.head.Seq {
			v.fault(FaultTail, "the end is cut off: the last record is %d, %s anchors record %d with %s", v.before.seq, headName, v.head.Seq, v.head.Hash)
		} else {
			v.fault(FaultHead, "record %d, which %s anchors, is not there", v.head.Seq, headName)
		}
	}
	if v.unannounced = unannounced(v.erased, v.announced); v.unannounced > 0 {
		v.fault(FaultErased, "the payload of record %d is missing, and no record says that it was erased", v.unannounced)
	}
	for _, a := range v.opt.Anchors {
		if v.copied[a] {
			v.report.Held = append(v.report.Held, a)
		} else if !v.opt.Several {
			v.fault(FaultAnchor, "record %d, which you hold, is not there: the journal has %d to %d", a.Seq, v.report.First.Seq, v.report.Last.Seq)
		}
	}
}

// Report is the outcome of [Verify].
type Report struct {
	Files   int    `json:"files"`
	Records uint64 `json:"records"`
	Bytes   int64  `json:"bytes"`
	Erased  uint64 `json:"erased"` // records with an erased payload
	First   Anchor `json:"first"`  // the oldest record there is
	Last    Anchor `json:"last"`
	// Held are those of [VerifyOptions.Anchors] whose records are there.
	Held []Anchor `json:"-"`
	// Faults are in the order of the journal, at most 100; Total counts all.
	Faults []Fault `json:"faults,omitempty"`
	Total  int     `json:"faults_total"`
	// Notes are repairs, retention, branches still open and a line being written: an auditor should
	// know them, but they are no faults. There are at most 100.
	Notes []Fault `json:"notes,omitempty"`
}

const maxFaults = 100

// OK reports whether there is no fault.
func (r Report) OK() bool { return r.Total == 0 }

// Add adds a fault.
func (r *Report) Add(f Fault) {
	r.Total++
	if len(r.Faults) < maxFaults {
		r.Faults = append(r.Faults, f)
	}
}

// Fault is one finding and its place.
type Fault struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"` // from 1; 0 if the fault is not in a line
	Seq  uint64 `json:"seq,omitempty"`
	Code string `json:"code"` // one of the Fault constants
	Text string `json:"text"`
}

// String is "file:line: text (code)".
func (f Fault) String() string {
	where := f.File
	if f.Line > 0 {
		where = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if where != "" {
		where += ": "
	}
	return fmt.Sprintf("%s%s (%s)", where, f.Text, f.Code)
}

// Codes of [Fault]: of the chain first, then of the invariants.
const (
	FaultHeadMissing    = "head_missing"    // there are records but no head
	FaultHeadUnreadable = "head_unreadable" // the head is damaged
	FaultFileMissing    = "file_missing"    // the oldest segment that must exist is missing
	FaultFileName       = "file_name"       // a segment was renamed
	FaultUnreadable     = "unreadable"      // an input/output error or an endless line
	FaultTorn           = "torn"            // a file but the last ends in the middle of a line
	FaultFormat         = "format"          // a line is not a record
	FaultHash           = "hash"            // a line does not match its hash, or a payload its digest: it was changed
	FaultErased         = "erased"          // a payload is missing without a record of its erasure
	FaultSeq            = "seq"             // records are missing, repeated or out of order
	FaultPrev           = "prev"            // a line does not continue the one before
	FaultHead           = "head"            // another record is in the place of the anchored one
	FaultTail           = "tail"            // the anchored record is missing: the end was cut off
	FaultAnchor         = "anchor"          // a record of VerifyOptions.Anchors is missing or another one
	FaultIndex          = "index"           // the index is not the one that the files give
	FaultSecret         = "secret"          // a scrub rule still finds something

	FaultDuplicateID = "duplicate_id"
	FaultContext     = "context"         // a context is not a valid path
	FaultOrphan      = "orphan_response" // no earlier request in the same context
	FaultPushTwice   = "push_twice"      // a branch was opened again
	FaultPopUnopened = "pop_unopened"    // a branch was closed without having been opened
	FaultPopTwice    = "pop_twice"       // a branch was closed again
	FaultPopOrder    = "pop_order"       // a branch was closed before its child
	FaultClosed      = "closed_branch"   // a message in a closed branch that is not marked late
	FaultTokens      = "tokens_disagree" // a branch's total is less than its charges
)

// Codes of [Report.Notes].
const (
	NoteEvent   = "journal_event" // a repair, a gap, retention
	NoteWriting = "writing"       // the last line is incomplete: being written, or torn by a crash
	NoteOpen    = "open_branch"
)
