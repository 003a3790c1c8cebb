package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"sync"

	"github.com/foldgate/foldgate/internal/atomicfile"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
)

// infoCache keeps the last description and the lists of each server on disk, so that foldgate can
// answer a host's first requests without waiting for any server: some hosts start a server only to
// ask for its name, and some give up after 5 seconds. Without the file the servers are asked.
type infoCache struct {
	file string
	log  *slog.Logger

	writing sync.Mutex // held by write

	mu  sync.Mutex // never held while the file is written
	all map[string]infoEntry
}

type infoEntry struct {
	// Config is a hash of the server's configuration. If that changes, the entry is not used.
	Config  string          `json:"config"`
	Version string          `json:"version"`
	Result  json.RawMessage `json:"result"`
	// Lists has each list as one page, by its listKey.
	Lists map[string]json.RawMessage `json:"lists,omitempty"`
	// Hosts are the capabilities of the hosts that last asked for a list.
	Hosts json.RawMessage `json:"hosts,omitempty"`
}

const (
	// maxStored is the size in bytes up to which a list or a description is stored.
	maxStored = 1 << 20
	// maxStoredLists is how many lists of a server are stored. One more takes the place of any other.
	maxStoredLists = 32
	// maxStoredServers is how many servers are stored. One more takes the place of any other.
	maxStoredServers = 1000
)

// listKey names a list that the hosts of a group get.
func listKey(method string, g Group) string {
	key := method + " " + g.Capabilities.String()
	if g.Principal != "" {
		sum := sha256.Sum256([]byte(g.Principal))
		key += " " + hex.EncodeToString(sum[:16])
	}
	return key
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

// get returns the entry of a server. It is zero if the server has never been asked under this
// configuration. The caller must not change it.
func (k *infoCache) get(s *Server) infoEntry {
	hash := configHash(s.Config)
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.all[s.Key]; e.Config == hash {
		return e
	}
	return infoEntry{}
}

// putInfo keeps a server's description. The caller has removed the secrets.
func (k *infoCache) putInfo(s *Server, info conn.Info) {
	k.put(s, func(e *infoEntry) bool {
		if len(info.Result) > maxStored {
			info = conn.Info{}
		}
		changed := string(e.Result) != string(info.Result)
		e.Version, e.Result = info.Version, info.Result
		return changed
	})
}

// putList keeps a list of a server, as one page. If it is for all principals, that of g's own goes. The caller has removed
// the secrets.
func (k *infoCache) putList(s *Server, method string, g Group, forAll bool, page json.RawMessage) {
	if len(page) > maxStored {
		return
	}
	own := listKey(method, g)
	can := g.Capabilities.JSON()
	k.put(s, func(e *infoEntry) bool {
		name, before := own, len(e.Lists)
		e.Lists = maps.Clone(e.Lists)
		if e.Lists == nil {
			e.Lists = map[string]json.RawMessage{}
		}
		if forAll {
			delete(e.Lists, own)
			name = listKey(method, Group{Capabilities: g.Capabilities})
		}
		changed := len(e.Lists) != before || string(e.Lists[name]) != string(page) || string(e.Hosts) != string(can)
		e.Lists[name], e.Hosts = page, can
		for other := range e.Lists {
			if len(e.Lists) <= maxStoredLists {
				break
			}
			if other != name {
				delete(e.Lists, other)
			}
		}
		return changed
	})
}

// put changes the entry of a server, and writes the file if that made a difference.
func (k *infoCache) put(s *Server, change func(*infoEntry) bool) {
	hash := configHash(s.Config)
	k.mu.Lock()
	e := k.all[s.Key]
	if e.Config != hash {
		e = infoEntry{Config: hash}
	}
	changed := change(&e)
	if changed {
		k.all[s.Key] = e
		for other := range k.all { // earlier configurations had other names
			if len(k.all) <= maxStoredServers {
				break
			}
			if other != s.Key {
				delete(k.all, other)
			}
		}
	}
	k.mu.Unlock()
	if changed {
		k.write()
	}
}

// write replaces the file. Other processes of the state directory may do so at the same time.
func (k *infoCache) write() {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	all := maps.Clone(k.all)
	k.mu.Unlock()
	if err := atomicfile.Write(k.file, rawjson.Marshal(all), 0o600); err != nil {
		k.log.Warn("cache of upstreams can't be written", "err", err)
	}
}

// configHash identifies a configuration without showing its secrets.
func configHash(c *config.Upstream) string {
	sum := sha256.Sum256(rawjson.Marshal(c))
	return hex.EncodeToString(sum[:])
}
