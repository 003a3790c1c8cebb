//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/foldgate/foldgate/test/testbin"
)

// growthLoad is the load under which growth is looked at.
var growthLoad = scenario{host: "http", upstream: "stdio", clients: 4, size: 100}

const growthWindow = 2 * time.Second

// growth prints the cost of a call while the gateway holds more and more.
func (r *rig) growth() error {
	for _, f := range []func() error{r.growBranches, r.growSessions, r.growUpstreams, r.growJournal} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func head(what string, more ...string) {
	fmt.Printf("\n| %s | CPU µs a call | calls/s |%s\n|---|---|---|%s\n", what, strings.Join(more, ""), strings.Repeat("---|", len(more)))
}

func row(n int, s sample, more string) {
	fmt.Printf("| %d | %.0f | %.0f |%s\n", n, micros(s.cpu), s.rate, more)
}

// growBranches opens branches in the session that is measured.
func (r *rig) growBranches() error {
	s, err := r.runFoldgate("grow-branches", r.leanStdio(), rotated)
	if err != nil {
		return err
	}
	defer s.close()
	sc := growthLoad
	sc.branches = 1
	l, c, err := openCaller(s, sc)
	if err != nil {
		return err
	}
	defer c.close()
	head("open branches")
	open := 1
	for _, n := range []int{1, 10, 100, 1000, 5000} {
		for ; open < n; open++ {
			if _, err := l.openBranch(c); err != nil {
				return err
			}
		}
		m, err := l.window(growthWindow/4, growthWindow)
		if err != nil {
			return err
		}
		row(n, m, "")
	}
	return nil
}

// growSessions opens sessions that do nothing.
func (r *rig) growSessions() error {
	s, err := r.runFoldgate("grow-sessions", r.leanStdio(), rotated)
	if err != nil {
		return err
	}
	defer s.close()
	l, err := openLane(s, growthLoad)
	if err != nil {
		return err
	}
	if _, err := l.window(growthWindow, growthWindow); err != nil { // memory is in place
		return err
	}
	head("idle sessions", " KB a session |")
	open, base := 1, rssOf(s.pid)
	for _, n := range []int{1, 1000, 5000} {
		for ; open < n; open++ {
			if _, err := openLane(s, growthLoad); err != nil {
				return err
			}
		}
		grown := float64(rssOf(s.pid)-base) / 1024
		m, err := l.window(growthWindow/4, growthWindow)
		if err != nil {
			return err
		}
		row(n, m, fmt.Sprintf(" %.1f |", grown/float64(n)))
	}
	return nil
}

// growUpstreams puts more servers behind the gateway, each with 50 tools.
func (r *rig) growUpstreams() error {
	up, err := r.start("lean", "", r.dir, nil, r.self, "upstream", "http", "48")
	if err != nil {
		return err
	}
	defer up.close()
	head("upstreams of 50 tools", " first tools/list ms |", " next, ms |")
	for _, n := range []int{1, 10, 100} {
		yaml := fmt.Sprintf("  lean: {url: %q, prefix: \"\"}\n", up.endpoint)
		for i := 1; i < n; i++ {
			yaml += fmt.Sprintf("  more%d: {url: %q}\n", i, up.endpoint)
		}
		s, err := r.runFoldgate(fmt.Sprintf("grow-upstreams-%d", n), yaml, rotated)
		if err != nil {
			return err
		}
		if err := growUpstream(s, n); err != nil {
			return err
		}
		s.close()
	}
	return nil
}

func growUpstream(s *server, n int) error {
	l, c, err := openCaller(s, growthLoad)
	if err != nil {
		return err
	}
	defer c.close()
	var took [2]time.Duration
	for i := range took {
		start := time.Now()
		if _, err := c.call(l.id(), "tools/list", "", ""); err != nil {
			return err
		}
		took[i] = time.Since(start)
	}
	m, err := l.window(growthWindow/4, growthWindow)
	if err != nil {
		return err
	}
	row(n, m, fmt.Sprintf(" %s | %s |", ms(took[0]), ms(took[1])))
	return nil
}

// growJournal measures again and again while one journal grows.
func (r *rig) growJournal() error {
	s, err := r.runFoldgate("grow-journal", r.leanStdio(), "trace: {rotate_mb: 2048}\n")
	if err != nil {
		return err
	}
	defer s.close()
	l, err := openLane(s, growthLoad)
	if err != nil {
		return err
	}
	head("records in the journal", " RSS MB |")
	for range 6 {
		before := int(l.nextID.Load())
		m, err := l.window(growthWindow/4, 2*growthWindow)
		if err != nil {
			return err
		}
		row(2*before, m, fmt.Sprintf(" %.0f |", float64(m.rss)/(1<<20)))
	}
	return nil
}

// startUp prints how long a foldgate on stdio takes from its start to its
// answer to initialize, without a server behind it being started.
func (r *rig) startUp() error {
	file, err := r.configure("startup", r.leanStdio(), rotated)
	if err != nil {
		return err
	}
	var took []time.Duration
	for range 9 {
		d, err := r.firstAnswer(file)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	info, err := os.Stat(r.foldgate)
	if err != nil {
		return err
	}
	fmt.Printf("start to the answer to initialize: %s ms (median of %d); binary: %.1f MB, stripped.\n", ms(median(took)), len(took), float64(info.Size())/1e6)
	return nil
}

func (r *rig) firstAnswer(config string) (time.Duration, error) {
	cmd := exec.CommandContext(r.ctx, r.foldgate, "run", "--config", config)
	cmd.Dir = filepath.Dir(config)
	start := time.Now()
	in, out, err := testbin.Start(cmd)
	if err != nil {
		return 0, err
	}
	_, _ = in.Write(append(message(nil, 1, "initialize", "", "", false), '\n'))
	line, err := bufio.NewReader(out).ReadString('\n')
	took := time.Since(start)
	_ = in.Close()
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	if err == nil && !strings.Contains(line, `"protocolVersion"`) {
		err = fmt.Errorf("not an answer to initialize: %.300s", line)
	}
	return took, err
}
