// Package upstream holds the servers behind the gateway and the connections to them. A [Set] is the
// configured servers. A [Server] picks the connection of a [Scope]: a host session has connections
// of its own, everything else is shared by the hosts of a principal.
//
// A connection is a child process on its standard input and output, a streamable HTTP endpoint, or
// one of the older HTTP+SSE kind. [Open] makes it and negotiates the revision. It gives each
// request an id of its own, matches the responses, gives the messages that belong to a request to
// its receiver, and tells the server if a call is cancelled. A lost connection is not repaired: the
// reconnector opens another.
//
// # Goroutines
//
// A reconnector owns its attempts, its watch over lists and the ends of lost connections; close
// waits for them. A connection owns the goroutines of its transport; Close waits for them. A child
// process has a goroutine that starts and reaps it, which ends with the process; stop waits for it.
//
// # Locks
//
// No lock is held while another is taken, with three exceptions: call.mu and inbox.mu are held while
// a message is handed on, and Server.mu may be taken while Connections.mu is held.
package upstream
