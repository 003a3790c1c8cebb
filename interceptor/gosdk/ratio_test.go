//go:build linux && !race

package gosdk

import (
	"fmt"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/cputime"
)

// The guard on what a call costs with foldgate in the server, over HTTP, beside the bare server and a
// gateway in front of it, in one run. Processor time of client and server together. A small call takes
// less than with the gateway; of a large one, counting and scrubbing its text are most, so it is given
// room.
func TestRatioToGateway(t *testing.T) {
	for _, c := range []struct {
		size, times int
		most        float64 // of the gateway's time
	}{{100, 100, 1}, {40000, 20, 1.3}} {
		t.Run(fmt.Sprint(c.size), func(t *testing.T) {
			kinds, least := []string{"bare", "embedded", "gateway"}, []time.Duration{time.Hour, time.Hour, time.Hour}
			var call []func()
			for _, kind := range kinds {
				call = append(call, calls(t, kind, c.size))
			}
			for range 9 {
				for i := range kinds {
					before := cputime.Process()
					for range c.times {
						call[i]()
					}
					least[i] = min(least[i], cputime.Process()-before)
				}
			}
			ratio := func(i int) float64 { return float64(least[i]) / float64(least[0]) }
			t.Logf("%d bytes: a call takes %v of the bare server and client; embedded %.2f times that, with a gateway %.2f times", c.size, least[0]/time.Duration(c.times), ratio(1), ratio(2))
			if ratio(1) > c.most*ratio(2) {
				t.Errorf("a call takes %.2f times the bare server's processor time with foldgate in it, and %.2f times with a gateway in front; want at most %.1f of that", ratio(1), ratio(2), c.most)
			}
		})
	}
}
