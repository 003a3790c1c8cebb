package trace

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// drain commits everything queued, and returns how many records that was. The
// caller holds io.
func (j *Journal) drain() int {
	j.mu.Lock()
	q := j.queue
	j.queue = j.spare[:0]
	j.mu.Unlock()
	j.commit(q)
	clear(q)
	j.spare = q
	return len(q)
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
			j.wake()
			return
		}
		q = q[n:]
	}
	j.setErr(nil)
	j.wake()
}

// wake lets the flusher look at what was committed, or failed to be.
func (j *Journal) wake() {
	select {
	case j.dirty <- struct{}{}:
	default:
	}
}

// writeSome writes as many records of q, at least one, as fit in the file and
// returns how many. On error none is written.
func (j *Journal) writeSome(q []*pending) (int, error) {
	buf, seq, hash := j.buf[:0], j.seq, j.hash
	n, alone := 0, len(q) == 1
	for _, p := range q {
		if n > 0 && j.size+int64(len(buf)+len(p.envelope)+lineTail+128) > j.opt.RotateBytes {
			break
		}
		start := len(buf)
		if alone {
			buf = p.envelope // finished where it is
		} else {
			buf = append(buf, p.envelope...)
		}
		seq++
		p.r.Seq, p.r.Prev = seq, hash
		buf, hash = appendChain(buf, start, seq, hash)
		p.r.Hash = hash
		n++
	}
	switch {
	case alone:
		q[0].envelope = buf
	case cap(buf) <= 1<<20:
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
		err = j.sync()
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

// sync waits for the disk. After a failed sync the kernel may have dropped the
// pages: what is on the disk is unknown, so nothing more is promised.
func (j *Journal) sync() error {
	if err := j.file.Sync(); err != nil {
		j.broken = fmt.Errorf("sync of %s failed, restart foldgate when the disk is sound: %w", j.name, err)
	}
	return j.broken
}

// rotate ends the file and begins the next. The caller holds io.
func (j *Journal) rotate() error {
	if j.opt.Sync != SyncNever {
		if err := j.sync(); err != nil {
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
	p, err := j.pendingNote(e)
	if err == nil {
		_, err = j.writeSome([]*pending{p})
	}
	return err
}

func (j *Journal) pendingNote(e Event) (*pending, error) {
	r := &Record{From: "foldgate", Kind: KindJournal, Payload: rawjson.Marshal(e)}
	if err := j.prepare(r); err != nil {
		return nil, err
	}
	envelope, err := j.envelope(nil, r, nil)
	return &pending{r: r, envelope: envelope}, err
}
