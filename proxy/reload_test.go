package proxy

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// apply puts a configuration in force, as a reload does.
func (r *rig) apply(next config.Config) {
	r.t.Helper()
	r.g.reloading.Lock()
	defer r.g.reloading.Unlock()
	next.Sum = "of a file that is not empty"
	if _, err := r.g.apply(next); err != nil {
		r.t.Fatal(err)
	}
}

// The context of Close also bounds a reload that hangs.
func TestCloseDoesNotWaitForAReload(t *testing.T) {
	r := newRig(t, true, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.g.reloading.Lock()
	defer r.g.reloading.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.closing.Do(func() { _ = r.g.Close(ctx) }) // may say that the state was not closed in time
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for the reload")
	}
	if r.g.lifetime.Err() == nil {
		t.Error("the gateway works on after Close")
	}
}

// A principal that a reload adds has connections at once, whatever earlier reloads still do.
func TestAddedPrincipalIsServedAtOnce(t *testing.T) {
	r := newRigWith(t, true, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, func(c *config.Config) {
		c.Principals = map[string]*config.Principal{"first": {Token: "token-of-the-first-one"}}
	})
	next := r.g.Start
	for n := range 20 {
		next.Principals = maps.Clone(next.Principals)
		name := fmt.Sprint("added", n)
		next.Principals[name] = &config.Principal{Token: config.Secret("token-of-principal-" + name)}
		r.apply(next)
		scope := upstream.Scope{Group: upstream.Group{Principal: name}}
		if _, err := r.g.settings.Load().Servers[0].Connection(t.Context(), scope); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// A call that comes while a reload changes the prefix of its server counts under the name that the host called.
func TestLimitKeepsTheCalledName(t *testing.T) {
	r := newRigWith(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, func(c *config.Config) {
		window := limits.Window{}
		if err := window.UnmarshalText([]byte("1d")); err != nil {
			t.Fatal(err)
		}
		c.Budgets.Limits = []limits.Limit{{Name: "once", Per: limits.PerTool, Calls: 1, Window: window, Match: limits.Match{Server: "up"}}}
	})
	r.initialize()
	r.tool("up__echo", `{}`)
	chain := r.g.router.Chain
	r.g.router.Chain = func(ctx context.Context, c *interceptor.Call, ask interceptor.Handler) (*interceptor.Result, error) {
		next := r.g.Start
		prefix := "new"
		next.Upstreams = map[string]*config.Upstream{"up": {Command: []string{"fake"}, Prefix: &prefix}}
		r.apply(next)
		return chain(ctx, c, ask)
	}
	got := r.tool("up__echo", `{}`)
	if code, _ := rawjson.GetString([]byte(got), "structuredContent", "error", "code"); code != "limit_exceeded" {
		t.Errorf("the second call of one tool = %s, want limit_exceeded", got)
	}
}

// A reload connects the servers that it adds, also if all principals are an issuer's.
func TestAddedServerIsConnected(t *testing.T) {
	r := newRigWith(t, true, map[string]fakeUpstream{"up": echoUpstream("2025-11-25"), "added": echoUpstream("2025-11-25")}, func(c *config.Config) {
		delete(c.Upstreams, "added")
		c.PublicURL = "https://gateway.example"
		c.Auth.Issuers = map[string]*auth.Issuer{"corp": {URL: "https://login.example"}}
	})
	next := r.g.Start
	r.apply(next)
	time.Sleep(100 * time.Millisecond) // for what the first reload still does
	next.Upstreams = maps.Clone(next.Upstreams)
	next.Upstreams["added"] = &config.Upstream{Command: []string{"fake"}}
	r.apply(next)
	added := r.g.settings.Load().Server("added")
	for range 500 { // 5 seconds
		if state, _ := added.Status(); state == "ready" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	state, fault := added.Status()
	t.Errorf("the server is %s (%v), want ready", state, fault)
}
