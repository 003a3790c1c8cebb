package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// ErrFull means that a server has max_connections connections, and that all of them are in use. It
// arrives wrapped; nothing was sent.
var ErrFull = errors.New("all connections are in use")

const (
	// placeWait is how long a new connection waits for its place.
	placeWait = 10 * time.Second
	// settled is how long a connection must be unused before another one may take its place.
	settled = 100 * time.Millisecond
)

// places bounds the connections to one server: the ones that start, are open, or end.
type places struct {
	mu    sync.Mutex
	all   int                  // most connections, for all
	each  int                  // and for one principal
	taken map[*reconnector]int // mostly 1; a second while the first ends
	freed chan struct{}        // closed when a place becomes free
}

// limit sets how many connections there may be. A reload can change it while some are open.
func (p *places) limit(all, each int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all, p.each = all, each; p.taken == nil {
		p.taken, p.freed = map[*reconnector]int{}, make(chan struct{})
	}
}

// take takes a place for a connection of r. If none is free, it closes the longest idle connection
// of the principal, else of all, and waits.
func (p *places) take(ctx context.Context, r *reconnector) error {
	principal := r.of.group.Principal
	deadline := time.After(placeWait)
	for ending := false; ; {
		p.mu.Lock()
		sum, mine := 0, 0
		for holder, n := range p.taken {
			if sum += n; holder.of.group.Principal == principal {
				mine += n
			}
		}
		if r.server.Builtin() || sum < p.all && mine < p.each {
			p.taken[r]++
			p.mu.Unlock()
			return nil
		}
		holders, freed, own := slices.Collect(maps.Keys(p.taken)), p.freed, mine >= p.each
		all, each := p.all, p.each
		p.mu.Unlock()
		ending = ending || retireIdlest(holders, principal, own)
		select {
		case <-freed:
			ending = false
		case <-time.After(settled): // a connection may be idle by now
		case <-deadline:
			return fmt.Errorf("%w: it has %d (max_connections), of which one principal may have %d, and none became idle within %s",
				ErrFull, all, each, placeWait)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// retireIdlest closes the longest idle connection of a principal, else of all unless own is set.
func retireIdlest(holders []*reconnector, principal string, own bool) bool {
	var best *reconnector
	var longest time.Time
	for _, r := range holders {
		since, idle := r.idle()
		if mine := r.of.group.Principal == principal; !idle || time.Since(since) < settled || own && !mine {
			continue
		} else if best == nil || mine && best.of.group.Principal != principal || mine == (best.of.group.Principal == principal) && since.Before(longest) {
			best, longest = r, since
		}
	}
	return best != nil && best.retire()
}

// free gives a place back.
func (p *places) free(r *reconnector) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[r]--; p.taken[r] == 0 {
		delete(p.taken, r)
	}
	close(p.freed)
	p.freed = make(chan struct{})
}
