package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/foldgate/foldgate/internal/filelock"
)

// The lock file has two lines. Line 1 is the id of the process that has the journal. Line 2 is the time of the
// last record of an interrupted process that is not settled, else empty. Close empties the file.

// takeLock makes this process the only writer.
func (j *Journal) takeLock() error {
	path := filepath.Join(j.dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("trace lock: %w", err)
	}
	got, err := filelock.Try(f)
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
	j.lock, j.interrupted = f, n > 0
	if len(lines) > 1 {
		j.to, _ = time.Parse(TimeFormat, lines[1]) // zero if it is none
	}
	j.mark()
	return nil
}

// mark writes the lock file in one piece: a process may be killed at any time. The lock itself is
// the kernel's. After a failure to write, the next start only examines fewer records.
func (j *Journal) mark() {
	to := ""
	if !j.to.IsZero() {
		to = j.to.UTC().Format(TimeFormat)
	}
	text := fmt.Appendf(nil, "%d\n%s\n", os.Getpid(), to)
	if _, err := j.lock.WriteAt(text, 0); err == nil {
		_ = j.lock.Truncate(int64(len(text)))
	}
}

// Interrupted reports whether the process before died without closing the journal, so that calls
// and branches may have no end in it. to is the time of its last record. Every start reports it again
// until [Journal.Settle] is called.
func (j *Journal) Interrupted() (to time.Time, ok bool) {
	j.writing.Lock()
	defer j.writing.Unlock()
	return j.to, j.interrupted
}

// Settle says that the journal now has an end for all that an interrupted process had begun.
func (j *Journal) Settle() {
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.interrupted {
		j.interrupted, j.to = false, time.Time{}
		j.mark()
	}
}
