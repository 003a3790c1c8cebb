package interceptor

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// The rate of a server's notifications counts all that a record would hold, wherever it stands.
func TestRateCountsAllOfANotification(t *testing.T) {
	const sent, size = 40, 900_000
	long := strings.Repeat("x", size)
	for place, m := range map[string]Message{
		"params": {Body: []byte(`{"data":"` + long + `"}`), clean: true}, "beside params": {Body: []byte(`{}`), Extra: []byte(`,"x":"` + long + `"`), clean: true},
		"method": {Body: []byte(`{}`), clean: true},
	} {
		dir := t.TempDir()
		j, err := trace.Open(dir, trace.Options{Sync: trace.SyncNever})
		if err != nil {
			t.Fatal(err)
		}
		r := &Recorder{Journal: j, Boundary: testBoundary(t), Payload: true, Log: slog.New(slog.DiscardHandler)}
		for range sent {
			n := Notification{From: "up", To: "host", Principal: "local", Server: "up", Method: "notifications/message"}
			if place == "method" {
				n.Method = "notifications/" + long
			}
			if err := r.Notification(n, &m); err != nil {
				t.Fatal(err)
			}
		}
		r.Flush()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		recorded, told := 0, ""
		for rec, err := range query.Scan(t.Context(), dir, query.Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(rec.Kind, trace.KindNotification) {
				recorded++
			} else if strings.Contains(string(rec.Payload), "notifications_left_out") {
				told = string(rec.Payload)
			}
		}
		if want := fmt.Sprintf(`"count":%d`, sent-recorded); recorded == 0 || recorded > 8 || !strings.Contains(told, want) {
			t.Errorf("%s: %d of %d are recorded, and %s", place, recorded, sent, told)
		}
	}
}

// A record names a bounded number of places, however many have a secret.
func TestFindingsOfManyPlaces(t *testing.T) {
	var all []trace.Finding
	for i := range 100_000 {
		all = append(all, trace.Finding{Rule: []string{"a", "b"}[i%2], Field: fmt.Sprintf("$.content[%d].text", i/3), Action: trace.Redacted})
	}
	out := findings(all, all[:3])
	if first := (trace.Finding{Rule: "a", Field: "$.content[0].text", Count: 4, Action: trace.Redacted}); len(out) != maxPlaces+2 || out[0] != first || out[maxPlaces].Field != "" {
		t.Errorf("%d findings, the first %+v, the last %+v", len(out), out[0], out[len(out)-1])
	}
	sum := 0
	for _, f := range out {
		sum += f.Count
	}
	if sum != len(all)+3 {
		t.Errorf("%d secrets are counted, want %d", sum, len(all)+3)
	}
}
