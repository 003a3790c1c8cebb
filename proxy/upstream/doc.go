// Package upstream holds the servers behind the gateway and the connections to them. A [Set] is the
// configured servers. A [Server] picks the connection of a [Scope]: a host session has connections
// of its own, everything else is shared by the hosts of a principal.
//
// A connection is a child process on its standard input and output, a streamable HTTP endpoint, or
// one of the older HTTP+SSE kind. [Open] makes it and negotiates the revision. It gives each
// request an id of its own, matches the responses, gives the messages that belong to a request to
// its caller, and tells the server if a call is cancelled. A lost connection is not repaired: the
// reconnector opens another.
//
// # The way of one call
//
// Down: [Server.Connection] picks the connection. Call (connection.go) enters the request in the
// table of pending calls, and the transport (stdio.go, http.go) sends it. Up: the reader of the
// transport passes each message to receive, which resolves the pending call.
//
// # Goroutines
//
// A reconnector owns its attempts, its watch over lists and the ends of lost connections; close
// waits for them. A connection owns the goroutines of its transport; Close waits for them. A child
// process has a goroutine that starts and reaps it, which ends with the process; stop waits for it.
//
// # Locks
//
// No lock is held while another is taken, with two exceptions: call.mu and inbox.mu are held while
// a message is handed on.
//
//	server.go, reconnector.go, infocache.go   servers, their connections, their cached descriptions
//	open.go                                   opening a connection, and agreeing on a revision
//	connection.go, calls.go                   calls, and messages of the server
//	stdio.go, child*.go                       connections to child processes
//	http.go, sse.go, eventstream.go           streamable HTTP, HTTP+SSE, the format of event streams
package upstream
