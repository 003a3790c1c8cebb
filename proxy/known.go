package proxy

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

// knownInfo remembers across restarts what each upstream said of itself, so
// that a host can be greeted without starting any: some hosts start a server
// only to ask what it is. The file is a cache: without it upstreams are asked.
type knownInfo struct {
	file string
	log  *slog.Logger

	mu  sync.Mutex
	all map[string]knownEntry
}

type knownEntry struct {
	// Config is a hash of the upstream's configuration: another server behind
	// the same key is not known.
	Config  string          `json:"config"`
	Version string          `json:"version"`
	Result  json.RawMessage `json:"result"`
}

// openKnown reads the cache; an unreadable one is started anew.
func openKnown(file string, log *slog.Logger) *knownInfo {
	k := &knownInfo{file: file, log: log, all: map[string]knownEntry{}}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &k.all)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cache of upstreams can't be read and is made anew", "file", file, "err", err)
		k.all = map[string]knownEntry{}
	}
	return k
}

// get gives u what it said last time, if it is still the same server.
func (k *knownInfo) get(u *upstream) {
	k.mu.Lock()
	e, ok := k.all[u.key]
	k.mu.Unlock()
	if ok && e.Config == configHash(u.cfg) {
		u.mu.Lock()
		u.said = conn.Info{Version: e.Version, Result: e.Result}
		u.mu.Unlock()
	}
}

// put keeps what u says now. The text is scrubbed: it lands on disk.
func (k *knownInfo) put(u *upstream) {
	said, _ := u.about()
	clean, _, err := u.gw.scrubber.JSON(u.gw.ctx, said.Result)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	e := knownEntry{Config: configHash(u.cfg), Version: said.Version, Result: clean}
	if old, ok := k.all[u.key]; ok && old.Config == e.Config && string(old.Result) == string(e.Result) {
		return
	}
	k.all[u.key] = e
	if err := writeFileAtomic(k.file, rawjson.Marshal(k.all)); err != nil {
		k.log.Warn("cache of upstreams can't be written", "err", err)
	}
}

// configHash identifies a configuration without keeping its secrets readable.
func configHash(c *config.Upstream) string {
	sum := sha256.Sum256(rawjson.Marshal(c))
	return hex.EncodeToString(sum[:])
}

// writeFileAtomic replaces file by data in one step, readable by the owner.
func writeFileAtomic(file string, data []byte) error {
	tmp := file + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
