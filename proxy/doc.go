// Package proxy is the gateway: with its packages server, link and wire the only
// one that knows MCP's wire formats and its transports. Package config reads the
// configuration.
//
//	cfg, err := config.Find("foldgate.yaml")
//	g, err := proxy.New(cfg, log)
//	defer g.Close(ctx)
//	err = g.RunStdio(ctx, os.Stdin, os.Stdout) // or g.RunHTTP
//
// # The picture
//
//	host ── edge ──┐                               ┌── link ── upstream (child process)
//	               ├── session ── chain ── route ──┤
//	host ── edge ──┘                 │             └── link ── upstream (HTTP)
//	                   Trace, Recover, Attribute, Meter,
//	                       Fold, Workflow, Scrub
//
// A message is bytes from end to end. A [wire.Message] names the ranges of a JSON-RPC
// message; a copy is read where a decision needs it, and bytes are spliced only
// where something must change. Nothing is decoded and encoded again, so what
// foldgate does not know passes as well as what it does.
//
// # The story of one call
//
//  1. A server (package server) reads a message and makes a request of it: the
//     message, the session, and a way to send messages ahead of the reply.
//  2. serve (serve.go) enters it as in flight, and route finds who answers:
//     foldgate itself (hello.go, tools.go), or an upstream by the name of the
//     tool, prompt or resource (dispatch.go, by the merged lists of menu.go).
//  3. The request becomes an interceptor.Call and goes down the chain
//     (chain.go): recorded, put into its branch, charged, and on the way back
//     scrubbed, folded, charged and recorded again.
//  4. At the end of the chain, send (send.go) picks the link: the session's own
//     in the legacy era, its principal's in the modern (package upstream, which opens
//     it, and again when it died; reopen.go and watch.go restore what hung on
//     it). Where the host and the upstream speak different eras, bridge_park.go,
//     bridge_rounds.go and bridge_log.go translate.
//  5. The link (package upstream) gives the request an id of its own, writes it, and
//     matches the response. What the upstream sends meanwhile goes through
//     events.go and ask.go to the stream of the very request that caused it.
//
// # Who owns what
//
// Servers know no upstream, links no host; [server.Router] is all that they know of
// the gateway, [conn.Conn] all that it knows of connections. A session owns its
// flights, its questions to the host and its own connections, package upstream the
// connections that hosts share; a tenant owns the lists that came over those.
//
// # Words
//
//	inbound   a request of a host, in session.flights while it is served; a
//	          pending call of package upstream is one that a server has to answer
//	tenant    what one principal has of an upstream beside connections
//	view      the lists of one upstream over one link; a listing is one of them
//	menu      a list as hosts see it, merged of all upstreams'
//	parked    a call to a legacy upstream that a modern host makes in rounds
//	ask       a request of an upstream that waits for a legacy host
//	question  one that waits in a parked call for a modern host
//
// A host on stdio may speak both eras: then it has a session in each, of one ID.
// inbound.modern is the era of the request at hand, and decides. The fields
// call, to and parked of an inbound are guarded by its session's mu.
//
// # Where what is
//
//	gateway.go, run*.go, check*.go             making, serving, checking a gateway
//	config/                                    the configuration
//	serve.go, dispatch.go, session*.go         requests and notifications of hosts
//	refusal.go                                 what hosts read of errors
//	hello.go, listen.go                        greetings, and hosts that wait for changes
//	tools*.go, batch*.go                       foldgate's own tools; tools_run.go begins a batch
//	menu*.go, catalog.go, names.go, params.go  the merged lists, and what they are made of
//	tenant.go                                  what a principal has of an upstream
//	send.go, bridge*.go, parking.go            calls to upstreams, in either era
//	events.go, ask.go, reopen.go, watch.go     what upstreams send, and what is restored
//	passage.go, lane.go                        what keeps its order
//	telemetry.go   spans and gauges of the gateway
//	correlation.go, hostthread.go              what hosts say of a call in _meta
//	workflows*.go                              the configuration's workflows
package proxy
