package query

import (
	"bytes"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// TestExport: an export has the payloads of the selected records only, and the hashes of all up to the end.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, trace.Options{RotateBytes: 3000})
	for i := range 30 {
		add(t, j, &trace.Record{From: "host:h", Kind: "mcp/notification:n", Context: []string{"", "a", "b"}[i%3], Payload: []byte(`{"secret":"of ` + string(rune('a'+i%3)) + `"}`)})
	}
	closeJournal(t, j)
	var b bytes.Buffer
	if err := Export(t.Context(), &b, dir, Filter{Context: "b"}); err != nil {
		t.Fatal(err)
	}
	var last *trace.Record
	payloads := 0
	for line := range bytes.Lines(b.Bytes()) {
		r, intact, err := trace.ParseLine(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil || !intact || last != nil && (r.Prev != last.Hash || r.Seq != last.Seq+1) {
			t.Fatalf("%s: %v, intact %v", line, err, intact)
		}
		if r.Kind != trace.KindJournal && (len(r.Payload) > 0) != (r.Context == "b") {
			t.Errorf("record %d in context %q has the payload %s", r.Seq, r.Context, r.Payload)
		}
		if len(r.Payload) > 0 && r.Context == "b" {
			payloads++
		}
		last = r
	}
	report, err := trace.Verify(t.Context(), dir, trace.VerifyOptions{})
	if err != nil || last == nil || last.Hash != report.Last.Hash || payloads != 10 {
		t.Errorf("%d payloads, the last is %+v, want 10 and %+v (%v)", payloads, last, report.Last, err)
	}
	if bytes.Contains(b.Bytes(), []byte("of a")) {
		t.Error("the payload of a record that was not selected is in the export")
	}
	b.Reset()
	if err := Export(t.Context(), &b, dir, Filter{Context: "none"}); err != nil || b.Len() > 0 {
		t.Errorf("of nothing: %q, %v", b.String(), err)
	}
}
