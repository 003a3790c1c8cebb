package folding

import (
	"bytes"
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
			if p := decodePage(raw[at:]); p.ID == "br_a" {
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
			pages.Close()
		}
	})
}

// A page has what encoding/json writes of a progress, which reads it. Tools are left out if they do not fit.
func TestAppendProgress(t *testing.T) {
	one := Activity{Calls: 3, Failed: 1, InFlight: 2, Lost: 4, Tools: []ToolCount{{"a", 1}, {"b\"<é", 2}}, ModelInput: 5, ModelOutput: 6, LastError: "x\n\u2028"}
	wide, without := one, one
	wide.Tools, without.Tools = []ToolCount{{strings.Repeat("w", pageSize), 1}}, nil
	for _, c := range []struct{ in, want Activity }{{Activity{}, Activity{}}, {Activity{Tools: one.Tools[:1]}, Activity{Tools: one.Tools[:1]}}, {one, one}, {wide, without}} {
		line := string(appendProgress([]byte("before"), progress{"br_a", 2, 7, c.in}))
		want, _ := json.Marshal(progress{"br_a", 2, 7, c.want})
		text := strings.NewReplacer(`\u003c`, "<").Replace(string(want))
		if want := "before" + checksum([]byte(text)) + " " + text + "\n"; line != want {
			t.Errorf("appended %s, want %s", line, want)
		}
		if d := cmp.Diff(progress{"br_a", 2, 7, c.want}, decodeProgress([]byte(strings.TrimPrefix(line, "before")))); d != "" {
			t.Errorf("read (-want +got):\n%s", d)
		}
	}
}

// Wherever a process is killed in a write, the page has what the write before it, or this one, stored.
// Lines of any length, and a file that somebody cuts, are no exception.
func TestProgressOfAKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "progress")
	pages, err := openProgress(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := Branch{ID: "br_a", BudgetTotal: 100}
	if err := pages.add(b); err != nil {
		t.Fatal(err)
	}
	const whole, cut = 1 << 0, 1 << 1
	for _, c := range []struct{ length, how int }{{}, {}, {}, {halfPage, whole}, {halfPage, whole}, {0, whole}, {}, {10, 0}, {}, {0, cut | whole}, {}, {}} {
		if c.how&cut != 0 {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := os.ReadFile(path)
		b.BudgetUsed++
		b.Activity.LastError = strings.Repeat("x", c.length)
		if err := pages.write(b); err != nil {
			t.Fatal(err)
		}
		after, _ := os.ReadFile(path)
		if p := decodePage(after); p.ID != b.ID || p.Used != b.BudgetUsed || p.Activity.LastError != b.Activity.LastError {
			t.Fatalf("the page says %+v, want %d tokens", p, b.BudgetUsed)
		}
		if c.how&whole != 0 || pages.memory == nil {
			continue // one operation of the kernel
		}
		for cut := range after {
			torn := append(bytes.Clone(after[:cut]), before[cut:]...)
			if p := decodePage(torn); p.ID != b.ID || p.Used < b.BudgetUsed-1 || p.Used > b.BudgetUsed {
				t.Fatalf("cut at byte %d the page says %+v, want %d tokens or one less", cut, p, b.BudgetUsed)
			}
		}
	}
	if err := pages.Close(); err != nil {
		t.Fatal(err)
	}
	if pages, err = openProgress(path, []Branch{b}); err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	for range 3 {
		b.BudgetUsed++
		if err := pages.write(b); err != nil {
			t.Fatal(err)
		}
		got := Branch{ID: b.ID, BudgetTotal: 100}
		if err := pages.read(&got); err != nil || got.BudgetUsed != b.BudgetUsed {
			t.Errorf("after a restart: used %d, %v; want %d", got.BudgetUsed, err, b.BudgetUsed)
		}
	}
}
