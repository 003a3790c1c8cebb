package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/steadyclock"
	"github.com/foldgate/foldgate/proxy/config"
)

// A chain without telemetry holds exactly the layers, each as it was made.
func TestTelemetryOffIsFree(t *testing.T) {
	some, none := namedLayer{layer: interceptor.Recover(nil)}, namedLayer{} // what is not configured has no layer
	if n := len((&Engine{}).observed(some, none, some)); n != 2 {
		t.Errorf("observed returns %d layers of 2", n)
	}
	if n := len((&Engine{Telemetry: &interceptor.Telemetry{}}).observed(some, none, some)); n != 3 {
		t.Errorf("with telemetry observed returns %d layers of 2, want 3", n)
	}
}

// An HTTP server waits for a command that writes to the journal, but not for another server.
func TestServerWaitsForJournal(t *testing.T) {
	for _, closes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config.Default()
			cfg.StateDir = t.TempDir()
			first, _, _, err := openState(cfg, false, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if closes {
				time.AfterFunc(time.Second, func() { first.Close() })
			}
			second, _, _, err := openState(cfg, false, slog.New(slog.DiscardHandler))
			if closes && err == nil {
				err = second.Close()
			}
			if (err == nil) != closes || !closes && !errors.Is(err, trace.ErrInUse) {
				t.Errorf("the other process closes the journal: %v; the server: %v", closes, err)
			}
			first.Close()
		})
	}
}

func TestWritableNamesRemedy(t *testing.T) {
	for cause, remedy := range map[error]string{
		os.ErrPermission: "set another", syscall.ENOSPC: "make room on the disk, or set state_dir", syscall.EROFS: "mount it for writing, or set state_dir",
		syscall.EISDIR: "set state_dir to a directory that you can write",
	} {
		if err := writable(&os.PathError{Op: "mkdir", Path: "/x", Err: cause}); !strings.Contains(err.Error(), remedy) {
			t.Errorf("a state directory with %v: %v, want %q", cause, err, remedy)
		}
	}
}

