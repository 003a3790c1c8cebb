//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// parts are the optional parts of foldgate's work.
type parts struct {
	scrubs  bool
	payload bool // in the records
}

// whole is foldgate with the default configuration.
var whole = parts{scrubs: true, payload: true}

// check makes sure that the foldgate about to be measured does its work: it counts and records, and
// it does the optional parts exactly if p says so. A gateway that does nothing is fast.
func check(s *server, p parts) error {
	l, c, err := openCaller(s, scenario{host: "http", upstream: "stdio", clients: 1, size: 4096, branches: 1})
	if err != nil {
		return err
	}
	defer c.close()
	if err := checkCount(l, c); err != nil {
		return err
	}
	if err := checkScrub(l, c, p); err != nil {
		return err
	}
	return checkTrace(l, c, p)
}

// checkCount compares the charge of a branch with our own count.
func checkCount(l *lane, c caller) error {
	before, err := used(l, c)
	if err != nil {
		return err
	}
	answer, err := l.text(c)
	if err != nil {
		return err
	}
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		return err
	}
	content, _ := rawjson.Get(answer, "result", "content")
	want := 0
	for block := range rawjson.Elements(content) {
		text, _ := rawjson.GetString(block, "text")
		want += counter.Count(text)
	}
	want += counter.Count(fmt.Sprintf(`{"size":%d}`, l.sc.size))
	after, err := used(l, c)
	if err != nil {
		return err
	}
	if after-before != want || want < 100 {
		return fmt.Errorf("foldgate does not count: a call of %d tokens changed budget_used by %d", want, after-before)
	}
	return nil
}

func used(l *lane, c caller) (int, error) {
	_, id, _ := strings.Cut(l.args[0], `"branch_id":`)
	answer, err := c.call(l.id(), "tools/call", "branch_status", `{"branch_id":`+id)
	if err != nil {
		return 0, err
	}
	raw, _ := rawjson.Get(answer, "result", "structuredContent", "budget_used")
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		return 0, fmt.Errorf("branch_status says no budget_used: %.500s", answer)
	}
	return n, nil
}

// checkScrub plants a fake credential.
func checkScrub(l *lane, c caller, p parts) error {
	answer, err := c.call(l.id(), "tools/call", "leak", "{}")
	if err != nil {
		return err
	}
	if !p.scrubs {
		if !bytes.Contains(answer, []byte(leaked)) {
			return fmt.Errorf("foldgate scrubs, which is switched off: %.300s", answer)
		}
		return nil
	}
	if bytes.Contains(answer, []byte(leaked)) || !bytes.Contains(answer, []byte("[REDACTED:")) {
		return fmt.Errorf("foldgate does not scrub: %.300s", answer)
	}
	return nil
}

// checkTrace expects two records a call, all with a payload or all without.
func checkTrace(l *lane, c caller, p parts) error {
	const calls = 10
	before, beforeFull := records(l.s)
	for range calls {
		if err := l.call(c); err != nil {
			return err
		}
	}
	n, full := records(l.s)
	want := 0
	if p.payload {
		want = 2 * calls
	}
	if n-before != 2*calls || full-beforeFull != want {
		return fmt.Errorf("foldgate does not trace: %d calls left %d records, %d with a payload", calls, n-before, full-beforeFull)
	}
	return nil
}

// records counts the lines about tools/call, and the lines among them with a payload.
func records(s *server) (n, full int) {
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(s.config), "state", "trace", "*.jsonl"))
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		for line := range bytes.Lines(raw) {
			kind, _ := rawjson.GetString(line, "kind")
			if !strings.HasSuffix(kind, "tools/call") {
				continue
			}
			n++
			if payload, ok := rawjson.Get(line, "payload"); ok && len(payload) > 20 {
				full++
			}
		}
	}
	return n, full
}
