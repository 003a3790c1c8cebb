package catalog

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/policy"
)

// Bounds of what a catalog remembers for callers. Beyond them something is forgotten, and made again.
const (
	maxCallers = 4096
	maxParts   = 256 // different ones
)

// For returns the part of the catalog that a caller may see: the catalog itself if that is all of
// it. Callers who may see the same share a part.
func (c *Catalog) For(id interceptor.Identity) *Catalog {
	if c.Rules.policy == nil {
		return c
	}
	caller := fmt.Sprintf("%q", []any{id.Principal, id.Team, id.Roles, id.Scopes})
	c.mu.Lock()
	part := c.parts[c.sees[caller]]
	c.mu.Unlock()
	if part != nil {
		return part
	}
	var seen []byte // for each name, whether the caller sees it
	part = c.part(func(_ string, e Entry) bool {
		visible := c.Rules.Visible(c.kind, id, e).Allowed
		seen = strconv.AppendBool(seen, visible)
		return visible
	})
	if len(part.Order) == len(c.Order) {
		part = c
	}
	sum := sha256.Sum256(seen)
	c.mu.Lock()
	defer c.mu.Unlock()
	remember(&c.sees, caller, sum, maxCallers)
	if known := c.parts[sum]; known != nil {
		return known
	}
	if part != c {
		part.render(c.Rules.cfg.Authenticates())
	}
	remember(&c.parts, sum, part, maxParts)
	return part
}

// remember puts a value into a map of at most so many. If the map is full, it forgets another one.
func remember[K comparable, V any](m *map[K]V, key K, value V, most int) {
	if *m == nil {
		*m = map[K]V{}
	}
	for other := range *m {
		if len(*m) < most {
			break
		}
		delete(*m, other)
	}
	(*m)[key] = value
}

// part returns the part with the items that fit, which is not rendered yet.
func (c *Catalog) part(fits func(shown string, e Entry) bool) *Catalog {
	part := &Catalog{Rules: c.Rules, Lists: c.Lists, kind: c.kind, entries: map[string]Entry{}}
	for _, shown := range c.Order {
		if e := c.entries[shown]; fits(shown, e) {
			part.entries[shown] = e
			part.Order = append(part.Order, shown)
		}
	}
	return part
}

// The types of what a completion/complete refers to.
const (
	RefPrompt   = "ref/prompt"
	RefResource = "ref/resource"
)

// Removed is the decision about what belongs to an upstream that the configuration no longer has. A
// reload may remove one between the look-up of a name and the call.
var Removed = policy.Decision{Code: "removed"}

// Govern reports whether a policy forbids anything.
func (r *Rules) Govern() bool { return r.policy != nil }

// Visible decides whether a caller may see an item of a list. foldgate's own tools are for all: they
// act only on what is the caller's. The decision may be [Removed].
func (r *Rules) Visible(k Kind, id interceptor.Identity, e Entry) policy.Decision {
	if r.policy == nil || e.Server == "" {
		return policy.Decision{Allowed: true, Rule: policy.DefaultRule}
	}
	if r.cfg.Upstreams[e.Server] == nil {
		return Removed
	}
	q := policy.Request{Identity: id, Server: e.Server, Listing: true}
	r.name(&q, [...]policy.Kind{policy.Tool, policy.Prompt, policy.Resource, policy.Resource}[k], e.Name, e)
	return r.policy.Decide(q)
}

