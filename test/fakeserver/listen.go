package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// listenParams are the params of subscriptions/listen in the modern era.
type listenParams struct {
	ToolsListChanged      bool
	ResourceSubscriptions []string
}

// listen acknowledges and then lasts until the host ends it.
func (c *call) listen(ctx context.Context) (result, errObject string) {
	var p struct{ Notifications json.RawMessage }
	var w listenParams
	if json.Unmarshal(c.m.Params, &p) != nil || json.Unmarshal(p.Notifications, &w) != nil || !c.isNew {
		return "", `{"code":-32602,"message":"notifications is not as it should be"}`
	}
	if slices.Contains(w.ResourceSubscriptions, "fake://refused") {
		return "", `{"code":-32603,"message":"not this one"}`
	}
	c.heard("notifications/subscriptions/acknowledged", fmt.Sprintf(`"notifications":%s,`, p.Notifications))
	dieBy(w.ResourceSubscriptions...)
	c.s.mu.Lock()
	if c.s.open == nil {
		c.s.open = map[*call]listenParams{}
	}
	c.s.open[c] = w
	c.s.mu.Unlock()
	defer func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		delete(c.s.open, c)
	}()
	<-ctx.Done()
	return "", ""
}

// dieBy ends the process soon after a subscription to fake://dies.
func dieBy(uris ...string) {
	if slices.Contains(uris, "fake://dies") {
		time.AfterFunc(50*time.Millisecond, func() { os.Exit(3) })
	}
}

// heard sends a notification that carries the listen's id.
func (c *call) heard(method, members string) {
	c.notify(method, fmt.Sprintf(`{%s"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}`, members, c.m.ID))
}

func (s *server) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, w := range s.open {
		if w.ToolsListChanged {
			c.heard("notifications/tools/list_changed", "")
		}
	}
}

func (s *server) updated(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, w := range s.open {
		if slices.Contains(w.ResourceSubscriptions, uri) {
			c.heard("notifications/resources/updated", fmt.Sprintf(`"uri":%q,`, uri))
		}
	}
}
