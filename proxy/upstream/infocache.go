package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
)

// infoCache keeps the last description of each server on disk, so that foldgate can answer a host's
// initialize without starting any: some hosts start a server only to ask for its name. Without the
// file the servers are asked.
type infoCache struct {
	file string
	log  *slog.Logger

	mu  sync.Mutex
	all map[string]infoEntry
}

type infoEntry struct {
	// Config is a hash of the server's configuration. If that changes, the entry is not used.
	Config  string          `json:"config"`
	Version string          `json:"version"`
	Result  json.RawMessage `json:"result"`
}

// openInfoCache reads the cache. It starts anew if the file is unreadable.
func openInfoCache(file string, log *slog.Logger) *infoCache {
	k := &infoCache{file: file, log: log, all: map[string]infoEntry{}}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &k.all)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cache of upstreams can't be read and is made anew", "file", file, "err", err)
		k.all = map[string]infoEntry{}
	}
	return k
}

// get returns the server's last description. It is zero if it has never been asked under this
// configuration.
func (k *infoCache) get(key string, c *config.Upstream) conn.Info {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.all[key]; e.Config == configHash(c) {
		return conn.Info{Version: e.Version, Result: e.Result}
	}
	return conn.Info{}
}

// put keeps a server's description. The caller has removed the secrets.
func (k *infoCache) put(key string, c *config.Upstream, info conn.Info) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := infoEntry{Config: configHash(c), Version: info.Version, Result: info.Result}
	if old := k.all[key]; old.Config == e.Config && string(old.Result) == string(e.Result) {
		return
	}
	k.all[key] = e
	next := k.file + ".new" // replaces the file in one step
	err := os.WriteFile(next, rawjson.Marshal(k.all), 0o600)
	if err == nil {
		err = os.Rename(next, k.file)
	}
	if err != nil {
		k.log.Warn("cache of upstreams can't be written", "err", err)
	}
}

// configHash identifies a configuration without showing its secrets.
func configHash(c *config.Upstream) string {
	sum := sha256.Sum256(rawjson.Marshal(c))
	return hex.EncodeToString(sum[:])
}
