package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// store is a log store that keeps bodies, and fails while fail is set.
type store struct {
	mu     sync.Mutex
	bodies []string
	fail   error
}

func (s *store) Export(_ context.Context, records []sdklog.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	for _, r := range records {
		s.bodies = append(s.bodies, r.Body().AsString())
	}
	return nil
}

func (s *store) Shutdown(context.Context) error   { return nil }
func (s *store) ForceFlush(context.Context) error { return nil }

func (s *store) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// check returns the report of the bodies as one journal.
func (s *store) check(t *testing.T, anchors ...trace.Anchor) trace.Report {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Checker{Anchors: anchors}
	if err := c.Add("bodies", strings.NewReader(strings.Join(s.bodies, "\n"))); err != nil {
		t.Fatal(err)
	}
	reports, missing := c.Reports()
	for _, text := range missing {
		t.Error(text)
	}
	return reports["bodies"]
}

func open(t *testing.T, dir string, o trace.Options) *trace.Journal {
	t.Helper()
	j, err := trace.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func add(t *testing.T, j *trace.Journal, n int) {
	t.Helper()
	for range n {
		if err := j.Append(&trace.Record{From: "host:x", Kind: "mcp/request:tools/call", Audit: &trace.Audit{Principal: "alice", Tool: "t"}},
			[]byte(`{"text":"Erika Mustermann"}`)); err != nil {
			t.Fatal(err)
		}
	}
}

func end(t *testing.T, stop func(context.Context), j *trace.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop(ctx)
}

// All records arrive without their payloads, over several segments, starts and a store that is down.
func TestExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), new(store)
		log := slog.New(slog.DiscardHandler)
		options := trace.Options{RotateBytes: 20_000}
		j := open(t, dir, options)
		add(t, j, 100) // before the first export
		stop := Start(dir, s, resource.Empty(), log)
		time.Sleep(5 * time.Second)
		if r := s.check(t); !r.OK() || r.Records < 100 {
			t.Errorf("report %+v", r)
		}
		s.set(errors.New("down"))
		add(t, j, 700)
		time.Sleep(time.Hour)
		end(t, stop, j)
		s.set(nil)
		j = open(t, dir, options)
		stop = Start(dir, s, resource.Empty(), log)
		add(t, j, 1000)
		end(t, stop, j)
		want, err := trace.Verify(t.Context(), dir, trace.VerifyOptions{})
		if err != nil || !want.OK() {
			t.Fatal(want, err)
		}
		got := s.check(t, trace.Anchor{Seq: want.Last.Seq, Hash: want.Last.Hash})
		if !got.OK() || got.Records != want.Records || got.Last.Hash != want.Last.Hash || got.First.Seq != 1 || got.Erased < 1800 {
			t.Errorf("exported %+v, want %+v", got, want)
		}
		if len(s.bodies) != int(want.Records) || strings.Contains(strings.Join(s.bodies, ""), "Mustermann") {
			t.Errorf("%d bodies for %d records, or one has a payload", len(s.bodies), want.Records)
		}
		if err := os.RemoveAll(dir); err != nil { // another journal in its place
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		j, other := open(t, dir, options), new(store)
		stop = Start(dir, other, resource.Empty(), log)
		add(t, j, 3)
		end(t, stop, j)
		if r := other.check(t); !r.OK() || r.Records != 4 {
			t.Errorf("of the other journal %+v", r)
		}
	})
}

// Erasures make lines shorter that are sent, and others that are not. None is lost or sent twice, also if the
// file system gives the last of several files of a segment the number of the first.
func TestExportBesideErasures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), new(store)
		var log bytes.Buffer
		j := open(t, dir, trace.Options{})
		stop := Start(dir, s, resource.Empty(), slog.New(slog.NewTextHandler(&log, nil)))
		add(t, j, 100)
		time.Sleep(5 * time.Second)
		s.set(errors.New("down"))
		add(t, j, 100)
		time.Sleep(5 * time.Second)
		path, same := filepath.Join(dir, trace.SegmentName(1)), filepath.Join(dir, "same")
		if err := os.Link(path, same); err != nil {
			t.Fatal(err)
		}
		for _, seqs := range [][]uint64{{2, 3, 50}, {51, 150}} {
			if err := j.Erase(seqs, "root"); err != nil {
				t.Fatal(err)
			}
		}
		data, err := os.ReadFile(path)
		if err := errors.Join(err, os.WriteFile(same, data, 0o600), os.Rename(same, path)); err != nil {
			t.Fatal(err)
		}
		s.set(nil)
		add(t, j, 100)
		time.Sleep(2 * time.Minute)
		if err := j.Erase([]uint64{205, 206, 300}, "root"); err != nil { // nothing is left but to send what follows
			t.Fatal(err)
		}
		end(t, stop, j)
		want, err := trace.Verify(t.Context(), dir, trace.VerifyOptions{})
		if err != nil || !want.OK() || want.Erased != 8 {
			t.Fatal(want, err)
		}
		if got := s.check(t); !got.OK() || got.Records != want.Records || len(s.bodies) != int(want.Records) || strings.Contains(log.String(), "damaged") {
			t.Errorf("exported %+v, want %+v\n%s", got, want, &log)
		}
	})
}

