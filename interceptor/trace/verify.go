package trace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// VerifyOptions add to what [Verify] checks.
type VerifyOptions struct {
	// Anchor, if its Seq is not 0, is a record that must be there with that
	// hash, such as a head that was copied elsewhere.
	Anchor Anchor
	// Detect, if set, returns the rules that find a secret in a line.
	Detect func(line []byte) []string
}

// Verify reads the whole journal in dir and checks the chain, the anchor, the
// invariants of the records and what the options add. It may run beside the
// writer. An error means that it could not look, or ctx's that it stopped
// early; what it finds is in the report.
func Verify(ctx context.Context, dir string, o VerifyOptions) (Report, error) {
	for {
		h, headErr := readHead(dir) // before the files, so that what it anchors must be there
		if headErr != nil && errors.Is(headErr, fs.ErrPermission) {
			return Report{}, headErr
		}
		v := &verifier{dir: dir, opt: o, head: h, headErr: headErr, inv: newInvariants()}
		err := v.run(ctx)
		if h == nil || err == nil && v.report.OK() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return v.report, err
		}
		// Retention may have removed files before or while they were read: look again.
		if now, headErr := readHead(dir); headErr != nil || now == nil || now.First == h.First {
			return v.report, err
		}
	}
}

type verifier struct {
	dir     string
	opt     VerifyOptions
	head    *head
	headErr error
	report  Report
	inv     *invariants

	file     string
	line     int
	started  bool
	at       uint64 // seq of the line being checked, 0 if unknown
	seq      uint64 // of the line before
	hashes   [2]string
	anchored bool // the head's record was passed
	copied   bool // the auditor's record was passed
}

