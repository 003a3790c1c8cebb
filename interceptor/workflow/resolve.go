package workflow

import (
	"context"
	"slices"
)

// resolve returns the node that a call refers to, nil where it refers to none,
// and notes the evidence in s.
func (e *Engine) resolve(ctx context.Context, s *Step, now int64) (*node, error) {
	r := s.request
	open := r.Rule.Role == RoleOpen
	for _, kind := range r.Rule.flow.Evidence {
		var n *node
		var err error
		switch {
		case kind == Explicit && r.Handle != "":
			if n, err = e.explicit(ctx, s, now); err == nil && n == nil && s.Foreign != "" {
				s.Evidence = Explicit // a new workflow under the id that the host gave
				return nil, nil
			}
		case kind == Native && r.Native != "":
			n, err = e.named(ctx, r, r.Native, now)
		case kind == Join && !open && len(s.joins) > 0:
			n, err = e.join(ctx, s, "", now)
		case kind == Session && !open && r.Session != "":
			if n, err = lastOf(ctx, e.store.db, r.Principal, r.Rule.Workflow(), r.Session, now); err == nil && n != nil && !e.opened(r.Rule, n) {
				n = nil
			}
		}
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		s.Evidence = kind
		if kind != Join && r.Rule.Role == RoleStatus && n.id == n.root {
			return e.narrow(ctx, s, n, now)
		}
		return n, nil
	}
	return nil, nil
}

// explicit finds the node of the handle that the call gives.
func (e *Engine) explicit(ctx context.Context, s *Step, now int64) (*node, error) {
	r := s.request
	n, err := e.named(ctx, r, r.Handle, now)
	if err != nil || n != nil {
		return n, err
	}
	f := r.Rule.flow
	if f.Preserve && r.Rule.Role == RoleOpen && !ValidID(r.Handle) && validForeign(r.Handle) && (r.Secret == nil || !r.Secret(r.Handle)) {
		taken, err := byAlias(ctx, e.store.db, r.Principal, f.Name, r.Handle)
		if err != nil {
			return nil, err
		}
		if taken == nil { // an expired workflow's alias is not given to another
			s.Foreign = r.Handle
			return nil, nil
		}
	}
	if f.Remint {
		return nil, nil
	}
	return nil, ErrUnknown
}

// named returns the live node of the caller's that a handle or alias names.
func (e *Engine) named(ctx context.Context, r Request, handle string, now int64) (*node, error) {
	var n *node
	var err error
	if ValidID(handle) {
		n, err = byID(ctx, e.store.db, handle)
	}
	if err == nil && n == nil {
		n, err = byAlias(ctx, e.store.db, r.Principal, r.Rule.Workflow(), handle)
	}
	if err != nil || n == nil || n.principal != r.Principal || n.workflow != r.Rule.Workflow() {
		return nil, err
	}
	root := n
	if n.id != n.root {
		if root, err = byID(ctx, e.store.db, n.root); err != nil || root == nil {
			return nil, err
		}
	}
	if root.closed || root.expires <= now || !e.opened(r.Rule, root) {
		return nil, nil
	}
	return n, nil
}

// opened reports whether a workflow was opened by a tool that still opens it.
func (e *Engine) opened(rule *Rule, root *node) bool {
	return slices.ContainsFunc(rule.flow.openers, func(o *Rule) bool { return o.Server == root.server && o.Tool == root.tool })
}

// join returns the newest node that holds a value for each of the call's
// names, in one workflow where within names it.
func (e *Engine) join(ctx context.Context, s *Step, within string, now int64) (*node, error) {
	r := s.request
	var found []*node
	first := true
	for name, hashes := range s.joins {
		nodes, err := joined(ctx, e.store.db, r.Principal, r.Rule.Workflow(), name, hashes, now)
		if err != nil {
			return nil, err
		}
		if first {
			found, first = nodes, false
			continue
		}
		found = slices.DeleteFunc(found, func(n *node) bool {
			return !slices.ContainsFunc(nodes, func(o *node) bool { return o.id == n.id })
		})
	}
	if within != "" {
		found = slices.DeleteFunc(found, func(n *node) bool { return n.root != within || n.id == within })
	}
	if len(found) == 0 {
		return nil, nil
	}
	newest := found[0]
	for _, n := range found[1:] {
		sibling := n.id != n.root && newest.id != newest.root
		if n.root != newest.root || sibling && r.Rule.Role == RoleStatus {
			s.Ambiguous = true
		}
	}
	if r.Rule.Role == RoleLink && newest.id != newest.root {
		return byID(ctx, e.store.db, newest.root)
	}
	return newest, nil
}

// narrow takes a status call that names a workflow to the one step in it that
// holds the call's values, and leaves it at the root where there are several.
func (e *Engine) narrow(ctx context.Context, s *Step, root *node, now int64) (*node, error) {
	if len(s.joins) == 0 {
		return root, nil
	}
	n, err := e.join(ctx, s, root.id, now)
	if err != nil || n == nil || s.Ambiguous {
		s.Ambiguous = false
		return root, err
	}
	return n, nil
}
