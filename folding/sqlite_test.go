package folding_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/folding"
)

func openDB(t testing.TB, path string) folding.Repository {
	t.Helper()
	repo, err := folding.OpenSQLite(path)
	if err != nil {
		t.Fatalf("OpenSQLite: %v", err)
	}
	return repo
}

func sample(id string, created time.Time) folding.Branch {
	return folding.Branch{
		ID: id, ParentID: "br_p", Handles: "res_1 res_2", Principal: "alice", Subject: "https://i alice", Claims: "{}\n{}", Session: "s", Origin: "o", Context: "br_p/" + id, Depth: 2,
		Description: "déscription\n'quoted'", Prompt: "prompt\x00with nul", Status: folding.StatusActive,
		BudgetUsed: 7, BudgetTotal: 100, CreatedAt: created, ExpiresAt: created.Add(time.Minute),
		Activity: folding.Activity{Calls: 2, Failed: 1, InFlight: 1, Tools: []folding.ToolCount{{Tool: "grep", Calls: 2}}, LastError: "no \"such\" file"},
	}
}

// Both repositories behave the same.
func TestRepositories(t *testing.T) {
	for name, open := range map[string]func() folding.Repository{
		"memory": folding.NewMemory,
		"sqlite": func() folding.Repository { return openDB(t, filepath.Join(t.TempDir(), "a b?c", "s.db")) },
	} {
		t.Run(name, func(t *testing.T) {
			repo := open()
			t0 := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
			a, b := sample("br_a", t0.Add(time.Second)), sample("br_b", t0)
			apply := func(changes ...folding.Branch) {
				t.Helper()
				if err := repo.Apply(ctx, changes); err != nil {
					t.Fatalf("Apply: %v", err)
				}
			}
			apply(a, b)
			got, err := repo.Active(ctx)
			if diff := cmp.Diff([]folding.Branch{b, a}, got); diff != "" || err != nil {
				t.Errorf("Active, error %v (-want +got):\n%s", err, diff)
			}
			a.BudgetUsed, a.Activity.Calls = 50, 3
			if err := repo.Progress(a); err != nil {
				t.Fatal(err)
			}
			b.Status, b.Reason, b.Error, b.Digest = folding.StatusTimeout, "timeout", "timeout after 1m0s", "nothing"
			b.CompletedAt, b.BudgetUsed = b.ExpiresAt, 60
			apply(b)
			b.Message, b.Late = "sorry", true
			apply(b)
			c := sample("br_c", t0)
			apply(c)
			c.Status, c.Message, c.ReturnedBy, c.CompletedAt = folding.StatusCompleted, "done", "s2 ", b.CompletedAt.Add(time.Hour)
			apply(c)
			if got, _, err := repo.Get(ctx, "br_c"); !cmp.Equal(c, got) || err != nil {
				t.Errorf("Get of a returned branch (%v):\n%s", err, cmp.Diff(c, got))
			}
			c.ReturnedBy = ""
			apply(c)
			if got, _, err := repo.Get(ctx, "br_c"); !cmp.Equal(c, got) || err != nil {
				t.Errorf("after its message was read, Get (%v):\n%s", err, cmp.Diff(c, got))
			}
			for _, want := range []folding.Branch{a, b} {
				got, ok, err := repo.Get(ctx, want.ID)
				if diff := cmp.Diff(want, got); diff != "" || !ok || err != nil {
					t.Errorf("Get(%s) = %v, %v (-want +got):\n%s", want.ID, ok, err, diff)
				}
			}
			if n, err := repo.Forget(ctx, b.CompletedAt, c.CompletedAt, 10); n != 0 || err != nil {
				t.Errorf("Forget before the end = %d, %v; want 0", n, err)
			}
			if n, err := repo.Forget(ctx, b.CompletedAt.Add(time.Hour), c.CompletedAt, 10); n != 1 || err != nil {
				t.Errorf("Forget = %d, %v; want 1", n, err)
			}
			c.CompletedAt = c.CompletedAt.Add(-time.Minute) // of a time to come until then
			if n, err := repo.Forget(ctx, b.CompletedAt, c.CompletedAt, 10); n != 0 || err != nil {
				t.Errorf("Forget before the end = %d, %v; want 0", n, err)
			}
			if got, _, err := repo.Get(ctx, "br_c"); !cmp.Equal(c, got) || err != nil {
				t.Errorf("Get of a branch that ended later than now (%v):\n%s", err, cmp.Diff(c, got))
			}
			if _, ok, err := repo.Get(ctx, "br_b"); ok || err != nil {
				t.Errorf("Get of a deleted branch = %v, %v; want false", ok, err)
			}
			if _, ok, err := repo.Get(ctx, "br_a"); !ok || err != nil {
				t.Errorf("Get of an active branch after Forget = %v, %v; want true", ok, err)
			}
			if err := repo.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// A page that is damaged is not read, a page of an ended branch goes to the next one, and
// texts of an ended branch do not stay.
func TestProgressPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	repo := openDB(t, path)
	var list []folding.Branch
	begin := func(id string) {
		b := sample(id, time.Now().UTC().Truncate(time.Microsecond))
		if err := repo.Apply(ctx, []folding.Branch{b}); err != nil {
			t.Fatal(err)
		}
		b.BudgetUsed, b.Activity.LastError = b.BudgetUsed+1, "error of "+id
		for i := range b.Activity.Tools {
			b.Activity.Tools[i].Tool = strings.Repeat("<", 64)
		}
		if err := repo.Progress(b); err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	begin("br_a")
	begin("br_b")
	ended := list[0]
	ended.Status, ended.CompletedAt = folding.StatusCompleted, ended.CreatedAt
	if err := repo.Apply(ctx, []folding.Branch{ended}); err != nil {
		t.Fatal(err)
	}
	if err := repo.Progress(list[0]); err != nil { // a charge that comes late
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path + ".progress")
	if err != nil || strings.Contains(string(raw), "error of br_a") || !strings.Contains(string(raw), "error of br_b") {
		t.Errorf("%v: an ended branch has a page, or an active one has none: %q", err, raw)
	}
	begin("br_c")
	if raw, _ := os.ReadFile(path + ".progress"); len(raw) > 2*4096 || !strings.Contains(string(raw[:4096]), "error of br_c") {
		t.Errorf("%d bytes: the page of an ended branch was not used again", len(raw))
	}
	repo.Close()

	raw, _ = os.ReadFile(path + ".progress")
	for _, at := range []int{20, 2048 + 20} { // in both lines of br_c
		raw[at] ^= 1
	}
	if err := os.WriteFile(path+".progress", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	repo = openDB(t, path)
	defer repo.Close()
	for i, want := range []int{list[1].BudgetUsed, list[2].BudgetTotal} { // a damaged page gives no tokens back
		if got, ok, err := repo.Get(ctx, list[i+1].ID); !ok || err != nil || got.BudgetUsed != want {
			t.Errorf("%s: used %d, %v; want %d", list[i+1].ID, got.BudgetUsed, err, want)
		}
	}
	if active, err := repo.Active(ctx); err != nil || len(active) != 2 || active[0].BudgetUsed+active[1].BudgetUsed != list[1].BudgetUsed+list[2].BudgetTotal {
		t.Errorf("Active = %+v, %v", active, err)
	}
}

// A branch whose progress is lost, in both lines or with the whole file, gets no tokens back: it is spent and says why.
func TestLostProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	repo := openDB(t, path)
	b := sample("br_a", time.Now())
	if err := repo.Apply(ctx, []folding.Branch{b}); err != nil {
		t.Fatal(err)
	}
	b.BudgetUsed += 5
	if err := repo.Progress(b); err != nil {
		t.Fatal(err)
	}
	repo.Close()
	good, err := os.ReadFile(path + ".progress")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"removed": nil, "zero": make([]byte, len(good))}
	for at := 0; at < 128; at += 8 { // both lines are longer
		files[fmt.Sprintf("cut at %d", at)] = good[:at]
		raw := bytes.Clone(good)
		raw[at], raw[len(raw)/2+at] = raw[at]^1, raw[len(raw)/2+at]^1
		files[fmt.Sprintf("byte %d changed", at)] = raw
	}
	for name, raw := range files {
		if err := os.Remove(path + ".progress"); err != nil {
			t.Fatal(err)
		}
		if raw != nil {
			if err := os.WriteFile(path+".progress", raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		repo := openDB(t, path)
		got, ok, err := repo.Get(ctx, b.ID)
		if !ok || err != nil || got.BudgetUsed != b.BudgetTotal || !strings.Contains(got.Activity.LastError, "progress") {
			t.Errorf("%s: used %d of %d, %+v, %v; want all and why", name, got.BudgetUsed, got.BudgetTotal, got.Activity, err)
		}
		repo.Close()
	}
}

func TestSQLiteIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	repo := openDB(t, filepath.Join(dir, "s.db"))
	defer repo.Close()
	if err := repo.Apply(ctx, []folding.Branch{sample("br_a", time.Now())}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 3 {
		t.Fatalf("files = %v, %v; want the database, its log and its lock", entries, err)
	}
	for _, e := range append(entries, nil) {
		name, want := dir, os.FileMode(0o700)
		if e != nil {
			name, want = filepath.Join(dir, e.Name()), 0o600
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestSQLiteRefusesWithAReason(t *testing.T) {
	healthy := func(t *testing.T, path string) {
		repo := openDB(t, path)
		for i := range 50 {
			if err := repo.Apply(ctx, []folding.Branch{sample("br_"+strings.Repeat("x", i), time.Now())}); err != nil {
				t.Fatal(err)
			}
		}
		if err := repo.Close(); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(t *testing.T, path, query string) {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, want string
		spoil      func(t *testing.T, path string)
	}{
		{"not a database", "damaged or not a database", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("this is a text file\n", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"damaged page", "damaged or not a database", func(t *testing.T, path string) {
			healthy(t, path)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 4096; i < len(raw); i += 4096 {
				copy(raw[i:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
			}
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"cut short", "damaged or not a database", func(t *testing.T, path string) {
			healthy(t, path)
			if err := os.Truncate(path, 3*4096); err != nil {
				t.Fatal(err)
			}
		}},
		{"damaged branch", "damaged or not a database", func(t *testing.T, path string) {
			healthy(t, path)
			exec(t, path, "UPDATE branches SET activity = 'x'")
		}},
		{"another program's", "another program", func(t *testing.T, path string) {
			exec(t, path, "CREATE TABLE cats (name TEXT)")
		}},
		{"early", "a build of foldgate before the first release wrote it: name another state_dir", func(t *testing.T, path string) {
			healthy(t, path)
			exec(t, path, "PRAGMA user_version = 3")
		}},
		{"newer", "newer foldgate", func(t *testing.T, path string) {
			healthy(t, path)
			exec(t, path, "PRAGMA user_version = 99")
		}},
		{"in use", "in use by another process", func(t *testing.T, path string) {
			repo := openDB(t, path)
			t.Cleanup(func() { repo.Close() })
		}},
		{"locked by a reader of the file", "in use by another process", func(t *testing.T, path string) {
			healthy(t, path)
			db, err := sql.Open("sqlite", path+"?_pragma=locking_mode(EXCLUSIVE)")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			if _, err := db.Exec("BEGIN EXCLUSIVE"); err != nil {
				t.Fatal(err)
			}
		}},
		{"a directory", "is a directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "s.db")
			tt.spoil(t, path)
			before, _ := os.ReadFile(path)
			repo, err := folding.OpenSQLite(path)
			if err == nil {
				repo.Close()
				t.Fatal("OpenSQLite succeeded")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %q, want one with %q", err, tt.want)
			}
			if n := strings.Count(err.Error(), "state database"); n != 1 {
				t.Errorf("error = %q names the database %d times", err, n)
			}
			if after, _ := os.ReadFile(path); string(before) != string(after) {
				t.Error("the refused file was changed")
			}
		})
	}
}

// The log does not grow without bound. Writes during a checkpoint are not lost.
func TestSQLiteCheckpoints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	repo := openDB(t, path)
	b := sample("br_a", time.Now().UTC().Truncate(time.Microsecond))
	if err := repo.Apply(ctx, []folding.Branch{b}); err != nil {
		t.Fatal(err)
	}
	salt := func() string { // changes when the log starts over
		f, err := os.Open(path + "-wal")
		if err != nil {
			return ""
		}
		defer f.Close()
		header := make([]byte, 32)
		if _, err := f.ReadAt(header, 0); err != nil {
			return ""
		}
		return string(header[16:24])
	}
	first, n := salt(), 0
	for salt() == first {
		if n++; n > 50_000 {
			t.Fatal("the log never started over")
		}
		b.Status, b.Message = folding.StatusFailed, strconv.Itoa(n)
		if err := repo.Apply(ctx, []folding.Branch{b}); err != nil {
			t.Fatal(err)
		}
	}
	if err := repo.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("the log is left behind")
	}
	again := openDB(t, path)
	defer again.Close()
	if got, ok, err := again.Get(ctx, "br_a"); !ok || err != nil || got.Message != strconv.Itoa(n) {
		t.Errorf("after the log was moved: message %s, %v, %v; want %d", got.Message, ok, err, n)
	}
}