// Permit decides whether a call may be sent to its server, by what is sent. e is the entry of its
// tool; other methods do not need it. The decision may be [Removed]. unknown means that a refusal
// must look as if the target did not exist. In a branch the policy must also allow the call to those
// who created the branch and its parents, as they were then.
func (r *Rules) Permit(c *interceptor.Call, e Entry) (d policy.Decision, unknown bool) {
	if r.policy == nil {
		return policy.Decision{Allowed: true, Rule: policy.DefaultRule}, false
	}
	t := &c.Target
	if r.cfg.Upstreams[t.Server] == nil {
		return Removed, false
	}
	q := policy.Request{Identity: c.Origin.Identity, Server: t.Server, Kind: policy.Method, Name: t.Method}
	if c.Attribution.Branch != nil {
		q.Branch = c.Attribution.Branch.ID
	}
	own, _ := rawjson.GetString(t.Forward, "name")
	q.Arguments, _ = rawjson.Get(t.Forward, "arguments")
	switch t.Method {
	case "tools/call":
		r.name(&q, policy.Tool, own, e)
	case "prompts/get":
		r.name(&q, policy.Prompt, own, e)
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		uri, _ := rawjson.GetString(t.Forward, "uri")
		r.name(&q, policy.Resource, uri, e)
	case "completion/complete": // its arguments are no prompt's
		q.Listing = true
		if kind, _ := rawjson.GetString(t.Forward, "ref", "type"); kind == RefResource {
			uri, _ := rawjson.GetString(t.Forward, "ref", "uri")
			r.name(&q, policy.Resource, uri, e)
		} else {
			own, _ = rawjson.GetString(t.Forward, "ref", "name")
			r.name(&q, policy.Prompt, own, e)
		}
	case "tasks/get", "tasks/result", "tasks/update", "tasks/cancel", "tasks/list": // it goes on with a call that was allowed
		if q.Listing = true; t.Name == "" {
			return policy.Decision{Allowed: true, Rule: policy.DefaultRule}, false
		}
		r.name(&q, policy.Tool, t.Name, e)
	}
	if d, unknown = r.decide(q); !d.Allowed {
		if c.Origin.Issuer != "" && !unknown {
			d.Scopes = r.policy.Missing(q)
		}
		return d, unknown
	}
	creators, err := interceptor.ReadClaims(c.Attribution.Branch)
	if err != nil {
		return policy.Decision{Rule: policy.DefaultRule, Code: "policy_denied", Message: err.Error()}, false
	}
	for _, q.Identity = range creators {
		if d.Warned {
			break
		}
		if d, unknown = r.decide(q); !d.Allowed {
			d.Message = "the policy must also allow this call for the branch's creator, with the team, roles and scopes at creation: " + d.Message
			return d, unknown
		}
	}
	return d, false
}

// decide asks the policy. unknown means that the caller must not learn of what is refused.
func (r *Rules) decide(q policy.Request) (d policy.Decision, unknown bool) {
	if d = r.policy.Decide(q); !d.Allowed && r.policy.HidesUnlisted() {
		q.Listing = true
		unknown = !r.policy.Decide(q).Allowed
	}
	return d, unknown
}

// PermitNotification decides whether a notification that foldgate does not know may be sent to a
// server.
func (r *Rules) PermitNotification(id interceptor.Identity, server, method string) policy.Decision {
	return r.policy.Decide(policy.Request{Identity: id, Server: server, Kind: policy.Method, Name: method})
}

// HidesUnlisted reports whether what a caller does not see is to look as if it did not exist.
func (r *Rules) HidesUnlisted() bool { return r.policy.HidesUnlisted() }

// Hides reports whether a caller must not learn that an item exists. What belongs to an upstream that
// the configuration no longer has is not hidden: a call says so.
func (r *Rules) Hides(k Kind, id interceptor.Identity, e Entry) bool {
	if !r.HidesUnlisted() {
		return false
	}
	d := r.Visible(k, id, e)
	return !d.Allowed && d != Removed
}

// name completes a request about what a server calls own.
func (r *Rules) name(q *policy.Request, k policy.Kind, own string, e Entry) {
	q.Kind, q.Name = k, own
	if k != policy.Resource {
		q.Name, q.Full = r.cfg.ShownName(q.Server, own), r.cfg.FullName(q.Server, own)
	}
	if k == policy.Tool {
		q.Annotations, _ = rawjson.Get(e.Raw, "annotations")
		q.Unlisted = e.Raw == nil
	}
}
