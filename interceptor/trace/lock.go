package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The lock file says who has the journal, and from when on something may be
// unfinished in it: a process id, when that process opened the journal and,
// where the one before it was interrupted and not settled, when that one opened
// it instead and the time of its last record. Each has a line. Close empties it.

// takeLock makes this process the one writer.
func (j *Journal) takeLock() error {
	path := filepath.Join(j.dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("trace lock: %w", err)
	}
	got, err := lockFile(f)
	if err != nil {
		f.Close()
		return fmt.Errorf("trace lock %s: %w", path, err)
	}
	was := make([]byte, 128)
	n, _ := f.ReadAt(was, 0)
	lines := strings.Split(string(was[:n]), "\n")
	if !got {
		f.Close()
		return fmt.Errorf("%w: %s is locked by process %s; stop it or set another state_dir",
			ErrInUse, path, strings.TrimSpace(lines[0]))
	}
	j.lock, j.from = f, j.opt.Now()
	if n > 0 {
		j.interrupted = true
		if fi, err := f.Stat(); err == nil {
			j.from = fi.ModTime() // of a version that wrote no times
		}
		if len(lines) > 3 {
			if t := micros(lines[1]); t != 0 {
				j.from = time.UnixMicro(t)
			}
			if t := micros(lines[2]); t != 0 {
				j.to = time.UnixMicro(t)
			}
		}
	}
	j.mark()
	return nil
}

// mark writes the lock file, in one piece: a process may be killed at any time.
// The lock itself is the kernel's; a failure only makes the next start look at
// less of what was left.
func (j *Journal) mark() {
	stamp := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(TimeFormat)
	}
	text := fmt.Appendf(nil, "%d\n%s\n%s\n", os.Getpid(), stamp(j.from), stamp(j.to))
	if _, err := j.lock.WriteAt(text, 0); err == nil {
		_ = j.lock.Truncate(int64(len(text)))
	}
}

// Interrupted reports whether the process that had the journal open before
// died without closing it: what it had begun is not recorded as ended. from is
// when it opened the journal, to the time of its last record. It does so at
// every start until [Journal.Settle] is called.
func (j *Journal) Interrupted() (from, to time.Time, ok bool) {
	j.io.Lock()
	defer j.io.Unlock()
	return j.from, j.to, j.interrupted
}

// Settle says that what an interrupted process had begun is now recorded as
// ended.
func (j *Journal) Settle() {
	j.io.Lock()
	defer j.io.Unlock()
	if j.interrupted {
		j.interrupted, j.from, j.to = false, j.opt.Now(), time.Time{}
		j.mark()
	}
}
