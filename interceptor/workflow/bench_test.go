package workflow

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkCall measures a workflow's cost for a call: one more attempt at a link
// step, from Plan to End, in a store with a thousand other workflows.
func BenchmarkCall(b *testing.B) {
	rules, _ := Compile([]Spec{spec(nil)})
	e, err := Open(filepath.Join(b.TempDir(), "workflows.db"), time.Now, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	call := func(tool, handle, args, result string) string {
		r := Request{Rule: rules.Find("up", tool), Principal: "local", Session: "s", ID: handle, Arguments: json.RawMessage(args)}
		s, err := e.Plan(b.Context(), r)
		if err == nil {
			if err = e.Begin(b.Context(), s, "req", "rec"); err == nil {
				err = e.End(b.Context(), s, Outcome{Status: Completed, Result: json.RawMessage(result)})
			}
		}
		if err != nil {
			b.Fatal(err)
		}
		return s.ID
	}
	id := ""
	for range 1000 {
		id = call("find", "", `{}`, `{"structuredContent":{"ids":["a","b","c"]}}`)
	}
	for b.Loop() {
		call("use", id, `{"id":"a","platform":"p"}`, `{}`)
	}
}