// The counts of limits are missed if they were in the state directory, not if they were in Redis.
func TestCountsAreLostWhereTheyWere(t *testing.T) {
	for url, want := range map[config.Secret]bool{"": true, "redis://localhost": false} {
		cfg := config.Default()
		cfg.StateDir, cfg.Store.URL = t.TempDir(), url
		ledger, err := limits.OpenReserveFile(filepath.Join(cfg.StatePath(), ReservesFile), storeName(&cfg))
		if err != nil {
			t.Fatal(err)
		}
		ledger.Close()
		var log strings.Builder
		cfg.Store.URL = ""
		store, err := OpenLimitStore(cfg, slog.New(slog.NewTextHandler(&log, nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		store.Close()
		if got := strings.Contains(log.String(), "is gone or empty"); got != want {
			t.Errorf("with counts that were at %q: a warning %t, want %t", url, got, want)
		}
	}
}

// What has an age goes by the steady clock, over restarts: records, results, ended branches, workflows. What begins gets the
// later time of two clocks.
func TestAgesGoByTheSteadyClock(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Trace.RetainDays = 1
	cfg.Workflows = []config.Workflow{{Name: "orders"}}
	rules, faults := workflow.Compile([]workflow.Spec{{
		Name: "orders", TTL: time.Hour, Evidence: []workflow.Evidence{workflow.Explicit}, Tools: []workflow.ToolSpec{{Role: workflow.RoleOpen, Server: "shop", Tool: "find"}},
	}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	now := time.Now()
	past, future := now.Add(-72*time.Hour), now.Add(72*time.Hour)
	j, err := trace.Open(filepath.Join(cfg.StateDir, "trace"), trace.Options{RotateBytes: 1000, Now: func() time.Time { return past }})
	for range 10 {
		err = errors.Join(err, j.Append(&trace.Record{From: "x", Kind: "mcp/request", Payload: []byte(`"a payload of some length"`)}))
	}
	if err = errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
	segments := func() int {
		names, err := trace.Segments(filepath.Join(cfg.StateDir, "trace"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before := segments()

	// at opens the engine when the steady clock shows a time; the clock of the machine showed another when it was looked at.
	at := func(steady, machine time.Time) *Engine {
		text := fmt.Sprintf(`{"wall":%q,"time":%q,"boot":"another"}`, machine.Format(time.RFC3339Nano), steady.Format(time.RFC3339Nano))
		if err := os.WriteFile(filepath.Join(cfg.StateDir, steadyclock.File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := Open(t.Context(), Options{
			Start: cfg, Config: func() *config.Config { return &cfg }, Limits: func() *interceptor.Limits { return nil },
			Folding: func() *interceptor.FoldPolicy { return &interceptor.FoldPolicy{} }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	end := func(e *Engine) {
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	me := folding.Caller{Principal: "ada", Session: "s"}
	type things struct{ result, branch, workflow string }
	plan := func(e *Engine, id string) (*workflow.Step, error) {
		return e.Workflows.Engine.Plan(t.Context(), workflow.Request{Rule: rules.Find("shop", "find"), Principal: "ada", ID: id, Arguments: []byte("{}")})
	}
	begin := func(e *Engine) things {
		step, err := plan(e, "")
		if err == nil {
			err = e.Workflows.Engine.Begin(t.Context(), step, "request", "step")
		}
		handle := e.Results.NewHandle()
		err = errors.Join(err, e.Results.Put(t.Context(), results.Result{Handle: handle, Principal: "ada", Session: "s", Text: "x"}))
		b, err2 := e.Branches.Create(t.Context(), me, folding.CreateRequest{Description: "x"})
		if _, err3 := e.Branches.Return(t.Context(), me, b.ID, ""); errors.Join(err, err2, err3) != nil {
			t.Fatal(err, err2, err3)
		}
		return things{handle, b.ID, step.ID}
	}
	there := func(e *Engine, x things, want bool) {
		t.Helper()
		_, err := e.Results.Get(t.Context(), me, "", x.result)
		_, found, err2 := e.Branches.Status(t.Context(), me, folding.StatusRequest{BranchID: x.branch})
		_, err3 := plan(e, x.workflow)
		if (err == nil) != want || found != want || err2 != nil || (err3 == nil) != want {
			t.Errorf("the result: %v; the branch: %t, %v; the workflow: %v; want %t", err, found, err2, err3, want)
		}
	}

	end(at(past, past)) // the clock of the machine was set forward
	if n := segments(); n < before {
		t.Errorf("%d segments of %d", n, before)
	}
	e := at(now, now)
	if n := segments(); n >= before {
		t.Errorf("%d segments of %d, and the records are three days old", n, before)
	}
	first := begin(e)
	there(e, first, true)
	end(e)
	e = at(future, now) // it was set back
	there(e, first, false)
	second := begin(e)
	there(e, second, true)
	end(e)
}

// A process that has a directory of its own goes by the clock of the first one: they share workflows and limits.
func TestProcessesHaveTheSameClock(t *testing.T) {
	for _, step := range []time.Duration{72 * time.Hour, -72 * time.Hour} {
		cfg := config.Default()
		cfg.StateDir = t.TempDir()
		now := time.Now()
		want := now.Add(-step)
		text := fmt.Sprintf(`{"wall":%q,"time":%q,"boot":"another"}`, now.Format(time.RFC3339Nano), want.Format(time.RFC3339Nano))
		if err := os.WriteFile(filepath.Join(cfg.StateDir, steadyclock.File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			j, clock, _, err := openState(cfg, true, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { j.Close() })
			if off := clock.Now().Sub(want); off.Abs() > time.Minute {
				t.Errorf("after a step of %v, the clock of process %d is %v off", step, n+1, off)
			}
		}
	}
}

// After a crash, a start that fails leaves the stored time as it was: the next start looks for unfinished calls from there.
func TestFailedStartKeepsTheClock(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	file := filepath.Join(cfg.StateDir, steadyclock.File)
	was := []byte(`{"wall":"2026-11-29T09:00:00Z","time":"2026-11-29T09:00:00Z"}`)
	if err := os.WriteFile(file, was, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, started := range []bool{false, true} {
		e, err := Open(t.Context(), Options{
			Start: cfg, Config: func() *config.Config { return &cfg }, Limits: func() *interceptor.Limits { return nil },
			Folding: func() *interceptor.FoldPolicy { return &interceptor.FoldPolicy{} }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if started {
			e.Started()
		}
		if err := e.Abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || (string(text) != string(was)) != started {
			t.Errorf("started is %t: %s, %v", started, text, err)
		}
	}
}
