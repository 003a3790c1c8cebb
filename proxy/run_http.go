package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/edge"
)

// maxMessage is the largest message of a host, in bytes.
const maxMessage = 64 << 20

// RunHTTP serves hosts on the configured address until ctx is done, then lets
// calls in flight finish. ready is told the address once it is listened on.
func (g *Gateway) RunHTTP(ctx context.Context, ready func(net.Addr)) error {
	ln, err := edge.Listen(ctx, g.cfg.Listen)
	if err != nil {
		return err
	}
	addr := ln.Addr()
	if g.cfg.Secure() {
		cert, err := g.cfg.Certificate()
		if err != nil {
			return errors.Join(fmt.Errorf("tls: %w", err), ln.Close())
		}
		// HTTP/1.1 only: the edge's limits on slow readers are limits on connections.
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	} else if g.cfg.Exposed() {
		g.log.Warn("other machines can reach this address, and tokens and results cross the network as plain text: set tls, or let a proxy that speaks TLS stand in front of a loopback address", "listen", g.cfg.Listen)
	}
	e := edge.NewHTTP(g, edge.HTTPOptions{
		Log: g.log, MaxBody: maxMessage, AllowedHosts: g.cfg.AllowedHosts, AllowedOrigins: g.cfg.AllowedOrigins, Tokens: tokens(g.cfg),
		Ready: g.ready, CheckParams: g.checkParams,
	})
	ready(addr)
	g.background(func() { g.warm(g.ctx) })
	return edge.Serve(ctx, ln, e, e.Handler(), shutdownWait)
}

// tokens returns the principals of a valid configuration as the edge knows them.
func tokens(c config.Config) (l edge.Tokens) {
	for _, name := range c.PrincipalNames() {
		digest, _ := c.Principals[name].Digest()
		l = append(l, edge.Token{Principal: name, Digest: digest})
	}
	return l
}
