// Package upstream holds the servers behind the gateway and the connections to them. A [Set] is what
// all servers share. A [Server] picks the connection of a [Scope]: a host session has connections
// of its own, everything else is shared by a group of hosts. A session sees a connection that it
// shares through a view.
//
// A connection is a child process on its standard input and output, a streamable HTTP endpoint, or
// one of the older HTTP+SSE kind. [Open] makes it and negotiates the revision. It gives each
// request an id of its own, matches the responses, gives the messages that belong to a request to
// its receiver, and tells the server if a call is cancelled. A lost connection is not repaired: the
// reconnector opens another.
//
// # Goroutines
//
// A reconnector owns its attempts, its watches over lists and over the end of each connection; close
// waits for them. A connection owns the goroutines of its transport; Close waits for them. A child
// process has a goroutine that starts and reaps it, which ends with the process; stop waits for it.
//
// # Locks
//
// No lock is held while another is taken, with these exceptions: call.mu and inbox.mu are held while
// a message is handed on, reconnector.mu when calls.mu is taken, and Connections.mu when Server.mu is.
package upstream
