package proxy

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/foldgate/foldgate/proxy/edge"
)

// shutdownWait bounds how long a stop may take: branches are force-returned,
// streams ended, upstreams closed.
const shutdownWait = 10 * time.Second

// RunStdio serves one host on in and out until it leaves or ctx is done. out
// carries nothing but protocol.
func (g *Gateway) RunStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	return edge.ServeStdio(ctx, g, in, out, g.log)
}

// ready is what /readyz says. One upstream that is down does not make the
// gateway unready: the others still serve.
func (g *Gateway) ready() (ok bool, body []byte) {
	type state struct {
		State string `json:"state"`
		Error string `json:"error,omitempty"`
	}
	out := struct {
		Status    string           `json:"status"`
		Upstreams map[string]state `json:"upstreams"`
		Trace     string           `json:"trace,omitempty"`
	}{Status: "ready", Upstreams: map[string]state{}}
	for _, u := range g.ups {
		s, fault := u.Status()
		st := state{State: s}
		if fault != nil {
			st.Error = g.boundary.Text(fault.Error())
			out.Status = "degraded"
		}
		out.Upstreams[u.Key] = st
	}
	ok = true
	if err := g.journal.Err(); err != nil {
		out.Status, out.Trace, ok = "unready", err.Error(), g.cfg.Trace.OnError != "refuse"
	}
	body, _ = json.Marshal(out)
	return ok, body
}
