//go:build linux && !race

package proxy

import (
	"encoding/json"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/test/cputime"
)

// The guard on what a whole call costs: beside one plain copy of its answer by
// encoding/json, in one run, with room for a machine that is busy.
func TestRatioToCopy(t *testing.T) {
	for _, c := range []struct {
		name        string
		size, times int
		most        float64
	}{{"4 KB", 4 << 10, 400, 8}, {"1 MB", 1 << 20, 3, 3}} {
		call := costGateway(t, false, false, c.size, 1, 1)
		call() // caches fill
		answer := []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":` + string(rawjson.Quote(costText(c.size))) + `}]}}`)
		r := cputime.Ratio(7, func() {
			for range c.times {
				call()
			}
		}, func() {
			for range c.times {
				var v any
				if err := json.Unmarshal(answer, &v); err != nil {
					t.Fatal(err)
				}
				if _, err := json.Marshal(v); err != nil {
					t.Fatal(err)
				}
			}
		})
		if r > c.most {
			t.Errorf("%s: a call takes %.2f times a plain JSON copy of its answer, want at most %.1f", c.name, r, c.most)
		}
		t.Logf("%s: %.2f times a plain JSON copy", c.name, r)
	}
}
