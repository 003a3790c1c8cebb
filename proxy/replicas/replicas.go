// Package replicas lets gateways serve hosts together. Each replica keeps its own branches, sessions,
// stored results and suspended calls, and their ids have its name. A replica that gets a request
// for another one's passes it on.
//
// A [Set] registers its replica in Redis or Valkey and knows the others from there. It knows nothing
// of MCP: the server finds the owner of a request in its ids, and [Set.Forward] passes it on.
//
// # Who may pass on
//
// Replicas speak HTTP/2 over TLS. Both sides prove that they know the key of the configuration: the
// certificate of each is made from it. The request keeps the token of its host, which the owner
// checks again. A request that was passed on is not passed on again.
package replicas

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/foldgate/foldgate/internal/redisdb"
	"github.com/foldgate/foldgate/internal/replicaid"
)

const (
	beatEvery = time.Second      // between two registrations
	beatWait  = 2 * time.Second  // for an answer of the registry
	ttl       = 5 * time.Second  // after its last registration a replica counts as down
	absent    = 30 * time.Second // after that requests do not wait for it
	forgotten = 24 * time.Hour   // after that its name is unknown; results are kept so long
	kept      = 256              // if there are more replicas, the ones that are down for a minute are forgotten
)

// Member is a replica as the registry knows it.
type Member struct {
	Name    string        `json:"name"`
	Address string        `json:"address"`
	State   string        `json:"state"`   // up, draining, stopped or down
	Config  string        `json:"config"`  // the start of the SHA-256 of its configuration
	Version string        `json:"version"` // of foldgate
	Seen    time.Duration `json:"-"`       // ago

	run    string // tells processes with one name apart
	missed time.Time
}

// States of a member.
const (
	Up       = "up"
	Draining = "draining" // it takes no new session
	Stopped  = "stopped"  // it was stopped, and may come back
	Down     = "down"     // it does not register any more
)

// Options configure a [Set].
type Options struct {
	Name    string // of this replica, as of [replicaid.NewName]
	Address string // host:port at which the others reach it
	Key     string // that all replicas know
	DB      *redisdb.DB
	Config  string // the SHA-256 of the configuration
	Version string
	Log     *slog.Logger
}

// Set is all replicas as one of them sees them. Make it with [New]; call [Set.Serve] and [Set.Join]
// before other methods, and [Set.Close] at the end. It is safe for concurrent use.
type Set struct {
	opts    Options
	run     string
	keys    keys
	peers   *http.Server
	out     *http.Transport
	running sync.WaitGroup // the goroutines of the set
	quit    chan struct{}
	now     chan struct{} // asks for a registration at once

	mu      sync.Mutex // guards the fields below
	joined  bool
	state   string // of this replica
	members map[string]*Member
	err     error // of the last registration
	counts  Counts
}

// New returns the replicas that share the database. It does not connect.
func New(o Options) (*Set, error) {
	s := &Set{opts: o, run: rand.Text()[:8], quit: make(chan struct{}), now: make(chan struct{}, 1), state: Up, members: map[string]*Member{}}
	var err error
	if s.keys, err = newKeys(o.Key); err != nil {
		return nil, err
	}
	s.out = s.keys.transport()
	return s, nil
}

// Name is in the ids that this replica makes.
func (s *Set) Name() string { return s.opts.Name }

// Join registers the replica, and again every second until Close. It fails if another process that runs
// has the name. If the registry can't be reached, it logs that: the replica serves what it can.
func (s *Set) Join(ctx context.Context) error {
	other, err := s.beat(ctx, "")
	if err != nil {
		s.opts.Log.Warn("the other replicas are not known yet", "err", err)
	} else if other != nil && s.Try(ctx, *other) == nil { // else it was killed, and its registration has not run out yet
		return fmt.Errorf("replica %s: the one at %s has the same name: it is in the state directory, which must not be a copy; delete its file replica", s.opts.Name, other.Address)
	}
	if err == nil {
		_, _ = s.beat(ctx, s.opts.Name) // the loop tells of an error
	}
	s.mu.Lock()
	s.joined = true
	s.mu.Unlock()
	s.running.Go(s.beatUntilClosed)
	return nil
}

// Try returns why requests can't be passed on to a replica, nil if they can.
func (s *Set) Try(ctx context.Context, m Member) error {
	ctx, cancel := context.WithTimeout(ctx, 2*dialWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.Address+"/", nil)
	if err != nil {
		return err
	}
	r.Header.Set(headerTo, m.Name)
	res, err := s.out.RoundTrip(r)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.Header.Get(headerNot) != "" {
		return errors.New("another replica is at its address")
	}
	return nil
}

// Look reads the registry once, without registering. It is for programs that are no replica.
func (s *Set) Look(ctx context.Context) ([]Member, error) {
	_, err := s.beat(ctx, "")
	return s.Status().Members, err
}

func (s *Set) beatUntilClosed() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-tick.C:
		case <-s.now:
		case <-s.quit:
			return
		}
		_, err := s.beat(context.Background(), s.opts.Name)
		if (err != nil) != failed {
			if failed = err != nil; failed {
				s.opts.Log.Warn("the registry of replicas can't be reached; those that were known are used", "err", err)
			} else {
				s.opts.Log.Info("the registry of replicas is reached again")
			}
		}
	}
}

