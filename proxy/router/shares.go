package router

import "sync"

// shares count what hosts hold of something of which all together may have most. Of several principals none may have more than
// half.
type shares struct {
	most int

	mu  sync.Mutex
	all int
	own map[string]int // by principal
}

// take counts n more of a principal, unless that is too many. several means that there are other principals.
func (c *shares) take(principal string, several bool, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all+n > c.most || several && c.own[principal]+n > c.most/2 {
		return false
	}
	c.add(principal, n)
	return true
}

// change counts n more, or fewer if it is negative.
func (c *shares) change(principal string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(principal, n)
}

// add is change for a caller that holds mu.
func (c *shares) add(principal string, n int) {
	if c.own == nil {
		c.own = map[string]int{}
	}
	c.all += n
	if c.own[principal] += n; c.own[principal] == 0 {
		delete(c.own, principal)
	}
}

// several reports whether there can be more than one principal.
func (rt *Router) several() bool {
	return rt.Settings().Config.PrincipalCount() > 1
}
