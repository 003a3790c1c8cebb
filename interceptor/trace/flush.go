package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// lookAgain is how often a journal that does not accept records is tried.
const lookAgain = time.Second

// flusher brings the disk and the head file up to date, Interval after the
// first commit that made them late.
func (j *Journal) flusher() {
	defer close(j.done)
	for {
		var failing <-chan time.Time
		if j.Err() != nil {
			failing = time.After(lookAgain)
		}
		select {
		case <-j.stop:
			return
		case <-failing:
			j.resume()
			continue
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

// resume tries whether a journal that did not accept records does so again. Who
// watches Err may send no call before it does.
func (j *Journal) resume() {
	j.io.Lock()
	defer j.io.Unlock()
	if j.broken != nil || j.Err() == nil {
		return
	}
	err := j.writeHeadAt(j.headNow()) // first: it leaves no record each time it fails
	if err == nil {
		var p *pending
		if p, err = j.pendingNote(Event{Event: EventResumed}); err == nil {
			j.commit([]*pending{p})
			return
		}
	}
	j.setErr(fmt.Errorf("trace journal: %w", err))
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
