package proxy

import (
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/google/go-cmp/cmp"
)

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
			r := newRig(t, false, nil)
			r.g.cfg.Trace.Correlation = tt.mode
			c := &interceptor.Call{}
			err := r.g.correlate(c, []byte(tt.meta))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("correlate(%s) = %v, want an error with %q", tt.meta, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, c.Correlates); diff != "" {
				t.Errorf("correlates (-want +got):\n%s", diff)
			}
			if got := len(c.Deprecated) > 0; got != tt.deprecated {
				t.Errorf("deprecated = %v, want %t", c.Deprecated, tt.deprecated)
			}
		})
	}
}
