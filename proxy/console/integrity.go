package console

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// verify is the verification that runs, or the last one.
type verify struct {
	mu      sync.Mutex
	cancel  context.CancelFunc // nil if none runs
	results []result
	closed  bool // none may begin
	running sync.WaitGroup
}

// result is the verification of one journal.
type result struct {
	Dir      string
	Begun    time.Time
	Ended    time.Time // zero while it runs or waits
	Percent  int64
	Report   trace.Report
	Err      string
	Anchored bool // an anchor was given
}

// stop ends the verification that runs, and lets none begin.
func (v *verify) stop() {
	v.mu.Lock()
	v.closed = true
	if v.cancel != nil {
		v.cancel()
	}
	v.mu.Unlock()
	v.running.Wait()
}

// startVerify begins a verification, unless one runs.
func (c *Console) startVerify(r *request) error {
	if err := r.checkForm(); err != nil {
		return err
	}
	var o trace.VerifyOptions
	if text := strings.TrimSpace(r.PostFormValue("anchor")); text != "" {
		a, err := trace.ParseAnchor(text)
		if err != nil {
			return problemf(http.StatusBadRequest, "anchor: %v", err)
		}
		o.Anchors = []trace.Anchor{a}
	}
	dirs := c.o.Dirs
	if n, err := strconv.Atoi(r.PostFormValue("journal")); err == nil && n > 0 && n <= len(dirs) {
		dirs = dirs[n-1 : n]
	} else if len(o.Anchors) > 0 && len(dirs) > 1 {
		return problemf(http.StatusBadRequest, "anchor: there are %d journals; choose the one that it is of", len(dirs))
	}
	c.verify.mu.Lock()
	defer c.verify.mu.Unlock()
	if c.verify.closed {
		return problemf(http.StatusServiceUnavailable, "the console is closing: start it again, then verify")
	}
	if c.verify.cancel == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		c.verify.cancel, c.verify.results = cancel, nil
		for _, dir := range dirs {
			c.verify.results = append(c.verify.results, result{Dir: dir, Anchored: len(o.Anchors) > 0})
		}
		c.verify.running.Go(func() { c.runVerify(ctx, dirs, o) })
	}
	http.Redirect(r.w, r.Request, "/integrity", http.StatusSeeOther)
	return nil
}

// runVerify verifies journals, one after the other.
func (c *Console) runVerify(ctx context.Context, dirs []string, o trace.VerifyOptions) {
	v := &c.verify
	for i, dir := range dirs {
		v.mu.Lock()
		v.results[i].Begun = time.Now()
		v.mu.Unlock()
		report := trace.WithProgress(ctx, func(done, all int64) {
			v.mu.Lock()
			before := v.results[i].Percent
			v.results[i].Percent = 100 * done / max(all, 1)
			moved := v.results[i].Percent != before
			v.mu.Unlock()
			if moved {
				c.change()
			}
		})
		found, err := query.Verify(report, dir, o)
		v.mu.Lock()
		one := &v.results[i]
		one.Ended, one.Report, one.Percent = time.Now(), found, 100
		if err != nil {
			one.Err = err.Error()
		}
		v.mu.Unlock()
	}
	v.mu.Lock()
	v.cancel = nil
	v.mu.Unlock()
	c.change()
}

// checkForm refuses a form that is not of a page of this session.
func (r *request) checkForm() error {
	r.Body = http.MaxBytesReader(r.w, r.Body, 64<<10)
	if subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(r.session.CSRF)) != 1 {
		return problemf(http.StatusForbidden, "this form is of another session: load the page again")
	}
	return nil
}

// anchor is the head of a journal.
type anchor struct {
	Dir  string
	Text string // SEQ:HASH
	JSON string // of the head file
	Err  string
}

// integrity is the page about the proof of the trace.
func (c *Console) integrity(r *request) error {
	var heads []anchor
	for _, dir := range c.o.Dirs {
		a := anchor{Dir: dir}
		var head trace.Anchor
		raw, err := os.ReadFile(filepath.Join(dir, "head.json"))
		if err == nil {
			err = json.Unmarshal(raw, &head)
		}
		if err != nil {
			a.Err = err.Error()
		} else {
			a.Text, a.JSON = strconv.FormatUint(head.Seq, 10)+":"+head.Hash, strings.TrimSpace(string(raw))
		}
		heads = append(heads, a)
	}
	p, err := c.trace.Page(r.Context(), query.PageQuery{Filter: query.Filter{Kinds: []string{trace.KindJournal}}, Size: 20, Wait: pageWait})
	if err != nil {
		return err
	}
	c.verify.mu.Lock()
	results := slices.Clone(c.verify.results)
	c.verify.mu.Unlock()
	return c.show(r, http.StatusOK, "integrity", "Integrity", map[string]any{"Heads": heads, "Results": results, "Events": p.Records})
}