// A damaged line is not exported, and the log says so once. The records behind it are.
func TestExportOfDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), new(store)
		var log bytes.Buffer
		j := open(t, dir, trace.Options{})
		add(t, j, 5)
		damage(t, dir, 4)
		stop := Start(dir, s, resource.Empty(), slog.New(slog.NewTextHandler(&log, nil)))
		time.Sleep(time.Minute)
		add(t, j, 1)
		damage(t, dir, 7) // the last one
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), "damaged"); n != 2 || len(s.bodies) != 5 {
			t.Errorf("%d log lines and %d records, want 2 and 5\n%s", n, len(s.bodies), &log)
		}
		add(t, j, 1)
		end(t, stop, j)
		if len(s.bodies) != 6 {
			t.Errorf("%d records, want 6\n%s", len(s.bodies), &log)
		}
	})
}

// A record of a refusal that does not say why is sent as any other.
func TestExportOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), new(store)
		j := open(t, dir, trace.Options{})
		if err := j.Append(&trace.Record{Kind: trace.KindReject + "tools/call"}); err != nil {
			t.Fatal(err)
		}
		add(t, j, 1)
		end(t, Start(dir, s, resource.Empty(), slog.New(slog.DiscardHandler)), j)
		if len(s.bodies) != 3 {
			t.Errorf("%d records, want 3", len(s.bodies))
		}
	})
}

// damage makes the line of a record of the first segment another one, which is no record.
func damage(t *testing.T, dir string, seq int) {
	t.Helper()
	path := filepath.Join(dir, trace.SegmentName(1))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	lines[seq-1][0] = '['
	if err := os.WriteFile(path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What retention removed before it was sent is missing in the export, and the check says so.
func TestExportAfterRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), new(store)
		var log bytes.Buffer
		options := trace.Options{RotateBytes: 20_000, RetainFiles: 2}
		j := open(t, dir, options)
		stop := Start(dir, s, resource.Empty(), slog.New(slog.NewTextHandler(&log, nil)))
		add(t, j, 1)
		time.Sleep(5 * time.Second)
		s.set(errors.New("down"))
		add(t, j, 300)
		time.Sleep(5 * time.Second)
		s.set(nil)
		time.Sleep(2 * time.Minute)
		end(t, stop, j)
		if r := s.check(t); r.Total != 1 || r.Faults[0].Code != trace.FaultSeq || !strings.HasPrefix(r.Faults[0].Text, "records 3 to ") {
			t.Errorf("report %+v", r)
		}
		if !strings.Contains(log.String(), "retention removed trace records before they were exported") {
			t.Errorf("log %s", &log)
		}
	})
}

// exported returns the bodies of a journal of n records.
func exported(t *testing.T, n int) []string {
	t.Helper()
	dir, s := t.TempDir(), new(store)
	j := open(t, dir, trace.Options{})
	add(t, j, n-1)
	end(t, Start(dir, s, resource.Empty(), slog.New(slog.DiscardHandler)), j)
	if len(s.bodies) != n {
		t.Fatalf("%d bodies, want %d", len(s.bodies), n)
	}
	return s.bodies
}

