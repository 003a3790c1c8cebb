package engine

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/config"
)

// A chain without telemetry holds exactly the layers, each as it was made.
func TestTelemetryOffIsFree(t *testing.T) {
	some, none := namedLayer{layer: interceptor.Recover(nil)}, namedLayer{} // what is not configured has no layer
	if n := len((&Engine{}).observed(some, none, some)); n != 2 {
		t.Errorf("observed returns %d layers of 2", n)
	}
	if n := len((&Engine{Telemetry: &interceptor.Telemetry{}}).observed(some, none, some)); n != 3 {
		t.Errorf("with telemetry observed returns %d layers of 2, want 3", n)
	}
}

// An HTTP server waits for a command that writes to the journal, but not for another server.
func TestServerWaitsForJournal(t *testing.T) {
	for _, closes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config.Default()
			cfg.StateDir = t.TempDir()
			first, _, err := openState(cfg, false, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if closes {
				time.AfterFunc(time.Second, func() { first.Close() })
			}
			second, _, err := openState(cfg, false, slog.New(slog.DiscardHandler))
			if closes && err == nil {
				err = second.Close()
			}
			if (err == nil) != closes || !closes && !errors.Is(err, trace.ErrInUse) {
				t.Errorf("the other process closes the journal: %v; the server: %v", closes, err)
			}
			first.Close()
		})
	}
}

func TestWritableNamesRemedy(t *testing.T) {
	for cause, remedy := range map[error]string{
		os.ErrPermission: "set another", syscall.ENOSPC: "make room on the disk, or set state_dir", syscall.EROFS: "mount it for writing, or set state_dir",
		syscall.EISDIR: "set state_dir to a directory that you can write",
	} {
		if err := writable(&os.PathError{Op: "mkdir", Path: "/x", Err: cause}); !strings.Contains(err.Error(), remedy) {
			t.Errorf("a state directory with %v: %v, want %q", cause, err, remedy)
		}
	}
}

// The counts of limits are missed if they were in the state directory, not if they were in Redis.
func TestCountsAreLostWhereTheyWere(t *testing.T) {
	for url, want := range map[config.Secret]bool{"": true, "redis://localhost": false} {
		cfg := config.Default()
		cfg.StateDir, cfg.Store.URL = t.TempDir(), url
		ledger, err := limits.OpenReserveFile(filepath.Join(cfg.StatePath(), ReservesFile), storeName(&cfg))
		if err != nil {
			t.Fatal(err)
		}
		ledger.Close()
		var log strings.Builder
		cfg.Store.URL = ""
		store, err := OpenLimitStore(cfg, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		store.Close()
		if got := strings.Contains(log.String(), "is gone or empty"); got != want {
			t.Errorf("with counts that were at %q: a warning %t, want %t", url, got, want)
		}
	}
}