//go:embed beat.lua
var beatText string
var beatScript = valkey.NewLuaScript(beatText)

// beat registers the replica under name, not at all with "", and reads the others. It returns another process that is
// up with the name of this one.
func (s *Set) beat(ctx context.Context, name string) (other *Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, beatWait)
	defer cancel()
	s.mu.Lock()
	text := fmt.Sprintf("%s %s %s %.12s %s", s.run, s.state, s.opts.Address, cmp.Or(s.opts.Config, "-"), s.opts.Version)
	s.mu.Unlock()
	all, err := redisdb.Do(ctx, s.opts.DB, func(client valkey.Client) ([]string, error) {
		args := []string{name, text, strconv.FormatInt(forgotten.Milliseconds(), 10), strconv.Itoa(kept)}
		return beatScript.Exec(ctx, client, []string{s.opts.DB.Prefix + "replicas"}, args).AsStrSlice()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err != nil {
		return nil, err
	}
	return s.learn(all), nil
}

// learn takes what the registry has: its time, and the names and texts of replicas. The caller holds mu.
func (s *Set) learn(all []string) (other *Member) {
	members, now := map[string]*Member{}, int64(0)
	if len(all) > 0 {
		now, _ = strconv.ParseInt(all[0], 10, 64)
	}
	for i := 1; i+1 < len(all); i += 2 {
		m, ok := readMember(all[i], all[i+1], now)
		if !ok {
			continue
		}
		if old := s.members[m.Name]; old != nil && old.run == m.run {
			m.missed = old.missed
		}
		if m.Name == s.opts.Name && m.run != s.run && m.State == Up && m.Address != s.opts.Address {
			other = m
		}
		members[m.Name] = m
	}
	// A registry that lost its data has only those that registered since.
	for name, old := range s.members {
		if members[name] == nil && name != s.opts.Name && old.Seen < absent {
			lost := *old
			if lost.Seen += beatEvery; lost.Seen > ttl && lost.State != Stopped {
				lost.State = Down
			}
			members[name] = &lost
		}
	}
	s.members = members
	return other
}

// readMember reads what a replica has registered: the time in milliseconds, its run, its state, its
// address, its configuration and its version.
func readMember(name, text string, now int64) (*Member, bool) {
	parts := strings.SplitN(text, " ", 6)
	if len(parts) != 6 || !replicaid.Valid(name) {
		return nil, false
	}
	at, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil || !slices.Contains([]string{Up, Draining, Stopped}, parts[2]) {
		return nil, false
	}
	m := &Member{Name: name, run: parts[1], State: parts[2], Address: parts[3], Config: parts[4], Version: parts[5], Seen: time.Duration(min(max(now-at, 0), 2*forgotten.Milliseconds())) * time.Millisecond}
	if m.Seen > ttl && m.State != Stopped {
		m.State = Down
	}
	return m, true
}

// Drain tells the others that this replica stops: it takes no new session from then on.
func (s *Set) Drain() { s.change(Draining) }

// Leaving reports whether the replica stops.
func (s *Set) Leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state != Up
}

func (s *Set) change(state string) {
	s.mu.Lock()
	s.state = state
	s.mu.Unlock()
	select {
	case s.now <- struct{}{}:
	default:
	}
}

// Close lets requests of other replicas finish until ctx is done, and registers the replica as stopped.
func (s *Set) Close(ctx context.Context) {
	if s.peers != nil && s.peers.Shutdown(ctx) != nil {
		_ = s.peers.Close()
	}
	close(s.quit)
	s.running.Wait()
	s.change(Stopped)
	s.mu.Lock()
	joined := s.joined
	s.mu.Unlock()
	if joined { // a copy that was refused must not write over the one it is a copy of
		_, _ = s.beat(ctx, s.opts.Name) // else its time runs out
	}
	s.out.CloseIdleConnections()
	_ = s.opts.DB.Close() // it has no errors
}

// Counts are the requests that a replica has passed on.
type Counts struct {
	Forwarded int64 `json:"forwarded"` // answered by their owner
	Failed    int64 `json:"failed"`    // not answered, because their owner was down or went away
}

// Status returns this replica's name, all replicas by name, what was passed on, and why the registry
// can't be reached.
func (s *Set) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Name: s.opts.Name, State: s.state, Counts: s.counts, Members: []Member{}}
	if s.err != nil {
		st.Error = s.err.Error()
	}
	for _, m := range s.members {
		st.Members = append(st.Members, *m)
	}
	slices.SortFunc(st.Members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// Status is what a replica knows of all.
type Status struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Counts
	Error   string   `json:"error,omitempty"`
	Members []Member `json:"members"`
}

// MarshalJSON implements [json.Marshaler].
func (m Member) MarshalJSON() ([]byte, error) {
	type plain Member
	return json.Marshal(struct {
		plain
		Seen float64 `json:"seen_seconds_ago"`
	}{plain(m), m.Seen.Round(100 * time.Millisecond).Seconds()})
}

// score says how much a replica is the one for a principal: the highest decides (rendezvous hashing),
// so that a replica that comes or goes moves no principal but its own.
func score(principal, name string) uint64 {
	sum := sha256.Sum256([]byte(principal + "\x00" + name))
	return binary.BigEndian.Uint64(sum[:])
}
