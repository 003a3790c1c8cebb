package folding

import (
	"os"
	"path/filepath"
	"testing"
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
