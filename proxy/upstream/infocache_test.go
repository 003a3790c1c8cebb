package upstream

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
)

// Processes with one state directory write the cache at the same time: it is whole at any moment.
func TestCacheOfProcesses(t *testing.T) {
	var log strings.Builder
	to := slog.New(slog.NewTextHandler(&log, nil))
	file := filepath.Join(t.TempDir(), "upstreams.json")
	server := &Server{Key: "up", Config: &config.Upstream{URL: "http://127.0.0.1/"}}
	var writers sync.WaitGroup
	for _, size := range []int{10, 200_000} {
		k := openInfoCache(file, to)
		k.putInfo(server, conn.Info{Result: json.RawMessage(`{}`)})
		page := rawList(size)
		writers.Go(func() {
			for n := range 50 {
				k.putList(server, "tools/list", Group{}, true, page[n%2])
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if data, err := os.ReadFile(file); err != nil || !json.Valid(data) {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
	}
	if log.Len() > 0 {
		t.Errorf("log: %s", log.String())
	}
}

// What servers said is there for others while the disk is slow.
func TestCacheDoesNotWaitForTheDisk(t *testing.T) {
	k := openInfoCache(filepath.Join(t.TempDir(), "upstreams.json"), slog.New(slog.DiscardHandler))
	server := &Server{Key: "up", Config: &config.Upstream{URL: "http://127.0.0.1/"}}
	k.writing.Lock()
	var writer sync.WaitGroup
	writer.Go(func() { k.putInfo(server, conn.Info{Result: json.RawMessage(`{}`)}) })
	for k.get(server).Result == nil && t.Context().Err() == nil {
		runtime.Gosched()
	}
	k.writing.Unlock()
	writer.Wait()
	if again := openInfoCache(k.file, k.log); again.get(server).Result == nil {
		t.Error("the file has no description of the server")
	}
}

// rawList returns two lists of about size bytes.
func rawList(size int) [2]json.RawMessage {
	long := strings.Repeat("x", size)
	return [2]json.RawMessage{json.RawMessage(`{"tools":["` + long + `"]}`), json.RawMessage(`{"tools":["` + long + `y"]}`)}
}

// Renamed servers do not make the cache grow without end.
func TestCacheOfRenamedServers(t *testing.T) {
	k := openInfoCache(filepath.Join(t.TempDir(), "upstreams.json"), slog.New(slog.DiscardHandler))
	for n := range maxStoredServers {
		k.all[strconv.Itoa(n)] = infoEntry{}
	}
	reach, info := &config.Upstream{URL: "http://127.0.0.1/"}, conn.Info{Version: "2025-11-25", Result: json.RawMessage(`{}`)}
	for _, name := range []string{"new", "newer"} {
		server := &Server{Key: name, Config: reach}
		k.putInfo(server, info)
		if got := k.get(server); len(k.all) != maxStoredServers || got.Version != info.Version {
			t.Errorf("%d servers are stored; %s has version %q", len(k.all), name, got.Version)
		}
	}
}

// A description that is too large is not stored, and takes the place of the one before.
func TestCacheIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "upstreams.json")
	k, server := openInfoCache(file, slog.New(slog.DiscardHandler)), &Server{Key: "up", Config: &config.Upstream{URL: "http://127.0.0.1/"}}
	for size, stored := range map[int]bool{100: true, maxStored: false} {
		k.putInfo(server, conn.Info{Version: "2025-11-25", Result: rawjson.Marshal(map[string]string{"instructions": strings.Repeat("x", size)})})
		if e := openInfoCache(file, k.log).get(server); (e.Version != "") != stored || (len(e.Result) > size) != stored {
			t.Errorf("%d bytes: stored version %q, %d bytes", size, e.Version, len(e.Result))
		}
	}
}

// Lists of many principals do not make the cache grow, and leave it those of some others.
func TestCacheOfManyPrincipals(t *testing.T) {
	k := openInfoCache(filepath.Join(t.TempDir(), "upstreams.json"), slog.New(slog.DiscardHandler))
	server := &Server{Key: "up", Config: &config.Upstream{URL: "http://127.0.0.1/"}}
	for n := range maxStoredLists + 8 {
		g := Group{Principal: strconv.Itoa(n)}
		k.putList(server, "resources/list", g, false, rawList(10)[0])
		if lists := k.get(server).Lists; len(lists) != min(n+1, maxStoredLists) || lists[listKey("resources/list", g)] == nil {
			t.Fatalf("after %d principals there are %d lists", n+1, len(lists))
		}
	}
}
