package upstream

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	maxLogLine  = 4 << 10 // bytes of a line of stderr
	maxLogLines = 50      // a second, of one connection and source
)

// rateLimitedLog passes a bounded number of lines a second on to the log, so
// that a chatty or broken server does not fill it.
type rateLimitedLog struct {
	mu      sync.Mutex // guards what follows
	begin   time.Time
	lines   int
	dropped int
}

// log passes a line on, unless there were too many in this second.
func (n *rateLimitedLog) log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	n.mu.Lock()
	dropped := 0
	if now := time.Now(); now.Sub(n.begin) >= time.Second {
		dropped, n.begin, n.lines, n.dropped = n.dropped, now, 0, 0
	}
	n.lines++
	skip := n.lines > maxLogLines
	if skip {
		n.dropped++
	}
	n.mu.Unlock()
	if dropped > 0 {
		log.Warn("lines of upstream not logged", "lines", dropped)
	}
	if !skip {
		log.Log(context.Background(), level, msg, args...)
	}
}

// logLines logs what a child process writes to stderr.
func logLines(r io.Reader, cfg *Config) {
	var n rateLimitedLog
	br := bufio.NewReaderSize(r, maxClean)
	for rest := false; ; {
		line, more, err := br.ReadLine()
		if err != nil {
			break
		}
		if !rest { // not the rest of a line that is too long
			text := string(line)
			if len(line) > maxLogLine {
				text = cfg.clean(line)
				text = text[:min(len(text), maxLogLine)]
			}
			n.log(cfg.Log, slog.LevelInfo, "stderr", "line", text)
		}
		rest = more
	}
	if n.dropped > 0 {
		cfg.Log.Warn("lines of upstream not logged", "lines", n.dropped)
	}
}
