package proxy

import (
	"context"
	"net"
)

// RunHTTP serves hosts on the configured address until ctx is done, then lets
// calls in flight finish. ready is told the address once it is listened on.
func (g *Gateway) RunHTTP(ctx context.Context, ready func(net.Addr)) error {
	ln, err := listenHTTP(ctx, g.cfg.Listen)
	if err != nil {
		return err
	}
	e := newHTTPEdge(g, httpOptions{
		Log: g.log, MaxBody: maxMessage, AllowedOrigins: g.cfg.AllowedOrigins, Ready: g.ready, CheckParams: g.checkParams,
	})
	ready(ln.Addr())
	g.background(func() { g.Warm(g.ctx) })
	return serveHTTP(ctx, ln, e, e.handler(), shutdownWait)
}
