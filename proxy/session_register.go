package proxy

import (
	"slices"
	"sync"
)

// register is the set of sessions that outlive a request: all but those of modern
// requests on HTTP. Its zero value is ready.
type register struct {
	mu  sync.Mutex
	all map[*session]struct{}
}

func (r *register) add(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[*session]struct{}{}
	}
	r.all[s] = struct{}{}
}

func (r *register) remove(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, s)
}

// of returns the sessions of a principal.
func (r *register) of(principal string) []*session {
	return slices.DeleteFunc(r.list(), func(s *session) bool { return s.Principal != principal })
}

func (r *register) list() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*session, 0, len(r.all))
	for s := range r.all {
		out = append(out, s)
	}
	return out
}
