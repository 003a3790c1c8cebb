// Package upstream makes connections to MCP servers: to a child process on its
// standard input and output, to a streamable HTTP endpoint, or to one of the
// older HTTP+SSE kind. [Open] makes a [conn.Conn] and negotiates the revision.
//
// A link gives each request an id of its own, matches the responses, gives what
// arrives meanwhile to the call that it belongs to, and tells the upstream when
// a call is cancelled. It knows no hosts, and dies rather than to repair itself:
// whoever opened it opens another.
//
//	config.go                              what a link is told
//	link.go, negotiate.go                  opening, and agreeing on a revision
//	flight.go, route.go, incoming.go       calls in flight, and whose a message is
//	stdio.go, child*.go, noise.go          child processes
//	duplex.go, frame.go, outbox*.go        lines in both directions
//	http.go, httpbase.go, httpstream.go    streamable HTTP
//	sse.go, events.go                      HTTP+SSE, and event streams
package upstream
