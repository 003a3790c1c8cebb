package engine

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/wire"
)

// readMeta reads the _meta of a request into a call.
func readMeta(t *testing.T, mode, meta string) (*interceptor.Call, error) {
	journal, err := trace.Open(t.TempDir(), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = journal.Close() })
	params := json.RawMessage(`{"_meta":` + meta + `}`)
	c, m := &interceptor.Call{Target: interceptor.Target{Params: params}}, wire.ReadMeta(params)
	return c, TakeMeta(c, &m, &interceptor.Recorder{Journal: journal, Log: slog.New(slog.DiscardHandler)}, mode == "strict")
}

func TestCorrelate(t *testing.T) {
	tests := []struct {
		name, mode, meta string
		want             []string
		deprecated       bool
		err              string
	}{
		{"none", "strict", `{}`, nil, false, ""},
		{"array", "strict", `{"io.github.foldgate/correlationId":["a","b","a"]}`, []string{"a", "b"}, false, ""},
		{"string", "transition", `{"io.github.foldgate/correlationId":"a"}`, []string{"a"}, true, ""},
		{"string, strict", "strict", `{"io.github.foldgate/correlationId":"a"}`, nil, false, "array"},
		{"later name", "transition", `{"io.github.foldgate/correlation_id":["a"],"io.github.foldgate/correlationId":["b"]}`, []string{"b", "a"}, true, ""},
		{"number", "transition", `{"io.github.foldgate/correlationId":[1]}`, nil, false, "string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := readMeta(t, tt.mode, tt.meta)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("correlate(%s) = %v, want an error with %q", tt.meta, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, c.Origin.Correlates); diff != "" {
				t.Errorf("correlates (-want +got):\n%s", diff)
			}
			if got := len(c.Origin.Deprecated) > 0; got != tt.deprecated {
				t.Errorf("deprecated = %v, want %t", c.Origin.Deprecated, tt.deprecated)
			}
		})
	}
}

func TestSubContext(t *testing.T) {
	for _, tt := range []struct{ name, mode, value, want, deprecated, err string }{
		{"path", "strict", `"a/b"`, "a/b", "", ""},
		{"null", "strict", `null`, "", "", ""},
		{"object", "transition", `{"id":"b","parent":"a"}`, "a/b", "context_object", ""},
		{"object, strict", "strict", `{"id":"b","parent":"a"}`, "", "context_object", `send the path as a string: "a/b"`},
		{"operation", "transition", `{"operation":"push","topic":"x"}`, "", "", "branch_create"},
		{"number", "transition", `7`, "", "", "send a string"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := readMeta(t, tt.mode, `{"io.github.foldgate/context":`+tt.value+`}`)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("subContext(%s) = %v, want an error with %q", tt.value, err, tt.err)
			}
			if got := strings.Join(c.Origin.Deprecated, " "); c.Attribution.SubContext != tt.want || got != tt.deprecated {
				t.Errorf("subContext(%s): %q, deprecated %q; want %q, %q", tt.value, c.Attribution.SubContext, got, tt.want, tt.deprecated)
			}
		})
	}
}
