package folding

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever the file has, an active branch has used what its page says or, without one, all of its budget.
func FuzzProgress(f *testing.F) {
	const page = `{"id":"br_a","used":7,"activity":{}}`
	f.Add([]byte(checksum([]byte(page)) + " " + page + "\n"))
	f.Add([]byte("00000000 " + page + "\n"))
	f.Add(make([]byte, pageSize+1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) == 0 {
			return // a database of before
		}
		path := filepath.Join(t.TempDir(), "progress")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		want := 100
		for at := 0; at < len(raw); at += pageSize {
			if p := decodeProgress(raw[at:]); p.ID == "br_a" {
				want = p.Used
			}
		}
		b := Branch{ID: "br_a", BudgetTotal: 100}
		for range 2 {
			pages, err := openProgress(path, []Branch{b})
			if err != nil {
				t.Fatal(err)
			}
			got := b
			if err := pages.read(&got); err != nil || got.BudgetUsed != want {
				t.Errorf("%q: used %d, %v; want %d", raw, got.BudgetUsed, err, want)
			}
			pages.file.Close()
		}
	})
}

// A page has what encoding/json writes of a progress, which reads it. Tools are left out if they do not fit.
func TestAppendProgress(t *testing.T) {
	one := Activity{Calls: 3, Failed: 1, InFlight: 2, Lost: 4, Tools: []ToolCount{{"a", 1}, {"b\"<é", 2}}, ModelInput: 5, ModelOutput: 6, LastError: "x\n\u2028"}
	wide, without := one, one
	wide.Tools, without.Tools = []ToolCount{{strings.Repeat("w", pageSize), 1}}, nil
	for _, c := range []struct{ in, want Activity }{{Activity{}, Activity{}}, {Activity{Tools: one.Tools[:1]}, Activity{Tools: one.Tools[:1]}}, {one, one}, {wide, without}} {
		line := string(appendProgress([]byte("before"), progress{"br_a", 7, c.in}))
		want, _ := json.Marshal(progress{"br_a", 7, c.want})
		text := strings.NewReplacer(`\u003c`, "<").Replace(string(want))
		if want := "before" + checksum([]byte(text)) + " " + text + "\n"; line != want {
			t.Errorf("appended %s, want %s", line, want)
		}
		if d := cmp.Diff(progress{"br_a", 7, c.want}, decodeProgress([]byte(strings.TrimPrefix(line, "before")))); d != "" {
			t.Errorf("read (-want +got):\n%s", d)
		}
	}
}