func TestCheckFinds(t *testing.T) {
	good, other := exported(t, 10), exported(t, 10)
	anchor := func(line string) trace.Anchor {
		r, _, err := trace.ParseLine([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		return trace.Anchor{Seq: r.Seq, Hash: r.Hash}
	}
	without := func(i int) []string { return append(append([]string{}, good[:i]...), good[i+1:]...) }
	for _, tt := range []struct {
		name      string
		lines     []string
		selection bool
		anchors   []trace.Anchor
		want      string // a code, "anchor" or ""
	}{
		{name: "whole", lines: good, anchors: []trace.Anchor{anchor(good[9])}},
		{name: "in any order, repeated", lines: append([]string{good[9], good[3]}, good...)},
		{name: "from the middle", lines: good[4:], anchors: []trace.Anchor{anchor(good[9])}},
		{name: "one missing", lines: without(4), want: trace.FaultSeq},
		{name: "one missing of a selection", lines: without(4), selection: true},
		{name: "one changed", lines: append(without(4), strings.Replace(good[4], "alice", "alive", 1)), want: trace.FaultHash},
		{name: "one of a selection changed", lines: []string{strings.Replace(good[4], "alice", "alive", 1)}, selection: true, want: trace.FaultHash},
		{name: "one of another journal", lines: append(without(4), other[4]), want: trace.FaultPrev},
		{name: "two with one number", lines: append([]string{other[4]}, good...), want: trace.FaultSeq},
		{name: "two journals in one file", lines: append(slices.Clone(other), good...), want: trace.FaultSeq},
		{name: "cut off", lines: good[:9], anchors: []trace.Anchor{anchor(good[9])}, want: "anchor"},
		{name: "begins after it", lines: good[4:], anchors: []trace.Anchor{anchor(good[2])}, want: "anchor"},
		{name: "another in its place", lines: other, anchors: []trace.Anchor{anchor(good[9])}, want: "anchor"},
		{name: "not a record", lines: append([]string{`{"protocol":"foldgate/trace.v2"}`}, good...), want: trace.FaultFormat},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Checker{Anchors: tt.anchors, Selection: tt.selection}
			if err := c.Add("f", strings.NewReader(strings.Join(tt.lines, "\n")+"\n\n")); err != nil {
				t.Fatal(err)
			}
			reports, missing := c.Reports()
			got := ""
			if r := reports["f"]; !r.OK() {
				got = r.Faults[0].Code
			} else if len(missing) > 0 {
				got = "anchor"
				if !strings.Contains(missing[0], "it was changed, or is outside of the exported records") {
					t.Error(missing[0])
				}
			}
			if got != tt.want || tt.name == "two with one number" && reports["f"].Total != 1 {
				t.Errorf("%q, want %q: %+v %v", got, tt.want, reports["f"], missing)
			}
		})
	}
	if err := new(Checker).Add("f", strings.NewReader("{}\n")); err == nil || !strings.Contains(err.Error(), "f:1: this is neither") {
		t.Error(err)
	}
}

// requests returns bodies as OTLP JSON, two journals in each line, with a log record of another program.
func requests(journals map[string][]string) string {
	var logs []any
	for id, bodies := range journals {
		records := []any{map[string]any{"body": map[string]any{"stringValue": "something else"}}}
		for _, b := range bodies {
			records = append(records, map[string]any{"body": map[string]any{"stringValue": b}, "attributes": []any{
				map[string]any{"key": "n", "value": map[string]any{"intValue": "5"}}, map[string]any{"key": journalKey, "value": map[string]any{"stringValue": id}}}})
		}
		logs = append(logs, map[string]any{"scopeLogs": []any{map[string]any{"logRecords": records}}})
	}
	data, err := json.Marshal(map[string]any{"resourceLogs": logs})
	if err != nil {
		panic(err)
	}
	return string(data) + "\n"
}

func TestCheckOTLP(t *testing.T) {
	var c Checker
	if err := c.Add("f", strings.NewReader(requests(map[string][]string{"a": exported(t, 5), "b": exported(t, 7)}))); err != nil {
		t.Fatal(err)
	}
	reports, _ := c.Reports()
	if a, b := reports["a"], reports["b"]; len(reports) != 2 || !a.OK() || !b.OK() || a.Records != 5 || b.Records != 7 {
		t.Errorf("reports %+v", reports)
	}
}

// Whatever an export holds, the check ends, and an untouched journal in it is found intact.
func FuzzCheck(f *testing.F) {
	dir := f.TempDir()
	j, err := trace.Open(dir, trace.Options{})
	if err == nil {
		err = errors.Join(j.Append(&trace.Record{Kind: "conclusion", Payload: []byte(`{}`)}), j.Close())
	}
	data, err2 := os.ReadFile(filepath.Join(dir, trace.SegmentName(1)))
	if err = errors.Join(err, err2); err != nil {
		f.Fatal(err)
	}
	good := string(data)
	f.Add(good)
	f.Add(requests(map[string][]string{"x": strings.Split(good, "\n")}))
	f.Add(strings.ReplaceAll(good, "sha256:", "sha256:0"))
	f.Add(`{"resourceLogs":[{"scopeLogs":[{"logRecords":[null]}]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		c := Checker{Anchors: []trace.Anchor{{Seq: 1, Hash: "x"}}}
		if c.Add("fuzzed", strings.NewReader(text)) != nil {
			c = Checker{}
		}
		if err := c.Add("good", strings.NewReader(good)); err != nil {
			t.Fatal(err)
		}
		reports, _ := c.Reports()
		if r := reports["good"]; !r.OK() || r.Records != 2 {
			t.Error(fmt.Sprint(r))
		}
	})
}
