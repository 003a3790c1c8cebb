package trace

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Values of [Options.Sync].
const (
	SyncAlways   = "always"   // Append returns when the record is on the disk; concurrent calls share a sync
	SyncInterval = "interval" // the disk is at most Interval behind
	SyncNever    = "never"    // the operating system decides
)

// Defaults of [Options].
const (
	DefaultInterval    = 100 * time.Millisecond
	DefaultRotateBytes = 256 << 20
	DefaultMaxPayload  = 1 << 20
	MaxRotateBytes     = 2 << 30
)

// Options configure a [Journal]. The zero value is the default.
type Options struct {
	// Sync says when records reach the disk: SyncAlways, SyncInterval (default)
	// or SyncNever. In every mode a record is with the operating system when
	// Append returns, so the end of the process loses nothing; the modes differ
	// in what a crash of the machine loses.
	Sync string
	// Interval is how long SyncInterval waits, and how far the head file may be
	// behind in every mode. 0 is DefaultInterval.
	Interval time.Duration
	// RotateBytes is the size at which a new file is begun, at most
	// MaxRotateBytes; 0 is DefaultRotateBytes.
	RotateBytes int64
	// Retain bounds what is kept; the zero value keeps everything.
	Retain Retention
	// MaxPayload is the size in bytes up to which a payload is stored. A larger
	// one is replaced by its size and SHA-256. 0 is DefaultMaxPayload, negative
	// is no limit.
	MaxPayload int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log receives repairs and failures; nil discards them.
	Log *slog.Logger
}

// Retention bounds a journal. Only whole files are removed, never the one
// being written. A zero field sets no bound.
type Retention struct {
	Bytes int64         // of all files together
	Age   time.Duration // of a file's last change
	Files int           // including the one being written
}

// Errors of the journal that callers tell apart.
var (
	ErrClosed = errors.New("trace journal is closed")
	ErrInUse  = errors.New("trace directory is in use by another process")
)

// Journal is the one writer of a trace directory. Its methods are safe for
// concurrent use.
type Journal struct {
	dir  string
	opt  Options
	log  *slog.Logger
	lock *os.File

	mu     sync.Mutex // guards queue, closed
	queue  []*pending
	closed bool

	io     sync.Mutex // held while writing; guards the fields below
	file   segmentFile
	name   string // of file
	size   int64  // of what is committed in file
	seq    uint64 // last committed
	hash   string
	first  FirstRef
	spare  []*pending
	alone  int // waits in a row after which one record was written; see weigh
	buf    []byte
	broken error // once set, nothing is written any more

	yield func()       // runtime.Gosched
	hurry atomic.Int32 // so many records don't yield

	errMu   sync.Mutex // guards lastErr
	lastErr error

	headMu  sync.Mutex // serialises head writes; guards headSeq
	headSeq uint64

	dirty chan struct{} // something was committed, or failed to be, since the last flush
	stop  chan struct{}
	done  chan struct{} // closed when the flusher has ended

	// interrupted says that who had it open before did not close it, and that
	// Settle has not been called; see Interrupted for from and to.
	interrupted bool
	from, to    time.Time
}

// segmentFile is what the journal needs of an *os.File; tests put a full disk in its place.
type segmentFile interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
	Stat() (os.FileInfo, error)
}

// pending is a record on its way into the journal.
type pending struct {
	r        *Record
	envelope []byte // a finished line after it was written alone
	done     bool
	err      error
}

// Open opens the journal in dir, which it creates if needed, and takes its
// lock; [ErrInUse] says that another process has it. A last line torn by a
// crash is cut off, missing records are noted in the chain, both as records of
// kind [KindJournal], and logged.
func Open(dir string, o Options) (*Journal, error) {
	switch o.Sync {
	case "":
		o.Sync = SyncInterval
	case SyncAlways, SyncInterval, SyncNever:
	default:
		return nil, fmt.Errorf("trace sync %q: use always, interval or never", o.Sync)
	}
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.RotateBytes <= 0 {
		o.RotateBytes = DefaultRotateBytes
	}
	if o.RotateBytes > MaxRotateBytes {
		return nil, fmt.Errorf("trace rotation at %d bytes: use at most %d", o.RotateBytes, int64(MaxRotateBytes))
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = DefaultMaxPayload
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	j := &Journal{dir: dir, opt: o, log: o.Log, yield: runtime.Gosched,
		dirty: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	if j.log == nil {
		j.log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trace directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { // #nosec G302: it is a directory
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
	go j.flusher()
	return j, nil
}

// Err returns nil while the journal accepts records, else why the last write
// failed. A full disk heals with the next successful Append, or by itself soon
// after there is room; a failed sync or a file that was taken away does not.
func (j *Journal) Err() error {
	j.errMu.Lock()
	defer j.errMu.Unlock()
	return j.lastErr
}

func (j *Journal) setErr(err error) {
	j.errMu.Lock()
	defer j.errMu.Unlock()
	if err != nil && j.lastErr == nil {
		j.log.Error("trace journal does not accept records", "dir", j.dir, "error", err)
	}
	j.lastErr = err
}

// Close writes the head, syncs and releases the directory. Appends that have
// begun are finished first; later ones return [ErrClosed].
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	j.closed = true
	j.mu.Unlock()
	close(j.stop)
	<-j.done
	j.io.Lock()
	defer j.io.Unlock()
	j.drain() // who queued before closed was set and has not got the lock yet
	err := j.broken
	if err == nil && j.opt.Sync != SyncNever {
		err = j.file.Sync()
	}
	if err == nil {
		err = j.writeHeadAt(j.headNow())
	}
	if err == nil && !j.interrupted {
		err = j.lock.Truncate(0) // nobody holds it, and nothing was interrupted
	}
	for _, c := range []io.Closer{j.file, j.lock} {
		if cerr := c.Close(); err == nil {
			err = cerr
		}
	}
	j.broken = ErrClosed
	return err
}
