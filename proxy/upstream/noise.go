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
	noiseLine = 4 << 10 // how much of a line of stderr is logged
	noiseRate = 50      // lines per second, per link and source
)

// noise logs what an upstream says that is no message, at a bounded rate: a
// chatty or broken child must not fill the log.
type noise struct {
	mu      sync.Mutex // guards what follows
	begin   time.Time
	lines   int
	dropped int
}

// log passes a line on to the log, unless there were too many this second.
func (n *noise) log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	n.mu.Lock()
	dropped := 0
	if now := time.Now(); now.Sub(n.begin) >= time.Second {
		dropped, n.begin, n.lines, n.dropped = n.dropped, now, 0, 0
	}
	n.lines++
	skip := n.lines > noiseRate
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

// logLines logs what a child says on stderr, line by line.
func logLines(r io.Reader, cfg *Config) {
	var n noise
	br := bufio.NewReaderSize(r, maxClean)
	for rest := false; ; {
		line, more, err := br.ReadLine()
		if err != nil {
			break
		}
		if !rest { // and not what follows of a line too long
			text := string(line)
			if len(line) > noiseLine {
				text = cfg.clean(line)
				text = text[:min(len(text), noiseLine)]
			}
			n.log(cfg.Log, slog.LevelInfo, "stderr", "line", text)
		}
		rest = more
	}
	if n.dropped > 0 {
		cfg.Log.Warn("lines of upstream not logged", "lines", n.dropped)
	}
}
