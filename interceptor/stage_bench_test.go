package interceptor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// stages returns the layers of the chain, each alone, and all of them as
// package proxy puts them together; and a branch.
func stages(b *testing.B) (names []string, layers map[string][]Layer, branch string) {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	counter, err := budget.NewCounter("o200k_base")
	must(err)
	s, err := scrub.New(scrub.Options{Timeout: 5 * time.Second})
	must(err)
	j, err := trace.Open(filepath.Join(b.TempDir(), "trace"), trace.Options{})
	must(err)
	cfg := folding.DefaultConfig()
	cfg.DefaultBudget, cfg.MaxBudget = 1<<30, 1<<30
	repo, err := folding.OpenSQLite(filepath.Join(b.TempDir(), "foldgate.db"))
	must(err)
	m, err := folding.Open(b.Context(), cfg, folding.Options{Repository: repo, Count: counter.Count, Scrub: func(_ context.Context, s string) (string, error) { return s, nil }})
	must(err)
	store, err := results.Open(filepath.Join(b.TempDir(), "results.db"), results.Config{Quota: 8 << 20, TTL: time.Hour})
	must(err)
	b.Cleanup(func() { _ = m.Close(context.Background()); _ = store.Close(); _ = j.Close() })
	br, err := m.Create(b.Context(), me, folding.CreateRequest{Description: "d"})
	must(err)

	log, gauge := slog.New(slog.DiscardHandler), TokenMeter{counter, 1600}
	boundary := &Boundary{Scrubber: s, Policy: testPolicy{}.of}
	locate := func(next Handler) Handler {
		h := CheckBranch(m)(next)
		return func(ctx context.Context, c *Call) (*Result, error) {
			if c.Attribution.Branch == nil { // else Trace has located the call
				Locate(m, c)
			}
			return h(ctx, c)
		}
	}
	meter := Meter(m, noLimits, gauge)
	policy := FoldPolicy{MainThreshold: 1 << 30, BranchFraction: 1, PreviewTokens: 400, Rule: foldRule(FoldRule{})}
	fold := Fold(store, gauge, func() *FoldPolicy { return &policy }, boundary, log)
	clean := Scrub(boundary)
	record := func(payload bool) Layer {
		layer := Trace(&Recorder{Journal: j, Boundary: boundary, Payload: payload, Refuse: true, Counter: "o200k_base", Log: log})
		return func(next Handler) Handler {
			h := layer(next)
			return func(ctx context.Context, c *Call) (*Result, error) {
				Locate(m, c)
				c.Outcome.Clean = true // as Scrub sets it
				return h(ctx, c)
			}
		}
	}
	return []string{"checkbranch", "meter", "scrub", "trace", "trace without payload", "whole"}, map[string][]Layer{
		"checkbranch": {locate}, "meter": {locate, meter}, "scrub": {clean}, "trace": {record(true)}, "trace without payload": {record(false)},
		"whole": {record(true), Recover(log), locate, meter, fold, clean},
	}, br.ID
}

// BenchmarkStage is what one layer of the chain costs a call, in main and in a
// branch, by the size of the result. Meter includes finding the branch.
func BenchmarkStage(b *testing.B) {
	const line = "if token == nil { return errors.New(no secret for 4711) } // api_key, see the password file of user 93\n"
	names, layers, branch := stages(b)
	params := json.RawMessage(`{"name":"query","arguments":{"size":4096}}`)
	for _, name := range names {
		for _, size := range []int{100, 4096} {
			for _, handle := range []string{"", branch} {
				if handle != "" && (name == "scrub" || strings.HasPrefix(name, "trace")) {
					continue // a branch is nothing to them
				}
				where := "main"
				if handle != "" {
					where = "branch"
				}
				res := &Result{Body: json.RawMessage(textBody(strings.Repeat(line, size/len(line)+1)[:size]))}
				h := wrap(func(context.Context, *Call) (*Result, error) { return &Result{Body: res.Body}, nil }, layers[name]...)
				b.Run(fmt.Sprintf("%s/%s/%d", name, where, size), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						c := &Call{
							Origin:      Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session, From: "host:bench", ID: json.RawMessage("17")},
							Target:      Target{Server: "db", Method: "tools/call", Name: "query", Metered: true, To: "upstream:db", Params: params, Forward: params, Arguments: params[26 : len(params)-1]},
							Attribution: Attribution{BranchID: handle, Source: SourceArgument},
						}
						if _, err := h(b.Context(), c); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