func (v *verifier) fault(code, format string, args ...any) {
	v.report.Total++
	if len(v.report.Faults) < MaxFaults {
		v.report.Faults = append(v.report.Faults, Fault{v.file, v.line, v.at, code, fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) note(code, format string, args ...any) {
	if len(v.report.Notes) < MaxFaults {
		v.report.Notes = append(v.report.Notes, Fault{v.file, v.line, v.at, code, fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) run(ctx context.Context) error {
	names, err := segments(v.dir)
	if err != nil {
		return err
	}
	v.file = headName
	switch {
	case v.headErr != nil:
		v.fault(FaultHeadUnreadable, "%v; nothing anchors the end", v.headErr)
	case v.head == nil && len(names) > 0:
		v.fault(FaultHeadMissing, "there is no head file; nothing anchors the beginning and the end")
	case v.head != nil:
		names = v.checkFirst(names)
	}
	for i, name := range names {
		if err := v.checkFile(ctx, name, i == len(names)-1); err != nil {
			return err
		}
	}
	v.checkEnd()
	for _, text := range v.inv.open() {
		v.note(NoteOpen, "%s", text)
	}
	return nil
}

// checkFirst leaves out files that retention has given up, and sets what the
// first record must continue.
func (v *verifier) checkFirst(names []string) []string {
	first := v.head.First
	for len(names) > 0 {
		if seq, _ := segmentFirst(names[0]); seq >= first.Seq {
			break
		}
		v.note(NoteEvent, "%s is no longer part of the journal", names[0])
		names = names[1:]
	}
	if len(names) == 0 || names[0] != first.File {
		v.file = first.File
		v.fault(FaultFileMissing, "the oldest file of the journal is missing")
	}
	v.started, v.seq, v.hashes = true, first.Seq-1, [2]string{first.Prev, first.Prev}
	v.inv.partial = first.Seq > 1
	return names
}

func (v *verifier) checkFile(ctx context.Context, name string, last bool) error {
	f, err := os.Open(filepath.Join(v.dir, name))
	if err != nil {
		return fmt.Errorf("trace file: %w", err)
	}
	defer f.Close()
	v.file, v.line = name, 0
	v.report.Files++
	err = scanLines(f, 0, func(line []byte, at int64, whole bool) bool {
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
		v.checkLine(line)
		return v.line%4096 != 0 || ctx.Err() == nil
	})
	if err != nil {
		v.fault(FaultUnreadable, "%v", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v.line, v.at = 0, 0
	if err := checkIndex(filepath.Join(v.dir, name)); err != nil {
		v.fault(FaultIndex, "%v", err)
	}
	return nil
}

func (v *verifier) checkLine(line []byte) {
	v.at = 0
	r, right, err := readRecord(line)
	claimed, actual := "", ""
	if err == nil {
		claimed, actual = r.Hash, r.Hash
		if !right {
			var ok bool
			if claimed, actual, ok = lineHash(line); !ok {
				err = errors.New("it does not end in a hash")
			}
		}
	}
	if err != nil {
		v.fault(FaultFormat, "not a record: %v", err)
		// The next line tells whether one record or more are gone.
		v.seq++
		v.hashes = [2]string{}
		return
	}
	v.report.Records++
	v.at = r.Seq
	if !right {
		v.fault(FaultHash, "record %d was changed: its hash is %s, its bytes have %s", r.Seq, claimed, actual)
	}
	v.checkPlace(r)
	v.seq, v.hashes, v.started = r.Seq, [2]string{claimed, actual}, true
	place := Anchor{File: v.file, Seq: r.Seq, Hash: r.Hash}
	if v.report.First.Seq == 0 {
		v.report.First = place
	}
	v.report.Last = place
	v.checkAnchors(r, actual)
	if r.Kind == KindJournal {
		v.checkEvent(r)
	}
	if v.opt.Detect != nil {
		for _, rule := range v.opt.Detect(line) {
			v.fault(FaultSecret, "record %d: rule %s finds a secret in it", r.Seq, rule)
		}
	}
	v.inv.check(r, v.fault)
}

// checkPlace compares a record's seq and prev with the line before. After a
// changed line either of its hashes may be the one that was continued.
func (v *verifier) checkPlace(r *Record) {
	if !v.started {
		return
	}
	want := v.seq + 1
	switch {
	case r.Seq > want+1:
		v.fault(FaultSeq, "records %d to %d are missing before this line, which is record %d", want, r.Seq-1, r.Seq)
	case r.Seq == want+1:
		v.fault(FaultSeq, "record %d is missing before this line, which is record %d", want, r.Seq)
	case r.Seq < want:
		v.fault(FaultSeq, "record %d is repeated or out of order: record %d belongs here", r.Seq, want)
	case v.hashes[0] != "" && r.Prev != v.hashes[0] && r.Prev != v.hashes[1]:
		v.fault(FaultPrev, "record %d does not continue the one before: its prev is %s, the hash before is %s", r.Seq, r.Prev, v.hashes[0])
	}
}

func (v *verifier) checkAnchors(r *Record, actual string) {
	if v.head != nil && r.Seq == v.head.Seq {
		v.anchored = true
		if actual != v.head.Hash {
			v.fault(FaultHead, "record %d is not the one that %s anchors: it has %s, the anchor %s", r.Seq, headName, actual, v.head.Hash)
		}
	}
	if a := v.opt.Anchor; a.Seq != 0 && r.Seq == a.Seq {
		v.copied = true
		if actual != a.Hash {
			v.fault(FaultAnchor, "record %d is not the one you hold: it has %s, yours %s", r.Seq, actual, a.Hash)
		}
	}
}

func (v *verifier) checkEvent(r *Record) {
	e, err := decodeEvent(r)
	switch {
	case err != nil:
		v.fault(FaultFormat, "record %d: %v", r.Seq, err)
	case e.Event == EventRepaired && e.SHA256 != "":
		v.note(NoteEvent, "record %d: after a crash %d bytes of an unfinished line were cut off %s", r.Seq, e.Bytes, e.File)
	case e.Event == EventGap && e.Expected != nil && e.Found != nil:
		v.note(NoteEvent, "record %d: at start, records %d to %d were not there", r.Seq, e.Found.Seq+1, e.Expected.Seq)
	case e.Event == EventRewritten && e.Expected != nil:
		v.fault(FaultHead, "record %d: at start, record %d was not the one that %s anchored with %s", r.Seq, e.Expected.Seq, headName, e.Expected.Hash)
	case e.Event == EventRetention && e.First != nil:
		v.note(NoteEvent, "record %d: retention removed %d files, what is before record %d", r.Seq, len(e.Removed), e.First.Seq)
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
		if v.seq < v.head.Seq {
			v.fault(FaultTail, "the end is cut off: the last record is %d, %s anchors record %d with %s", v.seq, headName, v.head.Seq, v.head.Hash)
		} else {
			v.fault(FaultHead, "record %d, which %s anchors, is not there", v.head.Seq, headName)
		}
	}
	if a := v.opt.Anchor; a.Seq != 0 && !v.copied {
		v.fault(FaultAnchor, "record %d, which you hold, is not there", a.Seq)
	}
}
