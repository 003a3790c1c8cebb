package proxy

import (
	"log/slog"
	"sync"

	"github.com/foldgate/foldgate/proxy/config"
)

// menus keeps the last merged lists. Its zero value is ready to use.
type menus struct {
	mu     sync.Mutex
	last   map[string]*[listKinds]*menu // by principal
	warned map[string]bool              // clashes that the log has already
}

// warn logs clashes, each once. The caller holds mu.
func (ms *menus) warn(log *slog.Logger, k listKind, clashes []Clash) {
	if ms.warned == nil {
		ms.warned = map[string]bool{}
	}
	for _, c := range clashes {
		if key := kinds[k].method + " " + c.Name; !ms.warned[key] {
			ms.warned[key] = true
			log.Warn("two upstreams offer the same name; the first keeps it", "list", kinds[k].method, "name", c.Name, "first", c.First, "second", c.Second)
		}
	}
}

// warnRules logs rules that name no tool, each once. The caller holds mu.
func (ms *menus) warnRules(log *slog.Logger, faults []config.Fault) {
	for _, f := range faults {
		if !ms.warned[f.Key] {
			if ms.warned == nil {
				ms.warned = map[string]bool{}
			}
			ms.warned[f.Key] = true
			log.Warn("a workflow's rule names a tool that there is not", "rule", f.Key, "fault", f.Msg)
		}
	}
}

// latest returns the last merged list of a principal without asking anyone; nil
// if there is none.
func (ms *menus) latest(principal string, k listKind) *menu {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.of(principal)[k]
}

// of returns the last merged lists of a principal. The caller holds mu.
func (ms *menus) of(principal string) *[listKinds]*menu {
	if ms.last[principal] == nil {
		if ms.last == nil {
			ms.last = map[string]*[listKinds]*menu{}
		}
		ms.last[principal] = &[listKinds]*menu{}
	}
	return ms.last[principal]
}
